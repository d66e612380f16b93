"""`sublayers search random`: train random orders alike, and find out what the good ones share."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sublayers.training.flags import positive
from sublayers.training.lab.search.draw import Candidate, draw, read_orders
from sublayers.training.lab.search.settings import make_parser

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
        ValueError: bad flags, orders that the family cannot run, or fewer orders than are asked for.
    """
    args, space, candidates = parse(argv)
    # these imports take seconds, for which --help does not wait
    from sublayers.training.lab.search.price import log_costs
    from sublayers.training.lab.search.report import report
    from sublayers.training.lab.search.runs import TrainOrder, train_orders

    study = space.open_study(args, ["random", *argv])
    train_orders(study, TrainOrder(space.training, args.output_dir), candidates, args.seeds, args.jobs)
    log_costs(study, space.config, args.length)
    return report(study, args.output_dir)


def parse(argv: list[str]) -> tuple[argparse.Namespace, "Space", list[Candidate]]:
    """Read the flags of the search and those of the training, and find the orders that they ask for.

    Raises:
        ValueError: bad flags, orders that the family cannot run, or fewer orders than are asked for.
    """
    parser = make_parser("random", __doc__)
    parser.add_argument("--number", type=positive, default=20, help="number of orders, default %(default)s")
    seed_help = "seed of the first order; the next ones have the next seeds"
    parser.add_argument("--draw_seed", type=int, default=0, help=seed_help)
    unbalanced_help = "draw letter by letter until the parameters are spent, instead of permuting the sublayers"
    parser.add_argument("--unbalanced", action="store_true", help=unbalanced_help)
    parser.add_argument("--orders", type=Path, help="a file with an order in each line to be trained instead")
    args, flags = parser.parse_known_args(argv)
    from sublayers.training.lab.search.space import read_space

    space = read_space(args.training, flags, args.stack)
    drawn = (space.order, args.number, args.draw_seed, args.unbalanced)
    candidates = read_orders(args.orders) if args.orders else draw(*drawn)
    space.check(candidates)
    return args, space, candidates
