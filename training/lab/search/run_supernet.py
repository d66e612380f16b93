"""`sublayers search supernet`: learn an order together with a model, and compare it with others of equal cost."""

import argparse
import shutil
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sublayers.training.flags import finite, positive
from sublayers.training.lab.runs import Do
from sublayers.training.lab.search.draw import Candidate, draw_at_cost, patterns, read_orders
from sublayers.training.lab.search.settings import Settings, add_price_flags, make_parser
from sublayers.training.trials import SETTINGS, TASK

if TYPE_CHECKING:
    import optuna
    import pandas as pd

    from sublayers.training.lab.search.space import Space

# the settings of the architecture that are flags
FLAGS = [each for each in fields(Settings) if each.metadata]


def main(argv: list[str]) -> "pd.DataFrame":
    """Search with every seed, train what is found and others of equal cost from scratch, and report (PAR, section 2.2).

    Returns:
        A row for each run of an order, see `report`.

    Raises:
        FileExistsError: the output folder holds something else, or another search.
        ValueError: bad flags, a family that cannot be mixed, or a budget that no order meets.
    """
    args, space, settings, others = parse(argv)
    # these imports take seconds, for which --help does not wait
    from sublayers.training.lab.search.price import log_costs
    from sublayers.training.lab.search.report import SUPERNETS, report
    from sublayers.training.lab.search.runs import TrainOrder, train_orders
    from sublayers.training.trials import open_study, results, run_trials

    fixed = ("search_steps", "cost", "read", "length", "budget", *(each.name for each in FLAGS))
    study = space.open_study(args, ["supernet", *argv], **{name: getattr(args, name) for name in fixed})
    paid = space.price(study, args)
    budget = None if args.budget is None else space.budget(paid, args.budget)
    supernets = open_study(SUPERNETS, args.output_dir, study.user_attrs[SETTINGS], args.storage)
    search = Search(space, replace(settings, price=paid, budget=budget), args.search_steps, args.output_dir)
    tasks = [{"seed": seed} for seed in args.search_seeds]
    run_trials(supernets, Do(search), args.output_dir, tasks, jobs=args.jobs, say=found)
    orders = {trial.user_attrs["order"]: trial.user_attrs[TASK]["seed"] for trial in results(supernets)}
    if not args.only_search:
        cost = paid.cost(next(iter(orders))) if budget is None else budget
        candidates = [Candidate(order, f"found {seed}") for order, seed in orders.items()]
        candidates += patterns(space.letters, paid, cost)
        candidates += draw_at_cost(space.order, paid, cost, args.random, seed=0)
        train = TrainOrder(space.training, args.output_dir)
        train_orders(study, train, [*candidates, *others], args.seeds, args.jobs)
        log_costs(study, space.config, args.length)
    return report(study, args.output_dir, supernets)


@dataclass(frozen=True)
class Search:
    """Searches with a seed: a super-network finds an order."""

    space: "Space"
    settings: Settings
    steps: int | None
    folder: Path

    def __call__(self, seed: int) -> tuple[float, dict[str, Any]]:
        """Train a super-network: its mean loss, and what it found."""
        folder = self.folder / "supernets" / f"seed-{seed}"
        # a process that died may have left files
        shutil.rmtree(folder, ignore_errors=True)
        event = self.space.search(self.settings, self.steps, seed, folder)
        return event["metrics"]["train_loss"], event


def found(supernets: "optuna.Study") -> str:
    """Say what the last super-network found."""
    from sublayers.training.trials import results

    done = [f"seed {trial.user_attrs[TASK]['seed']} found {trial.user_attrs['order']}" for trial in results(supernets)]
    return done[-1] if done else ""


def parse(argv: list[str]) -> tuple[argparse.Namespace, "Space", Settings, list[Candidate]]:
    """Read the flags of the search and those of the training, and the orders that are compared with what is found.

    Raises:
        ValueError: bad flags, a family that cannot be mixed, or orders that it cannot run.
    """
    parser = make_parser("supernet", __doc__)
    parser.add_argument("--search_seeds", type=int, nargs="+", default=[0], help="one search with each seed")
    steps_help = "steps of a search; default: as many as an order is trained for"
    parser.add_argument("--search_steps", type=positive, help=steps_help)
    add_price_flags(parser)
    parser.add_argument("--random", type=int, default=3, help="how many random orders are trained, too")
    parser.add_argument("--orders", type=Path, help="a file with an order in each line to be compared, too")
    parser.add_argument("--only_search", action="store_true", help="train no order from scratch")
    for each in FLAGS:
        several: dict[str, Any] = {"nargs": 2, "metavar": ("FIRST", "LAST")} if each.name == "temperatures" else {}
        flag = f"--architecture_{each.name}" if each.name in ("learning_rate", "weight_decay") else f"--{each.name}"
        purpose = f"{each.metadata['help']}, default %(default)s"
        parser.add_argument(flag, dest=each.name, type=finite, default=each.default, help=purpose, **several)
    args, flags = parser.parse_known_args(argv)
    from sublayers.training.lab.search.space import check_mixture, read_space

    space = read_space(args.training, flags, args.stack)
    check_mixture(space)
    others = read_orders(args.orders) if args.orders else []
    space.check(others)
    given = {each.name: getattr(args, each.name) for each in FLAGS}
    return args, space, Settings(space.training.field, space.letters, **given), others
