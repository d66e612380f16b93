"""What `sublayers bench spans` measures: attention of learned spans, which costs what its longest head still reads."""

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from sublayers.configuration.configuration_sandwich_char_lm import SandwichCharLMConfig
from sublayers.configuration.sublayer_order import counts
from sublayers.modeling.modeling_sandwich_char_lm import SandwichCharLMModel
from sublayers.training.flags import positive
from sublayers.training.metrics.timing import Call, Comparison, Task, train_step

REMARK = "Ratios are to the longest span. Nothing but the sublayers and an embedding of characters is measured."


SIZES = {
    "hidden_size": (512, "width; feed-forward sublayers are four times as wide"),
    "heads": (8, "attention heads"),
    "batch_size": (1, "texts"),
    "length": (512, "characters of a segment behind a full memory"),
    "repeats": (7, "rounds, after one to warm up"),
}
# measured unless --orders says otherwise
ORDERS = "one attention sublayer of the sandwich character model"
# what other benches do not have
FLAGS: dict[str, dict[str, Any]] = {
    "--spans": {
        "type": positive,
        "nargs": "+",
        "default": [64, 128, 256, 512, 1024],
        "help": "characters that are read",
    }
}


def default_orders(args: argparse.Namespace) -> list[str]:
    """One attention sublayer alone."""
    return ["s"]


def character_models(args: argparse.Namespace) -> dict[str, SandwichCharLMModel]:
    """Build models whose heads have learned each of the spans; they differ in nothing else.

    Raises:
        ValueError: a span that is longer than the longest, or too short for the ramp at its end.
    """
    longest, models = max(args.spans), {}
    for order in args.orders:
        for span in args.spans:
            config = SandwichCharLMConfig(
                sublayer_order=order,
                hidden_size=args.hidden_size,
                intermediate_size=4 * args.hidden_size,
                num_attention_heads=args.heads,
                attention_span=longest,
                attention_dropout=0.0,
                activation_dropout=0.0,
            )
            if span < config.span_ramp_size:
                raise ValueError(
                    f"--spans {span} is shorter than the ramp at its end; give {config.span_ramp_size} or more"
                )
            torch.manual_seed(0)
            model = SandwichCharLMModel(config)
            for attention in model.span_attentions():
                learned: Any = attention.span
                # the ramp is read, too
                learned.data.fill_((span - config.span_ramp_size) / longest)
            models[f"{order} {span}"] = model.to(args.device, getattr(torch, args.dtype))
    return models


def gigaflops(order: str, span: int, args: argparse.Namespace) -> float:
    """Count the products of matrices in a segment behind a full memory."""
    hidden, length, numbers = args.hidden_size, args.length, counts(order)
    keys = length + span
    # queries and output, keys and values; content and mix, distances
    attention = 2 * (length + keys) * hidden + 2 * length * keys + length * span
    products = numbers["s"] * hidden * attention + numbers["f"] * 8 * length * hidden**2
    return 2 * args.batch_size * products / 1e9


def comparison(args: argparse.Namespace) -> Comparison:
    """Compare the sublayers of an order by the span that their heads have learned."""
    models = character_models(args)
    shape = (args.batch_size, args.length)
    ids = torch.randint(205, shape, device=args.device)
    past = torch.randint(205, (args.batch_size, max(args.spans)), device=args.device)
    with torch.no_grad():
        memories = {
            name: model(past, memory=model.empty_memory(args.batch_size)).memory for name, model in models.items()
        }
    work = {f"{order} {span}": gigaflops(order, span, args) for order in args.orders for span in args.spans}

    def forward(name: str) -> torch.Tensor:
        return models[name](ids, memory=memories[name]).last_hidden_state.square().mean()

    def tasks() -> Iterator[Task]:
        calls: dict[str, Call] = {name: partial(forward, name) for name in models}
        # no name here keeps the optimizers and their memory
        steps: dict[str, Call] = {name: partial(train_step(models[name]), call) for name, call in calls.items()}
        yield Task("train step", "GFLOP", steps, {name: 3 * gigas for name, gigas in work.items()})
        del steps
        for model in models.values():
            model.eval().requires_grad_(False)
        yield Task("forward", "GFLOP", calls, work)

    totals = {
        f"memory of {args.batch_size} rows (bytes)": {
            name: sum(states.nbytes for states in memory) for name, memory in memories.items()
        }
    }
    peers = {
        f"{order} {span}": [f"{order} {max(args.spans)}"] if span < max(args.spans) else []
        for order in args.orders
        for span in args.spans
    }
    return Comparison(tasks(), peers, totals, REMARK)
