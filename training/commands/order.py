"""`sublayers order`: draw orders and compare what they cost."""

import json
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, make_dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sublayers.configuration.alphabet import ALPHABET
from sublayers.configuration.letters.letter import Sizes, field_type, option_type, remedy
from sublayers.configuration.order import Order, compact
from sublayers.configuration.sublayer_cost import cache_bytes, flops, memory_bytes, parameters, read_positions
from sublayers.training.flags import flag, number, parse_flags
from sublayers.training.folders import refuse_to_replace

CAPTION = (
    "Positions read: every in language modelling and question answering, 15 % in masked-language-model training, one "
    "in classification. A prompt reads one and fills the cache for all; the next token reads it. With a memory, the "
    "length is that of a segment after it."
)
LENGTHS, LONG = [128, 512, 2048], [2**10, 2**12, 2**14, 2**16, 2**17]
USAGE = "sublayers order ORDER [ORDER ...] [--name value ...]"


@dataclass
class OrderArguments:
    """Flags of `sublayers order`."""

    orders: list[str] = flag("such as 's6(sf)10f6' or 'sandwich(16,6)'", MISSING, positional=True, metavar="ORDER")
    hidden_size: int = number("width", 1024)
    intermediate_size: int | list[int] | None = flag(
        "one number, or one for each f, also as tapered(8, 1024); default: 4 * hidden"
    )
    lengths: list[int] | None = number("tokens of a sequence; default: 128 512 2048, with --generation 1024 to 131072")
    source_length: int | None = number("encoder tokens, default: length")
    memory_length: int | None = number("tokens that Transformer-XL remembers")
    bytes_per_number: int = number("in cache and memory", 2)
    kernel_size: int = number("kernel size of convolutions", 31)
    heads: int = number("attention heads, and kernels of a convolution", 16)
    key_value_heads: int | None = number("default: all heads")
    head_dim: int | None = number("default: hidden / heads")
    attention_window: int = number("tokens that local attention sees", 128)
    causal: bool = flag("local attention looks back only, as in a decoder", False)
    qk_norm: bool = flag("queries and keys are normalised", False)
    attention_output_gate: bool = flag("attention has a gate", False)
    tail_query: Literal["first", "mean"] = flag("the one position read is a token, or the mean", "first")
    rotary: bool = flag("positions are rotary", False)
    gated: bool = flag("feed-forward sublayers have a gate", False)
    rms: bool = flag("norms are RMS norms", False)
    no_bias: bool = flag("no map has a bias", False)
    generation: bool = flag("a table of what a prompt, the next token and the cache cost", False)
    decide: bool = flag(
        "measure how long each order takes on this machine, and which plain Transformer takes as long", False
    )
    rows: int = number("rows of a batch, with --decide", 1)
    seconds: int = number("for which --decide measures, about", 40)
    csv: Path | None = flag("a new file for what --decide measures, a row for each order")
    json: bool = flag("print the numbers as JSON", False)
    picture: Path | None = flag("draw the orders, or what --decide measures, into a new .svg, .png or .pdf file")


# what letters need or may have beside these
OF_LETTERS: list[Any] = [
    (name, field_type(declared) | None, (flag if isinstance(declared, tuple) else number)(f"of sublayers {letter}"))
    for letter, kind in ALPHABET.items()
    for name, declared in kind.fields.items()
    if name not in OrderArguments.__dataclass_fields__
]
OF_LETTERS += [
    (name, option_type(default), (flag if isinstance(default, bool) else number)(f"of sublayers {letter}", default))
    for letter, kind in ALPHABET.items()
    for name, default in kind.options.items()
]
LetterArguments: Any = make_dataclass("LetterArguments", OF_LETTERS, namespace={"__module__": __name__})


def main(argv: list[str]) -> None:
    """Draw the orders and compare their costs in one table, or print the same numbers as JSON.

    Raises:
        FileExistsError: the file for the picture, or for what is measured, exists.
        ValueError: bad flags, or a bad order, with a line that points at the character.
    """
    flags = [OrderArguments, LetterArguments]
    args, of_letters = parse_flags(argv, flags, USAGE, description="Draw orders and compare what they cost.")
    args.lengths = args.lengths or (LONG if args.generation else LENGTHS)
    refuse_to_replace(args.picture, args.csv)
    if args.heads % (key_value_heads := args.key_value_heads or args.heads):
        raise ValueError(f"--heads={args.heads} is not a multiple of --key_value_heads={key_value_heads}")
    orders = {given: compact(given) for given in args.orders}
    costs = {given: cost(order, args, vars(of_letters)) for given, order in orders.items()}
    if args.decide:
        # this import takes seconds, for which drawings do not wait
        from sublayers.training.metrics.order_decision import decide

        decide(costs, args, vars(of_letters), argv)
        return
    if args.picture:
        # matplotlib is in the extra `train`, without which the rest of this command works
        from sublayers.training.metrics.pictures import draw_orders

        rows = [(given if given == order else f"{given} = {order}", order) for given, order in orders.items()]
        draw_orders(rows, args.picture)
    if args.json:
        print(json.dumps(costs, indent=2))
        return
    console = Console()
    for each in costs.values():
        draw(each["order"], console)
    console.print(generation_table(costs) if args.generation else table(costs))


def cost(order: str, args: OrderArguments, letter_fields: dict[str, Any]) -> dict[str, Any]:
    """Compute what an order costs with flags of `sublayers order`, by names, lengths and what is read.

    Raises:
        ValueError: a letter needs something that is not given.
    """
    whole = Order(order)
    for letter, kind in zip(whole, whole.kinds, strict=True):
        for name, declared in kind.fields.items():
            if name in letter_fields and letter_fields[name] is None:
                raise ValueError(f"sublayers {letter} need --{name}; give {remedy(declared)}")
    hidden, lengths = args.hidden_size, args.lengths or LENGTHS
    intermediate = args.intermediate_size or 4 * hidden
    more: dict[str, Any] = {
        "kernel_size": args.kernel_size,
        "num_attention_heads": args.heads,
        "memory_length": args.memory_length,
        "num_key_value_heads": args.key_value_heads,
        "head_dim": args.head_dim,
        "attention_window": args.attention_window,
        "letter_fields": letter_fields,
        "is_causal": args.causal,
        "qk_norm": args.qk_norm,
        "attention_output_gate": args.attention_output_gate,
        "folds_attention": args.key_value_heads in (None, args.heads) and not (args.rotary or args.qk_norm),
        "gated_feed_forward": args.gated,
        "norm_vectors": 1 if args.rms else 2,
        **dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias"), not args.no_bias),
    }

    for kind in {*whole.kinds}:
        kind.check(Sizes(hidden, **more))

    def count(length: int, read: int, **how: Any) -> int:
        return flops(order, hidden, intermediate, length, read, args.source_length, **how, **more)

    memory: dict[str, Any] = {}
    if args.memory_length:
        memory["memory_bytes"] = memory_bytes(order, hidden, args.memory_length, args.bytes_per_number)
    return {
        "order": order,
        "sublayers": len(whole),
        **whole.counts,
        "parameters": parameters(order, hidden, intermediate, **more),
        **memory,
        "cache_bytes": {
            length: cache_bytes(order, hidden, length, args.source_length, args.bytes_per_number, **more)
            for length in lengths
        },
        "flops": {
            length: {
                **{name: count(length, read) for name, read in read_positions(length).items()},
                "one": count(length, 1, takes_mean=args.tail_query == "mean"),
                "prompt": count(length, 1, keeps_cache=True),
                "next": count(1, 1, keeps_cache=True, cached=length),
            }
            for length in lengths
        },
    }


def draw(order: str, console: Console) -> None:
    """Draw an order as a row of boxes, or several where the terminal is narrow."""
    console.print(Text(order, style="bold"))
    boxes = [*zip(Order(order).kinds, Order(order).labels, strict=True)]
    width = max(len(label) for _, label in boxes)
    # a box has a cell on each side, and is one apart from the next
    in_a_row = max(console.width // (width + 3), 1)
    for start in range(0, len(boxes), in_a_row):
        row = Text(no_wrap=True)
        for kind, label in boxes[start : start + in_a_row]:
            # dark letters on light boxes are readable on light and dark terminals
            row.append(f" {label:{width}} ", f"bold black on {kind.colour}").append(" ")
        console.print(row)
    console.print()


def table(costs: dict[str, dict[str, Any]]) -> Table:
    """Make a table of the costs of orders, with ratios to the first one."""
    columns = list(costs.values())
    first = columns[0]
    drawn = Table(caption=CAPTION, caption_justify="left")
    drawn.add_column("", no_wrap=True)
    for given in costs:
        drawn.add_column(Text(given), justify="right", overflow="fold")

    def add(label: str, values: Sequence[float], unit: float) -> None:
        first, *others = values
        shares = ["", *(f" ({value / first:.2f})" if first else "" for value in others)]
        drawn.add_row(label, *(f"{value / unit:,.2f}{share}" for value, share in zip(values, shares, strict=True)))

    names = {letter: row.name for letter, row in ALPHABET.items()}
    for name, label in {"order": "order", "sublayers": "sublayers", **names}.items():
        drawn.add_row(label, *(str(cost[name]) for cost in columns))
    add("parameters, M", [cost["parameters"] for cost in columns], 1e6)
    if "memory_bytes" in first:
        add("memory, MiB", [cost["memory_bytes"] for cost in columns], 2**20)
    for length in first["cache_bytes"]:
        add(f"KV cache at {length}, MiB", [cost["cache_bytes"][length] for cost in columns], 2**20)
    for length, by_positions in first["flops"].items():
        drawn.add_section()
        for positions in by_positions:
            label = f"GFLOP at {length}, {positions}"
            add(label, [cost["flops"][length][positions] for cost in columns], 1e9)
    return drawn


def generation_table(costs: dict[str, dict[str, Any]]) -> Table:
    """Make a table of what orders cost to generate, with a row for each length of the prompt."""
    drawn = Table("", "tokens", "prompt, GFLOP", "next token, GFLOP", "cache, MiB")
    for column in drawn.columns[1:]:
        column.justify = "right"
    for given, cost in costs.items():
        drawn.add_section()
        for length, counted in cost["flops"].items():
            numbers = counted["prompt"] / 1e9, counted["next"] / 1e9, cost["cache_bytes"][length] / 2**20
            name = Text(given) if length == next(iter(cost["flops"])) else ""
            drawn.add_row(name, f"{length:,}", *(f"{number:,.3f}" for number in numbers))
    return drawn
