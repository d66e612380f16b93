"""`sublayers search sample`: let a sampler of Optuna choose orders, good and cheap, and train them."""

import argparse
from typing import TYPE_CHECKING

from sublayers.configuration.sublayer_order import expand
from sublayers.training.flags import positive
from sublayers.training.lab.search.sampler import NAMES
from sublayers.training.lab.search.settings import add_price_flags, make_parser

if TYPE_CHECKING:
    import pandas as pd

    from sublayers.training.lab.search.space import Space


def main(argv: list[str]) -> "pd.DataFrame":
    """Train the orders that a sampler chooses, up to a number, measure what all cost, and report.

    Orders have at most as many sublayers as the one that the flags give. Loss and price are goals; with a budget the
    loss is the only one.

    Returns:
        A row for each run, see `report`.

    Raises:
        FileExistsError: the output folder holds something else, or another search.
        OSError: the storage cannot be reached.
        ValueError: bad flags, or a budget that no order meets.
    """
    args, space = parse(argv)
    # these imports take seconds, for which --help does not wait
    from optuna.pruners import SuccessiveHalvingPruner

    from sublayers.training.lab.search.price import log_costs
    from sublayers.training.lab.search.report import report
    from sublayers.training.lab.search.runs import TrainOrder, best
    from sublayers.training.lab.search.sampler import OrderSampler, Places
    from sublayers.training.lab.search.space import Allowed
    from sublayers.training.trials import run_trials

    told = ("sampler", "seeds", "draw_seed", "population", "cost", "read", "length", "budget", "prune")
    study = space.open_study(
        args,
        ["sample", *argv],
        ["minimize"] * (2 if args.budget is None else 1),
        **{name: getattr(args, name) for name in told},
    )
    paid = space.price(study, args)
    whole = paid.cost(space.order)
    budget = space.budget(paid, args.budget)
    places = Places(space.letters, len(expand(space.order)))
    allowed = Allowed(space, paid, budget)
    study.sampler = OrderSampler(args.sampler, places, allowed, args.draw_seed, args.population)
    if args.prune:
        # after 2, 4 and 8 evaluations, the better half of the orders goes on
        study.pruner = SuccessiveHalvingPruner(min_resource=2, reduction_factor=2)
    price = paid if args.budget is None else None
    train = TrainOrder(space.training, args.output_dir, args.seeds, places.choose, price, whole)
    run_trials(study, train, args.output_dir, number=args.number, jobs=args.jobs, say=best)
    log_costs(study, space.config, args.length)
    return report(study, args.output_dir)


def parse(argv: list[str]) -> tuple[argparse.Namespace, "Space"]:
    """Read the flags of the search and those of the training.

    Raises:
        ValueError: bad flags.
    """
    parser = make_parser("sample", __doc__)
    sampler_help = "NSGA-II, tree-structured Parzen estimator, or independent draws; default %(default)s"
    parser.add_argument("--sampler", choices=NAMES, default="nsga2", help=sampler_help)
    parser.add_argument("--number", type=positive, default=50, help="orders that are trained, default %(default)s")
    parser.add_argument("--draw_seed", type=int, default=0, help="seed of the sampler")
    population_help = "orders that NSGA-II keeps, and that are drawn at random first; default %(default)s"
    parser.add_argument("--population", type=positive, default=20, help=population_help)
    add_price_flags(parser, "; then the loss is the only goal")
    prune_help = "end a training whose early losses are worse than those of half of the others; with --budget"
    parser.add_argument("--prune", action="store_true", help=prune_help)
    args, flags = parser.parse_known_args(argv)
    if args.prune and args.budget is None:
        raise ValueError("Optuna ends trainings early where there is one goal only; give --prune with a --budget")
    from sublayers.training.lab.search.space import read_space

    return args, read_space(args.training, flags, args.stack)
