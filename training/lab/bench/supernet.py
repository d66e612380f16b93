"""What `sublayers bench supernet` measures: steps of a super-network beside that of a plain model."""

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from sublayers.configuration.configuration_sandwich_lm import SandwichLMConfig
from sublayers.configuration.sublayer_cost import flops
from sublayers.configuration.sublayer_order import expand, interleaved
from sublayers.modeling.modeling_sandwich_lm import SandwichLMForCausalLM
from sublayers.training.lab.search.settings import Settings
from sublayers.training.lab.search.supernet import Architecture, mix
from sublayers.training.metrics.timing import Call, Comparison, Task, train_step

REMARK = (
    "Ratios are to the plain model. A super-network runs both candidates of every layer, a plain model one of them. An "
    "architecture step trains nothing else; the plain model's is a train step there, too."
)
FIELD, LETTERS = "sublayer_order", "sf"


SIZES = {
    "layers": (8, "self-attention sublayers of the plain model, and as many feed-forward ones"),
    "hidden_size": (256, "width; feed-forward sublayers are four times as wide"),
    "heads": (4, "attention heads"),
    "vocab_size": (8192, "tokens in the vocabulary"),
    "batch_size": (8, "sequences of a step"),
    "length": (128, "tokens of these sequences"),
    "repeats": (7, "rounds, after one to warm up"),
}
# measured unless --orders says otherwise
ORDERS = "interleaved"
FLAGS: dict[str, dict[str, Any]] = {}


def default_orders(args: argparse.Namespace) -> list[str]:
    """The plain Transformer."""
    return [interleaved(args.layers)]


def language_model(order: str, args: argparse.Namespace) -> SandwichLMForCausalLM:
    """Build a language model without dropout."""
    torch.manual_seed(0)
    config = SandwichLMConfig(
        sublayer_order=order,
        vocab_size=args.vocab_size,
        hidden_size=args.hidden_size,
        intermediate_size=4 * args.hidden_size,
        num_attention_heads=args.heads,
        max_position_embeddings=args.length,
        final_norm=True,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
    )
    return SandwichLMForCausalLM(config).to(args.device, getattr(torch, args.dtype))


def comparison(args: argparse.Namespace) -> Comparison:
    """Compare each order with the super-network of as many layers as it has sublayers."""
    ids = torch.randint(args.vocab_size, (args.batch_size, args.length), device=args.device)
    calls: dict[str, Call] = {}
    searches: dict[str, Call] = {}
    work, peers, totals = {}, {}, {}
    for order in args.orders:
        layers = len(expand(order))
        for name, own in ((order, order), (f"supernet of {layers}", interleaved(layers))):
            model = language_model(own, args)
            loss = partial(_loss, model, ids)
            calls[name] = partial(train_step(model), loss)
            searches[name] = calls[name]
            sizes = (args.hidden_size, 4 * args.hidden_size, args.length, args.length)
            work[name] = 3 * args.batch_size * flops(own, *sizes) / 1e9
            totals[name] = model.num_parameters()
            peers[name] = [] if name == order else [order]
            if name != order:
                mixture = mix(model, FIELD, LETTERS)
                architecture = Architecture(layers, Settings(FIELD, LETTERS), ids.device)
                calls[name] = partial(_model_step, calls[name], mixture, architecture)
                searches[name] = partial(_architecture_step, loss, mixture, architecture)

    def tasks() -> Iterator[Task]:
        yield Task("train step", "GFLOP", calls, work)
        yield Task("architecture step", "GFLOP", searches, work)

    return Comparison(tasks(), peers, {"parameters": totals}, REMARK)


def _loss(model: SandwichLMForCausalLM, ids: torch.Tensor) -> Any:
    return model(input_ids=ids, labels=ids).loss


def _model_step(step: Call, mixture: Any, architecture: Architecture) -> None:
    with torch.no_grad():
        mixture.weights = architecture.draw(1.0)
    step()


def _architecture_step(loss: Call, mixture: Any, architecture: Architecture) -> None:
    mixture.weights = architecture.draw(1.0)
    architecture.step(loss())
