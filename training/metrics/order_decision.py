"""What `sublayers order --decide` measures: how long orders take for what is read, and which plain one is as slow."""

import json
import sys
from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from sublayers.configuration.configuration_par_bert import PARBertConfig
from sublayers.configuration.configuration_sandwich_lm import SandwichLMConfig
from sublayers.configuration.order import Order, interleaved
from sublayers.training.metrics.order_times import time_stacks
from sublayers.training.metrics.pictures import draw_times
from sublayers.training.metrics.timing import FEWEST, agree, bounds, ratio
from sublayers.training.results import Row, provenance, write
from sublayers.training.trainers.machine import machine

# the names in `milliseconds` of what is read
READS = {"one position": "one", "15 % of the positions": "masked", "every position": "all", "the next token": "next"}
# letters whose stacks are measured
MEASURED = "swmfegr"
# smaller differences may be noise
WORTH_IT = 0.95
CAPTION = (
    "Milliseconds of the sublayers, without embeddings and head; in brackets the median of the ratios to the first "
    "order within a round, or between what it lies where rounds disagree, and the plain Transformer with most layers "
    "that takes no longer, where most times are interpolated. "
    "The next token is generated after the others, with a cache. Time is half of the answer: in most of our studies, "
    "fewer plain layers of equal time were as good."
)


class Read(NamedTuple):
    """What orders take where the same is read: the milliseconds of all rounds, and their medians.

    The latter are also those of plain orders, as they are interpolated.
    """

    rounds: dict[str, list[float]]
    medians: dict[str, float]

    def are_sure(self, order: str, first: str) -> bool:
        """Say whether the rounds agree on the ratio of two orders."""
        return agree(*bounds(self.rounds[order], self.rounds[first]))

    def ratio(self, order: str, first: str) -> str:
        """Write the ratio of two orders, or between what it lies if the rounds disagree."""
        if self.are_sure(order, first):
            return f"{ratio(self.rounds[order], self.rounds[first]):.2f}"
        return "{:.2f} to {:.2f}".format(*bounds(self.rounds[order], self.rounds[first]))


# by length and what is read
Times = dict[int, dict[str, Read]]


def decide(costs: dict[str, Any], args: Any, of_letters: dict[str, Any], argv: list[str]) -> None:
    """Measure orders with the flags of `sublayers order`, and print times and what follows from them.

    Raises what `measure` raises.
    """
    orders = [cost["order"] for cost in costs.values()]
    times = measure(orders, args, of_letters)
    named = {f"{read} of {length}": measured for length, reads in times.items() for read, measured in reads.items()}
    if args.csv:
        write(rows(orders, named), args.csv, provenance(["order", *argv], device="cpu"))
    if args.picture:
        draw_times(
            {read: {order: found.medians[order] for order in orders} for read, found in named.items()}, args.picture
        )
    if args.json:
        medians = {length: {read: found.medians for read, found in reads.items()} for length, reads in times.items()}
        print(json.dumps(medians, indent=2))
    else:
        on = ", ".join(f"{name} {value}" for name, value in machine(torch.device("cpu")).items())
        Console().print(table(orders, times), *sentences(orders, times), on, sep="\n")


def rows(orders: list[str], times: dict[str, Read]) -> list[Row]:
    """Make a row of figures for each order."""
    made = []
    for order in orders:
        row = {"model": f"`{order}`", "order": order, "parameters": ""}
        for read, measured in times.items():
            row |= {f"{read} (ms)": f"{measured.medians[order]:.1f}"}
            if order != orders[0]:
                found = ratio(measured.rounds[order], measured.rounds[orders[0]])
                row |= {f"{read} (ms) ratio to {orders[0]}": f"{found:.2f}"}
        made.append(row)
    return made


def measure(orders: list[str], args: Any, of_letters: dict[str, Any]) -> Times:
    """Measure stacks of these orders, and plain ones with up to as many layers, for everything that may be read.

    All look back only if one of them has to, or --causal says so. Of the plain ones, those with 1, 2, 4, 8 and so on
    layers and with as many are timed, the others interpolated.

    Raises:
        ValueError: an order of letters that are not measured, widths that differ, or sizes that do not fit.
    """
    if isinstance(args.intermediate_size, list):
        raise ValueError(
            f"--decide compares with plain Transformers, whose f are alike, and not those of --intermediate_size "
            f"{' '.join(map(str, args.intermediate_size))}; give one number"
        )
    for order in orders:
        if foreign := sorted({*Order(order)} - {*MEASURED}):
            raise ValueError(f"{order!r} has {', '.join(foreign)}; --decide measures orders of {', '.join(MEASURED)}")
    layers = max(1, *(-(-len(Order(order)) // 2) for order in orders))
    # each layer adds its time, and 78 layers of the plain ones up to twelve would take minutes
    few = sorted({*(2**i for i in range(layers.bit_length())), layers})
    both = [*dict.fromkeys([*orders, *map(interleaved, few)])]
    sizes = {
        "hidden_size": args.hidden_size,
        "intermediate_size": args.intermediate_size or 4 * args.hidden_size,
        "num_attention_heads": args.heads,
        "num_key_value_heads": args.key_value_heads,
        "head_dim": args.head_dim,
        "qk_norm": args.qk_norm,
        "attention_output_gate": args.attention_output_gate,
        "gated_feed_forward": args.gated,
        "norm_type": "rms" if args.rms else "layer",
        "max_position_embeddings": 2 * max(args.lengths),
        **dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias"), not args.no_bias),
        **({"position_embedding_type": "rotary"} if args.rotary else {}),
    }
    # only their sizes are used, and what letters need or may have
    letters = Order(Order("".join(["s", *orders])).alphabet.replace("m", ""))
    given = vars(args) | of_letters
    sizes |= {name: given[name] for kind in letters.kinds for name in [*kind.fields, *kind.options] if name in given}
    decoder = SandwichLMConfig(sublayer_order=str(letters), **sizes)
    # in a mask of one that looks both ways, nothing hides later tokens
    looks_back = args.causal or any("bidirectional" not in kind.stacks for kind in letters.kinds)
    encoder = decoder if looks_back else PARBertConfig(sublayer_order=str(letters), tail_query=args.tail_query, **sizes)
    seconds = args.seconds / (len(args.lengths) * len(READS))
    print(
        f"timing {len(both)} orders for about {args.seconds} s; slow ones, of which {FEWEST} rounds take longer, "
        "for as long as these take",
        file=sys.stderr,
    )
    times: Times = {}
    for length in args.lengths:
        measured = time_stacks(encoder, both, length, [*READS.values()][:-1], args.rows, seconds)
        generated = time_stacks(decoder, both, length, ["next"], args.rows, seconds)
        times[length] = {}
        for name, read in READS.items():
            rounds = {order: (measured[order] | generated[order])[read] for order in both}
            found = {order: median(each) for order, each in rounds.items()}
            between = np.interp(range(1, layers + 1), few, [found[interleaved(number)] for number in few]).tolist()
            medians = dict(zip(map(interleaved, range(1, layers + 1)), between, strict=True)) | found
            times[length][name] = Read(rounds, medians)
    return times


def is_plain(order: str) -> bool:
    """Say whether an order is that of a plain Transformer."""
    layers = Order(order).counts["s"]
    return layers > 0 and order == interleaved(layers)


def plain_for(order: str, times: dict[str, float]) -> str | None:
    """Find the plain Transformer with most layers that takes no longer than an order, if there is one."""
    affordable = [each for each in times if is_plain(each) and times[each] <= times[order]]
    return max(affordable, key=lambda each: Order(each).counts["s"], default=None)


def table(orders: list[str], times: Times) -> Table:
    """Draw the times: a row for each length and what is read there, a column for each order."""
    drawn = Table("", *orders, caption=CAPTION, caption_justify="left")
    for length, reads in times.items():
        for read, measured in reads.items():
            took = measured.medians
            cells = [f"{took[orders[0]]:,.1f}"]
            for order in orders[1:]:
                found = measured.ratio(order, orders[0])
                cells.append(f"{took[order]:,.1f} ({found}, {plain_for(order, took) or 'none'})")
            drawn.add_row(f"{read} of {length}", *cells)
        drawn.add_section()
    return drawn


def sentences(orders: list[str], times: Times) -> Iterator[str]:
    """Say for each length and what is read there which order is the fastest, or that none is worth it.

    Nothing is said where rounds disagree on one of the orders.
    """
    first, *others = orders
    others = [order for order in others if not is_plain(order)]
    for length, reads in times.items():
        for read, measured in reads.items() if others else ():
            took, best = measured.medians, min(others, key=lambda order: measured.medians[order])
            found, plain = measured.ratio(best, first), plain_for(best, took)
            if unsure := [order for order in others if not measured.are_sure(order, first)]:
                found = measured.ratio(unsure[0], first)
                yield f"{read} of {length}: rounds disagree, {unsure[0]} takes {found} of {first}; measure it again."
            elif ratio(measured.rounds[best], measured.rounds[first]) > WORTH_IT:
                yield f"{read} of {length}: nothing here is faster than {first}, so take that one."
            elif plain is None:
                yield f"{read} of {length}: {best} takes {found} of {first}, less than any plain Transformer."
            else:
                yield f"{read} of {length}: {best} takes {found} of {first}, as long as the plain {plain}."
