"""What `sublayers order --decide` measures: how long orders take for what is read, and which plain one is as slow."""

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from sublayers.configuration.configuration_par_bert import PARBertConfig
from sublayers.configuration.configuration_sandwich_lm import SandwichLMConfig
from sublayers.configuration.sublayer_order import counts, expand, interleaved
from sublayers.training.metrics.order_times import milliseconds
from sublayers.training.metrics.pictures import draw_times
from sublayers.training.metrics.timing import FEWEST
from sublayers.training.results import Row, provenance, write

# the names in `milliseconds` of what is read
READS = {"one position": "one", "15 % of the positions": "masked", "every position": "all", "the next token": "next"}
# what estimates are called
ESTIMATES = {"one": "one", "masked": "15 %", "all": "every", "next": "next token"}
# smaller differences may be noise
WORTH_IT = 0.95
CAPTION = (
    "Milliseconds of the sublayers, without embeddings and head; in brackets the ratio to the first order, and the "
    "plain Transformer with most layers that takes no longer, where most times are interpolated. "
    "The next token is generated behind the others, with a cache. Time is half of the answer: in most of our studies, "
    "fewer plain layers of equal time were as good."
)

# milliseconds by length, what is read, and order
Times = dict[int, dict[str, dict[str, float]]]


def decide(costs: dict[str, Any], args: argparse.Namespace, argv: list[str]) -> None:
    """Measure orders with the flags of `sublayers order`, and print times and what follows from them.

    The file has how their estimates compare with the times, if `costs` of the orders have them. Raises what `measure`
    raises.
    """
    orders = [cost["order"] for cost in costs.values()]
    times = measure(orders, args)
    named = {
        f"{read} of {length}": {order: measured[order] for order in orders}
        for length, reads in times.items()
        for read, measured in reads.items()
    }
    if args.csv:
        made = rows(orders, named)
        for row, cost in zip(made, costs.values(), strict=True):
            for length, by_task in cost.get("milliseconds", {}).items():
                for read in READS:
                    found = by_task[ESTIMATES[READS[read]]]["ms"] / times[length][read][row["order"]]
                    row |= {f"{read} of {length} (ms) ratio of the estimate": f"{found:.2f}"}
        write(made, args.csv, provenance(["order", *argv]))
    if args.picture:
        draw_times(named, args.picture)
    if args.json:
        print(json.dumps(times, indent=2))
    else:
        Console().print(table(orders, times), *sentences(orders, times), sep="\n")


def rows(orders: list[str], times: dict[str, dict[str, float]]) -> list[Row]:
    """Make a row of figures for each order."""
    made = []
    for order in orders:
        row = {"model": f"`{order}`", "order": order, "parameters": ""}
        for read, measured in times.items():
            row |= {f"{read} (ms)": f"{measured[order]:.1f}"}
            if order != orders[0]:
                row |= {f"{read} (ms) ratio to {orders[0]}": f"{measured[order] / measured[orders[0]]:.2f}"}
        made.append(row)
    return made


def measure(orders: list[str], args: argparse.Namespace) -> Times:
    """Measure stacks of these orders, and plain ones with up to as many layers, for everything that may be read.

    Of the plain ones, those with 1, 2, 4, 8 and so on layers and with as many are timed, the others interpolated.

    Raises:
        ValueError: an order of other letters than s, w, m and f.
    """
    for order in orders:
        if foreign := sorted({*expand(order)} - {*"swfm"}):
            raise ValueError(f"{order!r} has {', '.join(foreign)}; --decide measures orders of s, w, m and f")
    layers = max(1, *(-(-len(expand(order)) // 2) for order in orders))
    # each layer adds its time, and 78 layers of the plain ones up to twelve would take minutes
    few = sorted({*(2**i for i in range(layers.bit_length())), layers})
    both = [*dict.fromkeys([*orders, *map(interleaved, few)])]
    sizes = {
        "hidden_size": args.hidden_size,
        "intermediate_size": args.intermediate_size or 4 * args.hidden_size,
        "num_attention_heads": args.heads,
        "num_key_value_heads": args.key_value_heads,
        "head_dim": args.head_dim,
        "attention_window": args.attention_window if any(counts(order)["w"] for order in orders) else None,
        "qk_norm": args.qk_norm,
        "gated_feed_forward": args.gated,
        "norm_type": "rms" if args.rms else "layer",
        "max_position_embeddings": 2 * max(args.lengths),
        **dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias"), not args.no_bias),
        **({"position_embedding_type": "rotary"} if args.rotary else {}),
    }
    # only their sizes are used
    order = "sw" if sizes["attention_window"] else "s"
    encoder = PARBertConfig(sublayer_order=order, tail_query=args.tail_query, **sizes)
    decoder = SandwichLMConfig(sublayer_order=order, **sizes)
    seconds = args.seconds / (len(args.lengths) * len(READS))
    print(
        f"timing {len(both)} orders for about {args.seconds} s; slow ones, of which {FEWEST} rounds take longer, "
        "for as long as these take",
        file=sys.stderr,
    )
    times: Times = {}
    for length in args.lengths:
        measured = milliseconds(encoder, both, length, [*READS.values()][:-1], args.rows, seconds)
        generated = milliseconds(decoder, both, length, ["next"], args.rows, seconds)
        times[length] = {}
        for name, read in READS.items():
            found = {order: (measured[order] | generated[order])[read] for order in both}
            between = np.interp(range(1, layers + 1), few, [found[interleaved(number)] for number in few]).tolist()
            times[length][name] = dict(zip(map(interleaved, range(1, layers + 1)), between, strict=True)) | found
    return times


def is_plain(order: str) -> bool:
    """Say whether an order is that of a plain Transformer."""
    layers = counts(order)["s"]
    return layers > 0 and order == interleaved(layers)


def plain_for(order: str, times: dict[str, float]) -> str | None:
    """Find the plain Transformer with most layers that takes no longer than an order, if there is one."""
    affordable = [each for each in times if is_plain(each) and times[each] <= times[order]]
    return max(affordable, key=lambda each: counts(each)["s"], default=None)


def table(orders: list[str], times: Times) -> Table:
    """Draw the times: a row for each length and what is read there, a column for each order."""
    drawn = Table("", *orders, caption=CAPTION, caption_justify="left")
    for length, reads in times.items():
        for read, measured in reads.items():
            cells = [f"{measured[orders[0]]:,.1f}"]
            for order in orders[1:]:
                ratio = f"{measured[order] / measured[orders[0]]:.2f}"
                cells.append(f"{measured[order]:,.1f} ({ratio}, {plain_for(order, measured) or 'none'})")
            drawn.add_row(f"{read} of {length}", *cells)
        drawn.add_section()
    return drawn


def sentences(orders: list[str], times: Times) -> Iterator[str]:
    """Say for each length and what is read there which order is the fastest, or that none is worth it."""
    first, *others = orders
    others = [order for order in others if not is_plain(order)]
    for length, reads in times.items():
        for read, measured in reads.items() if others else ():
            best = min(others, key=lambda order: measured[order])
            ratio, plain = measured[best] / measured[first], plain_for(best, measured)
            if ratio > WORTH_IT:
                yield f"{read} of {length}: nothing here is faster than {first}, so take that one."
            elif plain is None:
                yield f"{read} of {length}: {best} takes {ratio:.2f} of {first}, less than any plain Transformer."
            else:
                yield f"{read} of {length}: {best} takes {ratio:.2f} of {first}, as long as the plain {plain}."
