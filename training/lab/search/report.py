"""`sublayers search report`: draw the tables and pictures of a search as far as it has come."""

import argparse
import math
from contextlib import suppress
from itertools import accumulate, combinations
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
from rich.console import Console

from sublayers.configuration.order import Order
from sublayers.configuration.sublayer_cost import READS
from sublayers.training.lab.search.draw import BASELINE
from sublayers.training.lab.search.settings import costs_of
from sublayers.training.metrics.pictures import (
    draw_bottom_halves,
    draw_costs,
    draw_mixtures,
    draw_orders,
    draw_probabilities,
)
from sublayers.training.results import Row, measured, score, table, write
from sublayers.training.trials import SETTINGS, TASK, TrialState, read_study, results

# the studies of a search, and the attribute that says how figures are made
SEARCH, SUPERNETS, BEGUN = "search", "super-networks", "begun"
# where an order is cut at half of its parameters, and at thirds of its sublayers
HALVES, THIRDS = ("bottom_half", "top_half"), ("first_third", "middle_third", "last_third")
# the heads of costs by the positions that are read, and their units
COSTS = {"flops": ("GFLOP of reading {}", 1e9), "milliseconds": ("reading {} (ms)", 1), "cache": ("cache (MiB)", 2**20)}


def main(argv: list[str]) -> pd.DataFrame:
    """Write tables and pictures into the folder of a search, and print what they say.

    Returns:
        A row for each run, see `report`.

    Raises:
        FileNotFoundError: there is no search in the folder.
        OSError: the storage cannot be reached.
    """
    parser = argparse.ArgumentParser(prog="sublayers search report", description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="the --output_dir of a search")
    parser.add_argument("--storage", help="the --storage of the search, if it has one")
    args = parser.parse_args(argv)
    study, supernets = read_study(SEARCH, args.folder, args.storage), None
    with suppress(FileNotFoundError):
        supernets = read_study(SUPERNETS, args.folder, args.storage)
    return report(study, args.folder, supernets)


def halves(order: str) -> tuple[str, str]:
    """Cut an order at half of its parameters (Sandwich, section 3): the sublayers near the input, and the others.

    A sublayer belongs where its middle lies, to the first half if that is the cut.
    """
    whole = Order(order)
    ends = accumulate(kind.units for kind in whole.kinds)
    middles = (end - kind.units / 2 for end, kind in zip(ends, whole.kinds, strict=True))
    cut = sum(middle <= whole.units / 2 for middle in middles)
    return whole.letters[:cut], whole.letters[cut:]


def thirds(order: str) -> tuple[str, str, str]:
    """Cut an order at thirds of its sublayers (PAR, figure 3); one belongs where its middle lies."""
    letters = Order(order).letters
    first, second = (round(part * len(letters) / 3) for part in (1, 2))
    return letters[:first], letters[first:second], letters[second:]


def rows_of(study: optuna.Study) -> pd.DataFrame:
    """Make a table with a row for each run: order, names, seeds, parameters, halves, thirds, costs and scores."""
    drawn: dict[str, list[dict[str, Any]]] = {}
    for candidate in study.user_attrs.get("candidates", []):
        drawn.setdefault(candidate["order"], []).append(candidate)
    searched = study.user_attrs[SETTINGS]["letters"]
    rows = []
    for trial in results(study):
        order = trial.user_attrs["order"]
        origins = drawn.get(order, [{"name": f"trial {trial.number}", "draw_seed": None}])
        row = {"order": order, "names": ", ".join(origin["name"] for origin in origins)}
        row["draw_seed"] = origins[0]["draw_seed"]
        for part, letters in zip((*HALVES, *THIRDS), (*halves(order), *thirds(order)), strict=True):
            row |= {f"{part}_{letter}": letters.count(letter) for letter in searched}
        for kind, numbers in study.user_attrs.get(costs_of(order), {"costs": {}})["costs"].items():
            row |= {f"{kind}_{read}": number for read, number in numbers.items()}
        for run in trial.user_attrs["runs"]:
            metrics = run["metrics"]
            # more than 709 would overflow
            found = {"loss": metrics["eval_loss"], "perplexity": math.exp(min(metrics["eval_loss"], 709))}
            rows.append(row | {"seed": run["seed"], "parameters": run["parameters"]} | found | metrics)
    return pd.DataFrame(rows)


def report(study: optuna.Study, folder: Path, supernets: optuna.Study | None = None) -> pd.DataFrame:
    """Write tables and pictures of a search and of its super-networks into a folder, and print what they say.

    `results.csv` has a row for each order. `orders.svg` has the orders from the best to the worst,
    `bottom_half.svg` the loss against the self-attentions in the bottom half, `cost.svg` the loss against what counts
    as cost; `supernet-SEED.svg` and `mixtures.svg` have what super-networks learned.

    Returns:
        The rows.
    """
    console = Console()
    settings = study.user_attrs[SETTINGS]
    rows = rows_of(study)
    searched = []
    if supernets and results(supernets):
        draw_supernets(supernets, settings["letters"], folder)
        searched = _of_searches(supernets, settings["letters"], rows) if len(rows) else []
    if len(rows):
        runs = rows.groupby("order", sort=False)
        orders = runs.first().assign(loss=runs["loss"].mean()).sort_values("loss")
        figures = _figures(orders, rows)
        write(figures, folder / "results.csv", study.user_attrs.get(BEGUN, {}))
        _draw(orders, settings, folder)
        # a terminal has no room for all columns
        hidden = ("perplexity", "cache", *(part.replace("_", " ") for part in (*HALVES, *THIRDS)))
        shown = [name for name in measured(figures) if not name.startswith(hidden)]
        shown_table = table(figures, {name: name for name in ("order", *shown, "seeds")})
        remarks = [*_remarks(orders, rows), *searched, *early(study)]
        console.print("\n".join([shown_table, *remarks]), soft_wrap=True, markup=False, highlight=False)
    console.print(f"tables and pictures are in {folder}", soft_wrap=True)
    return rows


def draw_supernets(supernets: optuna.Study, letters: str, folder: Path) -> None:
    """Draw what each super-network learned, and what all of them ended with."""
    mixtures = []
    for trial in sorted(results(supernets), key=lambda trial: trial.user_attrs[TASK]["seed"]):
        seed, order, curve = trial.user_attrs[TASK]["seed"], trial.user_attrs["order"], trial.user_attrs["curve"]
        draw_probabilities(curve, letters, f"seed {seed}: {order}", folder / f"supernet-{seed}.svg")
        mixtures.append((f"seed {seed}: {order}", curve[-1]["probabilities"]))
    draw_mixtures(mixtures, letters, folder / "mixtures.svg")


def early(study: optuna.Study) -> list[str]:
    """Say how well the losses of each evaluation rank the orders as the last ones do, and how many were ended early."""
    losses = pd.DataFrame([trial.intermediate_values for trial in results(study)])
    remarks = []
    if len(losses) > 2 and losses.shape[1] > 1:
        *steps, last = sorted(losses)
        ranks = [f"{losses[step].corr(losses[last], method='spearman'):.2f}" for step in steps]
        head = f"rank correlations of the losses of evaluations {steps[0]} to {steps[-1]} of {last} with the last ones"
        remarks.append(f"{head}: {' '.join(ranks)}")
    if pruned := results(study, TrialState.PRUNED):
        remarks.append(f"{len(pruned)} trainings were ended early; they are in no table")
    return remarks


def _figures(orders: pd.DataFrame, rows: pd.DataFrame) -> list[Row]:
    found = []
    for order, first in orders.iterrows():
        runs = rows[rows["order"] == order]
        row = {"model": first["names"], "order": str(order), "parameters": f"{first['parameters']}"}
        row |= score("loss (nats)", [*runs["loss"]], 4) | score("perplexity", [*runs["perplexity"]], 2)
        row |= {
            head.format(read): f"{first[f'{kind}_{read}'] / unit:.4g}"
            for kind, (head, unit) in COSTS.items()
            for read in READS
            if f"{kind}_{read}" in first
        }
        counts = [str(name) for name in orders if str(name).startswith((*HALVES, *THIRDS))]
        row |= {name.replace("_", " "): f"{first[name]}" for name in counts}
        found.append(row | {"seeds": ", ".join(f"{seed}" for seed in sorted(runs["seed"]))})
    return found


def _draw(orders: pd.DataFrame, settings: dict[str, Any], folder: Path) -> None:
    titles = [(f"{row.loss:.4f}  {row.names}", str(order)) for order, row in orders.iterrows()]
    draw_orders(titles, folder / "orders.svg")
    if "bottom_half_s" in orders:
        draw_bottom_halves([*zip(orders["bottom_half_s"], orders["loss"], strict=True)], folder / "bottom_half.svg")
    cost, read = (settings.get(name, usual) for name, usual in (("cost", "flops"), ("read", "all")))
    column = next((name for name in (f"{cost}_{read}", f"{cost}_all", cost) if name in orders), "parameters")
    points = [*zip(orders["names"], orders[column], orders["loss"], strict=True)]
    draw_costs(points, column.replace("_", ", positions read: "), folder / "cost.svg")


def _of_searches(supernets: optuna.Study, letters: str, rows: pd.DataFrame) -> list[str]:
    done = results(supernets)
    remarks = []
    for part, cut in zip(THIRDS, zip(*(thirds(trial.user_attrs["order"]) for trial in done), strict=True), strict=True):
        means = ", ".join(f"{letter} {''.join(cut).count(letter) / len(done):.1f}" for letter in letters)
        name = part.replace("_", " ")
        remarks.append(f"sublayers in the {name} of what was found, mean of {len(done)} orders: {means}")
    seconds = [trial.user_attrs["metrics"]["train_runtime"] for trial in done]
    ratio = sum(seconds) / len(done) / rows["train_runtime"].mean()
    return [*remarks, f"time of a search to that of a training, means of {len(done)} and {len(rows)}: {ratio:.2f}"]


def _remarks(orders: pd.DataFrame, rows: pd.DataFrame) -> list[str]:
    remarks = []
    # the paper divides at the mean of its baselines
    baseline = orders.loc[[BASELINE in names.split(", ") for names in orders["names"]], "loss"]
    told = "{1} orders that are {0} than the baseline" if len(baseline) else "{0} {1} orders"
    limit = baseline.iloc[0] if len(baseline) else orders["loss"].median()
    sides = {"better": orders[orders["loss"] < limit], "worse": orders[orders["loss"] > limit]}
    for what, parts in (("halves of the parameters", HALVES), ("thirds of the sublayers", THIRDS)):
        columns = [name for name in orders if str(name).startswith(parts) and orders[name].any()]
        for name, some in sides.items():
            if len(some) and columns:
                means = ", ".join(f"{column.replace('_', ' ')} {some[column].mean():.1f}" for column in columns)
                remarks.append(f"sublayers in the {what}, mean of the {told.format(name, len(some))}: {means}")
    if "bottom_half_s" in orders and orders["bottom_half_s"].nunique() > 1 and len(orders) > 2:
        rank = orders["bottom_half_s"].corr(orders["loss"], method="spearman")
        remarks.append(f"rank correlation of the loss with the self-attentions in the bottom half: {rank:.2f}")
    by_seed = rows.pivot_table(index="order", columns="seed", values="loss").dropna()
    if len(by_seed) > 2 and by_seed.shape[1] > 1:
        pairs = [by_seed[a].corr(by_seed[b], method="spearman") for a, b in combinations(by_seed, 2)]
        mean = sum(pairs) / len(pairs)
        remarks.append(f"rank correlation of {len(by_seed)} orders between two seeds, mean of all pairs: {mean:.2f}")
    return remarks
