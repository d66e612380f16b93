"""`sublayers search supernet`: learn an order together with a model, and compare it with others of equal cost."""

import argparse
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from sublayers.configuration.sublayer_cost import READS
from sublayers.training.flags import finite, positive
from sublayers.training.folders import claim
from sublayers.training.lab.search.arguments import add_flags
from sublayers.training.lab.search.draw import Candidate, draw_at_cost, patterns, read_orders
from sublayers.training.lab.search.settings import Cost, Settings
from sublayers.training.log import Log, open_log

if TYPE_CHECKING:
    import pandas as pd

    from sublayers.training.lab.search.space import Space

# the help of flags, by the setting of the architecture
FLAGS = {
    "warmup_share": "of the steps, in which the architecture is frozen",
    "held_out_share": "of the training data, which trains the architecture alone",
    "learning_rate": "of the architecture",
    "weight_decay": "of the architecture",
    "temperatures": "of the Gumbel softmax, when the search begins and when it ends",
    "patience": "share of the steps after the warm-up in which an unchanged order ends the search",
}


def main(argv: list[str]) -> "pd.DataFrame":
    """Search with every seed, train what is found and others of equal cost from scratch, and report (PAR, section 2.2).

    Args:
        argv: the training's command, its flags and those of the search; see `sublayers search supernet --help`.

    Returns:
        A row for each run of an order, see `report`.

    Raises:
        FileExistsError: the output folder holds something else, or another search.
        ValueError: bad flags, a family that cannot be mixed, or a budget that no order meets.
    """
    args, space, others = parse(argv)
    # these imports take seconds, for which --help does not wait
    from sublayers.training.lab.search.price import Price, price
    from sublayers.training.lab.search.report import BEGUN, log_costs, report
    from sublayers.training.lab.search.runs import find_orders, train_orders
    from sublayers.training.results import provenance

    settings = {name: getattr(args, name) for name in FLAGS}
    told = {name: getattr(args, name) for name in ("search_steps", "cost", "read", "length", "budget")}
    with claim(args.output_dir):
        # times are measured once, and a resumed search reads them again
        known = Log(args.output_dir).events("price")
        counted = price(space.config, space.letters, args.cost, args.length, args.read) if not known else None
        paid = counted or Price(known[0]["full"], known[0]["read"])
        budget = None if args.budget is None else args.budget * paid.cost(space.order)
        if budget is not None and not budget >= (least := min(paid.read.values())):
            share = least / paid.cost(space.order)
            raise ValueError(f"no order meets a budget of {args.budget}; the cheapest one needs {share:.2g}")
        log = open_log(
            args.output_dir, "search", {**space.training._asdict(), "letters": space.letters, **settings, **told}
        )
        log.append(BEGUN, **provenance(["search", "supernet", *argv], space.data))
        if counted:
            log.append("price", **counted._asdict())
        search = Settings(space.training.field, space.letters, price=paid, budget=budget, **settings)
        find_orders(log, partial(space.search, search, args.search_steps), args.search_seeds, args.jobs)
        if not args.only_search:
            found = {event["order"]: event["seed"] for event in log.events("supernet")}
            cost = paid.cost(next(iter(found))) if budget is None else budget
            candidates = [Candidate(order, f"found {seed}") for order, seed in found.items()]
            candidates += patterns(space.letters, paid, cost)
            candidates += draw_at_cost(space.order, paid, cost, args.random, seed=0)
            candidates += others
            train_orders(log, space.training, candidates, args.seeds, args.jobs)
            log_costs(log, space.config, args.length)
        return report(log)


def parse(argv: list[str]) -> tuple[argparse.Namespace, "Space", list[Candidate]]:
    """Read the flags of the search and those of the training, and the orders that are compared with what is found.

    Raises:
        ValueError: bad flags, a family that cannot be mixed, or orders that it cannot run.
    """
    parser = argparse.ArgumentParser(prog="sublayers search supernet", description=__doc__, allow_abbrev=False)
    add_flags(parser, "runs/search-supernet")
    parser.add_argument("--search_seeds", type=int, nargs="+", default=[0], help="one search with each seed")
    parser.add_argument(
        "--search_steps", type=positive, help="steps of a search; default: as many as an order is trained for"
    )
    parser.add_argument("--cost", choices=get_args(Cost), default="flops", help="what an order costs")
    parser.add_argument("--read", choices=[*READS], default="all", help="positions that are read; classifiers read one")
    parser.add_argument(
        "--budget", type=finite, help="what the order may cost, as a share of the cost of the one that the flags give"
    )
    parser.add_argument("--random", type=int, default=3, help="how many random orders are trained, too")
    parser.add_argument("--orders", type=Path, help="a file with an order in each line to be compared, too")
    parser.add_argument("--only_search", action="store_true", help="train no order from scratch")
    defaults = {f.name: f.default for f in fields(Settings) if f.name in FLAGS}
    for name, purpose in FLAGS.items():
        several: dict[str, Any] = {"nargs": 2, "metavar": ("FIRST", "LAST")} if name == "temperatures" else {}
        flag = f"--architecture_{name}" if name in ("learning_rate", "weight_decay") else f"--{name}"
        parser.add_argument(
            flag, dest=name, type=finite, default=defaults[name], help=f"{purpose}, default %(default)s", **several
        )
    args, flags = parser.parse_known_args(argv)
    from sublayers.training.lab.search.space import check_mixture, read_space

    space = read_space(args.training, flags, args.stack)
    check_mixture(space)
    others = read_orders(args.orders) if args.orders else []
    space.check(others)
    # Settings refuses bad values before anything is written
    Settings(space.training.field, space.letters, **{name: getattr(args, name) for name in FLAGS})
    return args, space, others
