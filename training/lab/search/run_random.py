"""`sublayers search random`: train random orders alike, and find out what the good ones share."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sublayers.training.flags import positive
from sublayers.training.lab.search.draw import Candidate, draw, draw_within, read_orders
from sublayers.training.lab.search.settings import add_price_flags, make_parser

if TYPE_CHECKING:
    import pandas as pd

    from sublayers.training.lab.search.space import Space


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
    from sublayers.training.lab.search.runs import TrainOrder, train_orders

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
    train_orders(study, TrainOrder(space.training, args.output_dir), candidates, args.seeds, args.jobs)
    log_costs(study, space.config, args.length)
    return report(study, args.output_dir)


def parse(argv: list[str]) -> tuple[argparse.Namespace, "Space", list[Candidate]]:
    """Read the flags of the search and those of the training, and find the orders, but for those within a budget.

    Raises:
        ValueError: bad flags, orders that the family cannot run, or fewer orders than `--number`.
    """
    parser = make_parser("random", __doc__)
    parser.add_argument("--number", type=positive, default=20, help="number of orders, default %(default)s")
    seed_help = "seed of the first order; the next ones have the next seeds"
    parser.add_argument("--draw_seed", type=int, default=0, help=seed_help)
    unbalanced_help = "draw letter by letter until the parameters are spent, instead of permuting the sublayers"
    parser.add_argument("--unbalanced", action="store_true", help=unbalanced_help)
    parser.add_argument("--orders", type=Path, help="a file with an order in each line to be trained instead")
    add_price_flags(parser, "; then orders of any length are drawn")
    prune_help = "end a training whose early losses are worse than those of half of the others"
    parser.add_argument("--prune", action="store_true", help=prune_help)
    args, flags = parser.parse_known_args(argv)
    if args.budget is not None and (args.unbalanced or args.orders):
        raise ValueError("--budget draws orders of its own; give it without --unbalanced and --orders")
    if args.budget is None and (args.cost, args.read) != ("flops", "all"):
        raise ValueError("--cost and --read say what a --budget limits; give one, or leave them out")
    from sublayers.training.lab.search.space import read_space

    space = read_space(args.training, flags, args.stack)
    if args.budget is not None:
        return args, space, []
    drawn = (space.order, args.number, args.draw_seed, args.unbalanced)
    candidates = read_orders(args.orders) if args.orders else draw(*drawn)
    space.check(candidates)
    return args, space, candidates
