"""`sublayers order`: draw orders and compare what they cost."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sublayers.configuration.alphabet import ALPHABET
from sublayers.configuration.sublayer_cost import cache_bytes, flops, memory_bytes, parameters, read_positions
from sublayers.configuration.sublayer_order import compact, counts, expand
from sublayers.training.flags import positive
from sublayers.training.folders import refuse_to_replace

CAPTION = (
    "Positions read: every in language modelling and question answering, 15 % in masked-language-model training, one "
    "in classification. A prompt reads one and fills the cache for all. With a memory, the length is that of a segment "
    "behind it."
)


def main(argv: list[str]) -> None:
    """Draw the orders and compare their costs in one table, or print the same numbers as JSON.

    Raises:
        FileExistsError: the file for the picture, or for what is measured, exists.
        SystemExit: with status 2 for a bad order, after a message on standard error that points at the character.
    """
    parser = argparse.ArgumentParser(prog="sublayers order", description="Draw orders and compare what they cost.")
    parser.add_argument("orders", nargs="+", metavar="ORDER", help="such as 's6(sf)10f6' or 'sandwich(16,6)'")
    parser.add_argument("--hidden_size", type=positive, default=1024)
    parser.add_argument("--intermediate_size", type=positive, help="default: 4 * hidden")
    parser.add_argument("--lengths", type=positive, nargs="+", default=[128, 512, 2048], help="tokens of a sequence")
    parser.add_argument("--source_length", type=positive, help="encoder tokens, default: length")
    parser.add_argument("--memory_length", type=positive, help="tokens that Transformer-XL remembers")
    parser.add_argument("--bytes_per_number", type=positive, default=2, help="in cache and memory")
    parser.add_argument("--kernel_size", type=positive, default=31, help="kernel size of convolutions")
    parser.add_argument("--heads", type=positive, default=16, help="attention heads, and kernels of a convolution")
    parser.add_argument("--key_value_heads", type=positive, help="default: all heads")
    parser.add_argument("--head_dim", type=positive, help="default: hidden / heads")
    parser.add_argument("--attention_window", type=positive, default=128, help="tokens that local attention sees")
    parser.add_argument("--causal", action="store_true", help="local attention looks back only, as in a decoder")
    parser.add_argument("--qk_norm", action="store_true", help="queries and keys are normalised")
    parser.add_argument(
        "--tail_query", choices=["first", "mean"], default="first", help="the one position read is a token, or the mean"
    )
    parser.add_argument("--rotary", action="store_true", help="positions are rotary")
    parser.add_argument("--gated", action="store_true", help="feed-forward sublayers have a gate")
    parser.add_argument("--rms", action="store_true", help="norms are RMS norms")
    parser.add_argument("--no_bias", action="store_true", help="no map has a bias")
    parser.add_argument(
        "--decide",
        action="store_true",
        help="measure how long each order takes on this machine, and which plain Transformer takes as long",
    )
    parser.add_argument("--rows", type=positive, default=1, help="rows of a batch, with --decide (1)")
    parser.add_argument("--seconds", type=positive, default=40, help="for which --decide measures, about (default: 40)")
    parser.add_argument("--csv", type=Path, help="a new file for what --decide measures, a row for each order")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument(
        "--picture", type=Path, help="draw the orders, or what --decide measures, into a new .svg, .png or .pdf file"
    )
    args = parser.parse_args(argv)
    refuse_to_replace(args.picture, args.csv)
    if args.heads % (key_value_heads := args.key_value_heads or args.heads):
        parser.error(f"--heads={args.heads} is not a multiple of --key_value_heads={key_value_heads}")
    try:
        orders = {given: compact(given) for given in args.orders}
        costs = {given: _cost(order, args) for given, order in orders.items()}
    except ValueError as error:
        parser.error(str(error))
    if args.decide:
        # this import takes seconds, for which drawings do not wait
        from sublayers.training.commands.decide import decide

        decide(costs, args, argv)
        return
    if args.picture:
        # matplotlib is in the extra `train`, without which the rest of this command works
        from sublayers.training.metrics.pictures import draw_orders

        rows = [
            (given if given == cost["order"] else f"{given} = {cost['order']}", cost["order"])
            for given, cost in costs.items()
        ]
        draw_orders(rows, args.picture)
    if args.json:
        print(json.dumps(costs, indent=2))
        return
    console = Console()
    for cost in costs.values():
        _draw(cost["order"], console)
    console.print(_table(costs))


def _cost(order: str, args: argparse.Namespace) -> dict[str, Any]:
    hidden = args.hidden_size
    intermediate = args.intermediate_size or 4 * hidden
    more = {
        "kernel_size": args.kernel_size,
        "num_attention_heads": args.heads,
        "memory_length": args.memory_length,
        "num_key_value_heads": args.key_value_heads,
        "head_dim": args.head_dim,
        "attention_window": args.attention_window,
        "is_causal": args.causal,
        "qk_norm": args.qk_norm,
        "folds_attention": args.key_value_heads in (None, args.heads) and not (args.rotary or args.qk_norm),
        "gated_feed_forward": args.gated,
        "norm_vectors": 1 if args.rms else 2,
        **dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias"), not args.no_bias),
    }

    def count(length: int, read: int, **how: bool) -> int:
        return flops(order, hidden, intermediate, length, read, args.source_length, **how, **more)

    memory: dict[str, Any] = {}
    if args.memory_length:
        memory["memory_bytes"] = memory_bytes(order, hidden, args.memory_length, args.bytes_per_number)
    return {
        "order": order,
        "sublayers": len(expand(order)),
        **counts(order),
        "parameters": parameters(order, hidden, intermediate, **more),
        **memory,
        "cache_bytes": {
            length: cache_bytes(order, hidden, length, args.source_length, args.bytes_per_number, **more)
            for length in args.lengths
        },
        "flops": {
            length: {
                **{name: count(length, read) for name, read in read_positions(length).items()},
                "one": count(length, 1, takes_mean=args.tail_query == "mean"),
                "prompt": count(length, 1, keeps_cache=True),
            }
            for length in args.lengths
        },
    }


def _draw(order: str, console: Console) -> None:
    console.print(Text(order, style="bold"))
    letters = expand(order)
    # a box is three cells wide and one apart from the next
    in_a_row = max(console.width // 4, 1)
    for start in range(0, len(letters), in_a_row):
        row = Text(no_wrap=True)
        for letter in letters[start : start + in_a_row]:
            # dark letters on light boxes are readable on light and dark terminals
            row.append(f" {letter} ", f"bold black on {ALPHABET[letter].colour}").append(" ")
        console.print(row)
    console.print()


def _table(costs: dict[str, dict[str, Any]]) -> Table:
    columns = list(costs.values())
    first = columns[0]
    table = Table(caption=CAPTION, caption_justify="left")
    table.add_column("", no_wrap=True)
    for given in costs:
        table.add_column(Text(given), justify="right", overflow="fold")

    def add(label: str, values: Sequence[float], unit: float) -> None:
        first, *others = values
        shares = ["", *(f" ({value / first:.2f})" if first else "" for value in others)]
        table.add_row(label, *(f"{value / unit:,.2f}{share}" for value, share in zip(values, shares, strict=True)))

    names = {letter: row.name for letter, row in ALPHABET.items()}
    for name, label in {"order": "order", "sublayers": "sublayers", **names}.items():
        table.add_row(label, *(str(cost[name]) for cost in columns))
    add("parameters, M", [cost["parameters"] for cost in columns], 1e6)
    if "memory_bytes" in first:
        add("memory, MiB", [cost["memory_bytes"] for cost in columns], 2**20)
    for length in first["cache_bytes"]:
        add(f"KV cache at {length}, MiB", [cost["cache_bytes"][length] for cost in columns], 2**20)
    for length, by_positions in first["flops"].items():
        table.add_section()
        for positions in by_positions:
            label = f"GFLOP at {length}, {positions}"
            add(label, [cost["flops"][length][positions] for cost in columns], 1e9)
    return table
