"""What `sublayers bench spans` measures: attention of learned spans, which costs what its longest head still reads."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sublayers.configuration.configuration_sandwich_char_lm import SandwichCharLMConfig
from sublayers.modeling.modeling_sandwich_char_lm import SandwichCharLMModel
from sublayers.training.flags import number
from sublayers.training.lab.bench import contenders
from sublayers.training.lab.bench.flags import BenchFlags, size
from sublayers.training.metrics.timing import Call, Comparison, Task

REMARK = "Ratios are to the longest span. Nothing but the sublayers and an embedding of characters is measured."

ORDERS = "one attention sublayer of the sandwich character model"


@dataclass(kw_only=True)
class Flags(BenchFlags):
    """Flags of `sublayers bench spans`."""

    hidden_size: int = size("hidden_size", 512)
    heads: int = size("heads", 8)
    batch_size: int = size("batch_size", 1)
    length: int = size("length", 512)
    repeats: int = size("repeats", 7)
    spans: list[int] = number("characters that are read", [64, 128, 256, 512, 1024])


def default_orders(args: Flags) -> list[str]:
    """One attention sublayer alone."""
    return ["s"]


def character_models(args: Flags) -> dict[str, Any]:
    """Build models whose heads have learned each of the spans; they differ in nothing else.

    Raises:
        ValueError: a span that is longer than the longest, or too short for the ramp at its end.
    """
    longest, models = max(args.spans), dict[str, Any]()
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
            models[f"{order} {span}"] = model
    return contenders.place(models, args)


def comparison(args: Flags) -> Comparison:
    """Compare the sublayers of an order by the span that their heads have learned."""
    models, longest = character_models(args), max(args.spans)
    ids = torch.randint(205, (args.batch_size, args.length), device=args.device)
    past = torch.randint(205, (args.batch_size, longest), device=args.device)
    with torch.no_grad():
        memories = {
            name: model(past, memory=model.empty_memory(args.batch_size)).memory for name, model in models.items()
        }

    def forward(name: str) -> torch.Tensor:
        return models[name](ids, memory=memories[name]).last_hidden_state.square().mean()

    def tasks() -> Iterator[Task]:
        calls: dict[str, Call] = {name: partial(forward, name) for name in models}
        yield contenders.training("train step", models, calls)
        contenders.freeze(models)
        yield contenders.counted("forward", calls)

    kept = {name: sum(states.nbytes for states in memory) for name, memory in memories.items()}
    peers = {name: [f"{name.split()[0]} {longest}"] for name in models}
    return Comparison(tasks(), peers, {f"memory of {args.batch_size} rows (bytes)": kept}, REMARK)
