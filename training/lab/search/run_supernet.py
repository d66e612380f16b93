"""`sublayers search supernet`: learn an order together with a model, and compare it with others of equal cost."""

import argparse
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from sublayers.configuration.sublayer_cost import READS
from sublayers.training.flags import finite, positive
from sublayers.training.folders import claim
from sublayers.training.lab.search.draw import Candidate, draw_at_cost, patterns, read_orders
from sublayers.training.lab.search.settings import Cost, Settings, make_parser
from sublayers.training.log import Log

if TYPE_CHECKING:
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
    from sublayers.training.lab.search.price import Price, log_costs, price
    from sublayers.training.lab.search.report import report
    from sublayers.training.lab.search.runs import Work, run_all, train_orders

    told = ("search_steps", "cost", "read", "length", "budget", *(each.name for each in FLAGS))
    with claim(args.output_dir):
        # times are measured once, and a resumed search reads them again
        known = Log(args.output_dir).events("price")
        if known:
            paid = Price(known[0]["full"], known[0]["read"])
        else:
            paid = price(space.config, space.letters, args.cost, args.length, args.read)
        budget = None if args.budget is None else args.budget * paid.cost(space.order)
        if budget is not None and budget < (least := min(paid.read.values())):
            share = least / paid.cost(space.order)
            raise ValueError(f"no order meets a budget of {args.budget}; the cheapest one needs {share:.2g}")
        log = space.open_log(args.output_dir, ["supernet", *argv], **{name: getattr(args, name) for name in told})
        if not known:
            log.append("price", **paid._asdict())
        search = partial(space.search, replace(settings, price=paid, budget=budget), args.search_steps)
        supernets = args.output_dir / "supernets"
        work = {supernets / f"seed-{seed}": Work({"seed": seed}, partial(search, seed)) for seed in args.search_seeds}
        say = "seed {seed} found {order}".format_map
        run_all("super-networks", log, "supernet", work, lambda events: say(events[-1]), args.jobs)
        if not args.only_search:
            found = {event["order"]: event["seed"] for event in log.events("supernet")}
            cost = paid.cost(next(iter(found))) if budget is None else budget
            candidates = [Candidate(order, f"found {seed}") for order, seed in found.items()]
            candidates += patterns(space.letters, paid, cost)
            candidates += draw_at_cost(space.order, paid, cost, args.random, seed=0)
            train_orders(log, space.training, [*candidates, *others], args.seeds, args.jobs)
            log_costs(log, space.config, args.length)
        return report(log)


def parse(argv: list[str]) -> tuple[argparse.Namespace, "Space", Settings, list[Candidate]]:
    """Read the flags of the search and those of the training, and the orders that are compared with what is found.

    Raises:
        ValueError: bad flags, a family that cannot be mixed, or orders that it cannot run.
    """
    parser = make_parser("supernet", __doc__)
    parser.add_argument("--search_seeds", type=int, nargs="+", default=[0], help="one search with each seed")
    steps_help = "steps of a search; default: as many as an order is trained for"
    parser.add_argument("--search_steps", type=positive, help=steps_help)
    parser.add_argument("--cost", choices=get_args(Cost), default="flops", help="what an order costs")
    parser.add_argument("--read", choices=[*READS], default="all", help="positions that are read; classifiers read one")
    budget_help = "what the order may cost, as a share of the cost of the one that the flags give"
    parser.add_argument("--budget", type=finite, help=budget_help)
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
