"""`sublayers search supernet`: learn an order together with a model, and compare it with others of equal cost."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sublayers.training.flags import flag, number
from sublayers.training.lab.runs import Do, own_flags
from sublayers.training.lab.search.draw import Candidate, draw_at_cost, patterns, read_orders
from sublayers.training.lab.search.settings import (
    EPILOG,
    USAGE,
    ArchitectureArguments,
    SearchArguments,
    Settings,
    expand_recipe,
)
from sublayers.training.trials import SETTINGS, TASK, open_study, results, run_trials

if TYPE_CHECKING:
    import optuna
    import pandas as pd

    from sublayers.training.lab.search.space import Space


@dataclass(kw_only=True)
class SupernetArguments(SearchArguments):
    """Flags for the searches, and for what is trained beside what they find."""

    output_dir: Path = flag("what is finished in it is not run again", Path("runs/search-supernet"))
    search_seeds: list[int] = flag("one search with each seed", [0])
    search_steps: int | None = number("steps of a search; default: as many as an order is trained for")
    random: int = flag("how many random orders are trained, too", 3)
    orders: Path | None = flag("a file with an order in each line to be compared, too")
    only_search: bool = flag("train no order from scratch", False)


def main(argv: list[str]) -> "pd.DataFrame":
    """Search with every seed, train what is found and others of equal cost from scratch, and report (PAR, section 2.2).

    Returns:
        A row for each run of an order, see `report`.

    Raises:
        FileExistsError: the output folder holds something else, or another search.
        ValueError: bad flags, a family that cannot be mixed, or a budget that no order meets.
    """
    args, architecture, space, others = parse(argv)
    # these imports take seconds, for which --help does not wait
    from sublayers.training.lab.search.price import log_costs
    from sublayers.training.lab.search.report import SUPERNETS, report
    from sublayers.training.lab.search.runs import train_orders

    fixed = {name: getattr(args, name) for name in ("search_steps", "cost", "read", "length", "budget")}
    study = space.open_study(args, ["supernet", *argv], **fixed, **vars(architecture))
    paid = space.price(study, args)
    budget = None if args.budget is None else space.budget(paid, args.budget)
    supernets = open_study(SUPERNETS, args.output_dir, study.user_attrs[SETTINGS], args.storage)
    settings = Settings(space.training.field, space.letters, price=paid, budget=budget, **vars(architecture))
    search = partial(space.search, settings, args.search_steps, args.output_dir / "supernets")
    tasks = [{"seed": seed} for seed in args.search_seeds]
    run_trials(supernets, Do(search), args.output_dir, tasks, jobs=args.jobs, say=found)
    if not args.only_search:
        candidates = [
            Candidate(trial.user_attrs["order"], f"found {trial.user_attrs[TASK]['seed']}")
            for trial in results(supernets)
        ]
        cost = paid.cost(candidates[0].order) if budget is None else budget
        candidates += patterns(space.letters, paid, cost)
        candidates += draw_at_cost(space.order, paid, cost, args.random, seed=0)
        train_orders(study, space.training, [*candidates, *others], args)
        log_costs(study, space.config, args.length)
    return report(study, args.output_dir, supernets)


def found(supernets: "optuna.Study") -> str:
    """Say what the last super-network found."""
    done = [f"seed {trial.user_attrs[TASK]['seed']} found {trial.user_attrs['order']}" for trial in results(supernets)]
    return done[-1] if done else ""


def parse(argv: list[str]) -> "tuple[SupernetArguments, ArchitectureArguments, Space, list[Candidate]]":
    """Read the flags of the search and those of the training, and the orders that are compared with what is found.

    Raises:
        ValueError: bad flags, a family that cannot be mixed, or orders that it cannot run.
    """
    kinds = [SupernetArguments, ArchitectureArguments]
    argv = expand_recipe(argv)
    (args, architecture), flags = own_flags(argv, kinds, USAGE.format("supernet"), description=__doc__, epilog=EPILOG)
    from sublayers.training.lab.search.space import check_mixture, read_space

    space = read_space(args.training, flags, args.stack)
    check_mixture(space)
    others = read_orders(args.orders) if args.orders else []
    space.check(others)
    return args, architecture, space, others
