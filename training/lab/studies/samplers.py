"""`sublayers study samplers`: compare how samplers search, where losses and prices are fitted to measured orders."""

import argparse
import random
import time
from collections import Counter
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import optuna
from rich.console import Console
from scipy.stats import spearmanr
from sklearn.linear_model import LinearRegression, RidgeCV
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tqdm.auto import tqdm

from sublayers.configuration.alphabet import ALPHABET
from sublayers.configuration.sublayer_order import expand
from sublayers.training.flags import positive
from sublayers.training.folders import refuse_to_overwrite
from sublayers.training.lab.search.sampler import NAMES, OrderSampler, Places
from sublayers.training.lab.studies.curves import draw_curves
from sublayers.training.metrics.pictures import pareto_front
from sublayers.training.results import Row, provenance, read, report, score
from sublayers.training.trials import open_study, results, run_trials

# columns, of which the first begins so
LOSS, PRICE = "loss", "GFLOP of reading all"
# parts of an order in which sublayers are counted
PARTS = 3


def loss_of(row: Row) -> float:
    """Read the loss of an order, in whatever it was measured."""
    return float(next(value for name, value in row.items() if name.startswith(LOSS)))


class Landscape:
    """Losses and prices of all orders, fitted to those of some.

    Prices are sums over sublayers; the dearest order has a price of 1. Losses follow, by ridge regression, from the
    numbers of sublayers of each kind in the thirds of an order, from neighbours, and from the first and last sublayer.
    What that cannot explain is noise, which differs by seed.

    Args:
        rows: of the `results.csv` of a search.
    """

    def __init__(self, rows: list[Row]):
        orders, losses = [row["order"] for row in rows], np.array([*map(loss_of, rows)])
        self.letters = "".join(letter for letter in ALPHABET if any(letter in expand(order) for order in orders))
        self.places = max(len(expand(order)) for order in orders)
        features = np.stack([self.features(order) for order in orders])
        self.model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 3, 16)))
        guessed = cross_val_predict(self.model, features, losses, cv=10)
        self.rank, self.noise = spearmanr(guessed, losses).statistic, float(np.std(guessed - losses))
        self.model.fit(features, losses)
        counts = np.array([[expand(order).count(letter) for letter in self.letters] for order in orders])
        prices = LinearRegression(fit_intercept=False).fit(counts, [float(row[PRICE]) for row in rows])
        self.prices = dict(zip(self.letters, prices.coef_ / (self.places * prices.coef_.max()), strict=True))
        self.worst = float(losses.max())

    def features(self, order: str) -> np.ndarray:
        """Describe an order by numbers."""
        letters = expand(order)
        counts = Counter({"length": len(letters), f"first {letters[0]}": 1, f"last {letters[-1]}": 1})
        for place, letter in enumerate(letters):
            counts[f"{letter} in part {PARTS * place // len(letters)}"] += 1
        counts.update(map("".join, pairwise(letters)))
        names = ["length", *(f"{end} {letter}" for end in ("first", "last") for letter in self.letters)]
        names += [f"{letter} in part {part}" for letter in self.letters for part in range(PARTS)]
        names += [a + b for a in self.letters for b in self.letters]
        return np.array([counts[name] for name in names], float)

    def loss(self, order: str) -> float:
        """Tell the loss of an order without noise."""
        return float(self.model.predict(self.features(order)[None])[0])

    def price(self, order: str) -> float:
        """Tell the price of an order, a share of the dearest one's."""
        return sum(self.prices[letter] for letter in expand(order))

    def train(self, places: Places, seed: int, trial: optuna.Trial) -> tuple[float, float]:
        """Pretend to train the order of a trial."""
        order = places.choose(trial)
        trial.set_user_attr("order", order)
        noise = random.Random(f"{seed} {order}").gauss(0, self.noise)
        return self.loss(order) + noise, self.price(order)

    def allows(self, order: str) -> bool:
        """Allow all orders but the empty one."""
        return bool(order)

    def hypervolume(self, trials: list[optuna.trial.FrozenTrial]) -> float:
        """Measure what the best trials dominate, below a price of 1 and the worst loss that was measured.

        Trials are chosen by what a search sees of them, and count with their losses without noise.
        """
        chosen = {*pareto_front([(price, loss) for loss, price in (trial.values for trial in trials)])}
        known = [trial for trial in trials if (trial.values[1], trial.values[0]) in chosen]
        orders = [trial.user_attrs["order"] for trial in known]
        front = pareto_front([(self.price(order), loss) for order in orders if (loss := self.loss(order)) < self.worst])
        ends = [price for price, _ in front[1:]] + [1.0]
        return sum((end - price) * (self.worst - loss) for (price, loss), end in zip(front, ends, strict=True))


def main(argv: list[str]) -> list[Row]:
    """Let every sampler search with every seed, and report the hypervolume of what it found, and the time of a trial.

    The trainings take no time, so that a trial's time is what a search adds to a training.

    Returns:
        A row for each sampler.

    Raises:
        FileExistsError: the output folder is not empty.
        FileNotFoundError: there is no such file.
        ValueError: a file without orders, losses and prices.
    """
    parser = argparse.ArgumentParser(prog="sublayers study samplers", description=__doc__, allow_abbrev=False)
    parser.add_argument("measured", type=Path, help="the results.csv of a search")
    parser.add_argument("--samplers", nargs="+", choices=NAMES, default=NAMES, help="default: all")
    parser.add_argument("--number", type=positive, default=200, help="trials of a search, default %(default)s")
    parser.add_argument("--population", type=positive, default=20, help="as in sublayers search sample")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="one search each")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/study-samplers"), help="new or empty folder")
    args = parser.parse_args(argv)
    refuse_to_overwrite(args.output_dir)
    rows = read(args.measured)
    if len(rows) < 20 or not {"order", PRICE} <= rows[0].keys() or not any(name.startswith(LOSS) for name in rows[0]):
        raise ValueError(f"{args.measured} has not 20 orders with {LOSS} and {PRICE}; give the results.csv of a search")
    landscape = Landscape(rows)
    steps = sorted({args.number // 4, args.number // 2, args.number} - {0})
    figures, curves = [], {}
    bar = tqdm(total=len(args.samplers) * len(args.seeds), unit="search")
    for sampler in args.samplers:
        found = []
        for seed in args.seeds:
            found.append(search(landscape, sampler, seed, args.number, args.population))
            bar.update()
        row: Row = {"model": sampler, "order": "", "parameters": ""}
        for step in steps:
            volumes = [landscape.hypervolume(trials[:step]) for trials, _ in found]
            row |= score(f"hypervolume after {step}", volumes, 4)
        row |= score("time of a trial (ms)", [1000 * seconds / args.number for _, seconds in found])
        figures.append(row | {"seeds": ", ".join(map(str, args.seeds))})
        ends = range(10, args.number + 1, 10)
        means = [float(np.mean([landscape.hypervolume(trials[:end]) for trials, _ in found])) for end in ends]
        curves[sampler] = {"hypervolume": [list(point) for point in zip(ends, means, strict=True)]}
    bar.close()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    report(figures, args.output_dir, provenance(["study", "samplers", *argv], [args.measured.name]))
    draw_curves(curves, {"hypervolume": "hypervolume, mean of the seeds"}, args.output_dir / "hypervolume.svg", "trial")
    told = f"landscape: rank correlation of {landscape.rank:.2f} with measured orders that it was not fitted to, noise "
    told += f"{landscape.noise:.4f}; figures and a picture are in {args.output_dir}"
    Console().print(told, soft_wrap=True)
    return figures


def search(
    landscape: Landscape, sampler: str, seed: int, number: int, population: int
) -> tuple[list[optuna.trial.FrozenTrial], float]:
    """Search with a sampler in a new study; return the trials, and for how many seconds it ran."""
    places = Places(landscape.letters, landscape.places)
    # what is said of each trial would be no help here
    with TemporaryDirectory() as folder, redirect_stderr(StringIO()):
        study = open_study("search", Path(folder), {}, goals=["minimize", "minimize"])
        study.sampler = OrderSampler(sampler, places, landscape.allows, seed, population)
        start = time.perf_counter()
        run_trials(study, partial(landscape.train, places, seed), Path(folder), number=number)
        return results(study), time.perf_counter() - start
