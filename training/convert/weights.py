"""What conversions of all kinds of checkpoints share."""

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from sublayers.configuration.sublayer_order import expand
from sublayers.hub.loading import never_running_code

Weights = dict[str, torch.Tensor]
Model = TypeVar("Model", bound=PreTrainedModel)
# the ends of the names of fairseq's buffers, which hold no information
BUFFERS = ("version", "_float_tensor")
COPIED: ContextVar[Weights | None] = ContextVar("COPIED", default=None)


class Coverage(NamedTuple):
    """What a conversion could not match: indices of new sublayers, and how many of each kind were left over."""

    new: list[int]
    unused: dict[str, int]


class State(dict[str, torch.Tensor]):
    """Weights by their old names, from which a conversion takes one after the other."""

    def __init__(self, weights: Mapping[str, torch.Tensor]):
        super().__init__((name, tensor) for name, tensor in weights.items() if not name.endswith(BUFFERS))

    def take_tensor(self, name: str) -> torch.Tensor:
        """Take a single tensor.

        Raises:
            ValueError: there is none.
        """
        if name not in self:
            raise ValueError(f"the checkpoint has no {name}; is it of another kind or version?")
        return self.pop(name)

    def take(self, old: str, new: str) -> Weights:
        """Take the weight and bias of a linear map or norm under its new name.

        Raises:
            ValueError: there is none.
        """
        names = {f"{old}.{kind}": f"{new}.{kind}" for kind in ("weight", "bias")}
        if missing := names.keys() - self.keys():
            raise ValueError(f"the checkpoint has no {sorted(missing)}; is it of another kind or version?")
        return {new_name: self.pop(old_name) for old_name, new_name in names.items()}

    def take_all(self, names: dict[str, str]) -> Weights:
        """Take several of them, given as old and new names."""
        return {name: tensor for old, new in names.items() for name, tensor in self.take(old, new).items()}

    def refuse_rest(self, kind: str) -> None:
        """Check that nothing is left.

        Raises:
            ValueError: something is.
        """
        if self:
            raise ValueError(f"no place for {sorted(self)} in {kind}")


def place(order: str, sublayers: dict[str, list[Weights]], stack: str = "model.layers") -> tuple[Weights, Coverage]:
    """Give the i-th sublayer of each kind in an order the i-th weights of that kind, under its name in the stack."""
    remaining = {letter: iter(weights) for letter, weights in sublayers.items()}
    state: Weights = {}
    new = []
    for i, letter in enumerate(expand(order)):
        if weights := next(remaining.get(letter, iter(())), None):
            state |= {f"{stack}.{i}.{name}": tensor for name, tensor in weights.items()}
        else:
            new.append(i)
    return state, Coverage(new, {letter: len(list(rest)) for letter, rest in remaining.items()})


def place_whole(order: str, sublayers: dict[str, list[Weights]], stack: str = "model.layers") -> Weights:
    """Place the sublayers of an order that has all those of its source, and no other.

    Raises:
        ValueError: the order has more or fewer sublayers of a kind than there are weights.
    """
    state, coverage = place(order, sublayers, stack)
    if coverage.new or any(coverage.unused.values()):
        found = ", ".join(f"{len(weights)} {letter}" for letter, weights in sublayers.items())
        raise ValueError(f"the order {order!r} does not fit a checkpoint with {found}")
    return state


@contextmanager
def record_copies() -> Iterator[Weights]:
    """Collect what `fill` copies in this context: tensors of the source or views of them, by parameter."""
    copied: Weights = {}
    token = COPIED.set(copied)
    try:
        yield copied
    finally:
        COPIED.reset(token)


def fill(model: Model, state: Weights) -> Model:
    """Give a model its weights; parameters that are not named keep those that they have.

    Raises:
        ValueError: weights that the model has no place for.
    """
    if model.base_model is model:
        # a body by itself has no prefix
        state = {name.removeprefix("model."): tensor for name, tensor in state.items()}
    own = model.state_dict()
    for name, tensor in state.items():
        if name not in own or own[name].shape != tensor.shape:
            raise ValueError(f"{name} of shape {tuple(tensor.shape)} does not fit into {type(model).__name__}")
    model.load_state_dict(state, strict=False)
    if (copied := COPIED.get()) is not None:
        copied.update(state)
    return model.eval()


def assemble(model: Model, sublayers: dict[str, list[Weights]], others: Weights) -> tuple[Model, Coverage]:
    """Place the sublayers that a model with one stack shares with its source, and all `others`.

    Raises what `fill` raises.
    """
    state, coverage = place(model.config.sublayer_order, sublayers)
    return fill(model, others | state), coverage


def assemble_whole(model: Model, sublayers: dict[str, list[Weights]], others: Weights) -> Model:
    """Assemble a model with one stack, all of whose sublayers its source has. Raises what its two halves raise."""
    return fill(model, others | place_whole(model.config.sublayer_order, sublayers))


# what fairseq keeps beside the weights: its options and, up to 0.8, its clocks and counters, here without their code
HARMLESS: list[Any] = [
    argparse.Namespace,
    *((argparse.Namespace, f"fairseq.meters.{name}") for name in ("AverageMeter", "StopwatchMeter", "TimeMeter")),
]


def load_fairseq(path: Path) -> tuple[Weights, dict[str, Any]]:
    """Read the weights of a fairseq checkpoint, and its model's options, without running what else may be in it.

    A safetensors file holds no options.

    Raises:
        ValueError: the file holds other objects, or no weights.
    """
    with never_running_code(path), torch.serialization.safe_globals(HARMLESS):
        if path.suffix == ".safetensors":
            return load_file(path), {}
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    weights = checkpoint.get("model") if isinstance(checkpoint, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in weights.values()):
        raise ValueError(f"{path} has no 'model' of tensors; is it a fairseq checkpoint?")
    # since 0.10, the options of the model are one of several groups
    options = checkpoint.get("args") or (checkpoint.get("cfg") or {}).get("model") or {}
    return weights, vars(options) if isinstance(options, argparse.Namespace) else options


def agreed(options: Mapping[str, Any], name: str) -> Any:
    """Read an option that encoder and decoder have each, or only one of them; None where neither has it.

    Raises:
        ValueError: they differ.
    """
    values = {
        f"{side}_{name}": options[f"{side}_{name}"] for side in ("encoder", "decoder") if f"{side}_{name}" in options
    }
    if len({*values.values()}) > 1:
        raise ValueError(f"{values} cannot be converted; encoder and decoder must agree")
    return next(iter(values.values()), None)
