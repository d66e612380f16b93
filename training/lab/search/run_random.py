"""`sublayers search random`: train random orders alike, and find out what the good ones share."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sublayers.training.flags import flag, number as count
from sublayers.training.lab.runs import own_flags
from sublayers.training.lab.search.draw import BASELINE, Candidate, draw, draw_within, read_orders
from sublayers.training.lab.search.settings import EPILOG, USAGE, SearchArguments

if TYPE_CHECKING:
    import pandas as pd

    from sublayers.training.lab.search.space import Space


@dataclass(kw_only=True)
class RandomArguments(SearchArguments):
    """Flags for the orders that are drawn; with --budget they are of any length.

    Raises:
        ValueError: flags that say nothing with a budget, or nothing without one.
    """

    output_dir: Path = flag("what is finished in it is not run again", Path("runs/search-random"))
    number: int = count("number of orders", 20)
    draw_seed: int = flag("seed of the first order; the next ones have the next seeds", 0)
    unbalanced: bool = flag("draw letter by letter until the parameters are spent, not permutations", False)
    baseline: bool = flag("train the order of the flags, too, by whose loss the report divides the orders", False)
    orders: Path | None = flag("a file with an order in each line to be trained instead")
    prune: bool = flag("end a training whose early losses are worse than those of half of the others", False)

    def __post_init__(self):
        super().__post_init__()
        if self.budget is not None and (self.unbalanced or self.orders):
            raise ValueError("--budget draws orders of its own; give it without --unbalanced and --orders")
        if self.budget is None and (self.cost, self.read) != ("flops", "all"):
            raise ValueError("--cost and --read say what a --budget limits; give one, or leave them out")


def main(argv: list[str]) -> "pd.DataFrame":
    """Train every order that is not finished, measure what all cost, and report (Sandwich, section 3).

    Returns:
        A row for each run, see `report`.

    Raises:
        FileExistsError: the output folder holds something else, or another search.
        OSError: the storage cannot be reached.
        ValueError: bad flags, orders that the family cannot run, fewer orders than `--number`, or a budget that no
            order meets.
    """
    args, space, candidates = parse(argv)
    # these imports take seconds, for which --help does not wait
    from optuna.pruners import SuccessiveHalvingPruner

    from sublayers.training.lab.search.price import log_costs
    from sublayers.training.lab.search.report import report
    from sublayers.training.lab.search.runs import train_orders

    fixed = ("cost", "read", "length", "budget") if args.budget is not None else ()
    settings = {name: getattr(args, name) for name in fixed} | ({"prune": True} if args.prune else {})
    study = space.open_study(args, ["random", *argv], **settings)
    if args.budget is not None:
        paid = space.price(study, args)
        budget = space.budget(paid, args.budget)
        candidates = draw_within(space.order, paid, budget, args.number, args.draw_seed, space.runs)
    if args.prune:
        # after 2, 4 and 8 evaluations, the better half of the trainings goes on
        study.pruner = SuccessiveHalvingPruner(min_resource=2, reduction_factor=2)
    if args.baseline:
        candidates = [Candidate(space.order, BASELINE), *candidates]
    train_orders(study, space.training, candidates, args)
    log_costs(study, space.config, args.length)
    return report(study, args.output_dir)


def parse(argv: list[str]) -> "tuple[RandomArguments, Space, list[Candidate]]":
    """Read the flags of the search and those of the training, and find the orders, but for those within a budget.

    Raises:
        ValueError: bad flags, orders that the family cannot run, or fewer orders than `--number`.
    """
    [args], flags = own_flags(argv, [RandomArguments], USAGE.format("random"), description=__doc__, epilog=EPILOG)
    from sublayers.training.lab.search.space import read_space

    space = read_space(args.training, flags, args.stack)
    if args.budget is not None:
        return args, space, []
    drawn = (space.order, args.number, args.draw_seed, args.unbalanced)
    candidates = read_orders(args.orders) if args.orders else draw(*drawn)
    space.check(candidates)
    return args, space, candidates
