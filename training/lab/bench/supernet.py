"""What `sublayers bench supernet` measures: steps of a super-network beside that of a plain model."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sublayers.configuration.configuration_sandwich_lm import SandwichLMConfig
from sublayers.configuration.order import Order, interleaved
from sublayers.modeling.modeling_sandwich_lm import SandwichLMForCausalLM
from sublayers.training.lab.bench import contenders
from sublayers.training.lab.bench.flags import BenchFlags, size
from sublayers.training.lab.search.settings import Settings
from sublayers.training.lab.search.supernet import Architecture, mix
from sublayers.training.metrics.timing import Call, Comparison, Task

REMARK = (
    "Ratios are to the plain model. A super-network runs both candidates of every layer, a plain model one of them. An "
    "architecture step trains nothing else; the plain model's is a train step there, too."
)
FIELD, LETTERS = "sublayer_order", "sf"

ORDERS = "interleaved"


@dataclass(kw_only=True)
class Flags(BenchFlags):
    """Flags of `sublayers bench supernet`."""

    layers: int = size("layers", 8)
    hidden_size: int = size("hidden_size", 256)
    heads: int = size("heads", 4)
    vocab_size: int = size("vocab_size", 8192)
    batch_size: int = size("batch_size", 8)
    length: int = size("length", 128)
    repeats: int = size("repeats", 7)


def default_orders(args: Flags) -> list[str]:
    """The plain Transformer."""
    return [interleaved(args.layers)]


def language_model(order: str, args: Flags) -> SandwichLMForCausalLM:
    """Build a language model without dropout."""
    torch.manual_seed(0)
    options = contenders.sizes(args, max_position_embeddings=args.length, final_norm=True)
    options |= {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    return SandwichLMForCausalLM(SandwichLMConfig(sublayer_order=order, **options))


def comparison(args: Flags) -> Comparison:
    """Compare each order with the super-network of as many layers as it has sublayers."""
    ids = torch.randint(args.vocab_size, (args.batch_size, args.length), device=args.device)
    # the order of each model, and the plain one that a super-network is compared with
    orders, peers = dict[str, str](), dict[str, list[str]]()
    for order in args.orders:
        supernet = f"supernet of {len(Order(order))}"
        orders |= {order: order, supernet: interleaved(len(Order(order)))}
        peers[supernet] = [order]
    models = contenders.place({name: language_model(order, args) for name, order in orders.items()}, args)
    losses: dict[str, Call] = {name: partial(_loss, model, ids) for name, model in models.items()}
    steps = contenders.train_steps(models, losses)
    searches = dict(steps)
    totals = {"parameters": {name: model.num_parameters() for name, model in models.items()}}
    for name, (plain,) in peers.items():
        mixture = mix(models[name], FIELD, LETTERS)
        architecture = Architecture(len(Order(plain)), Settings(FIELD, LETTERS), ids.device)
        mixture.weights = architecture.probabilities.detach()
        steps[name] = partial(_model_step, steps[name], mixture, architecture)
        searches[name] = partial(_architecture_step, losses[name], mixture, architecture)
    work = {name: 3 * contenders.gigaflops(loss) for name, loss in losses.items()}
    tasks = [Task("train step", "GFLOP", steps, work), Task("architecture step", "GFLOP", searches, work)]
    return Comparison(tasks, peers, totals, REMARK)


def _loss(model: SandwichLMForCausalLM, ids: torch.Tensor) -> Any:
    return model(input_ids=ids, labels=ids).loss


def _model_step(step: Call, mixture: Any, architecture: Architecture) -> None:
    with torch.no_grad():
        mixture.weights = architecture.draw(1.0)
    step()


def _architecture_step(loss: Call, mixture: Any, architecture: Architecture) -> None:
    mixture.weights = architecture.draw(1.0)
    architecture.step(loss())
