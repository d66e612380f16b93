"""What conversions of all kinds of checkpoints share."""

import argparse
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from transformers import PreTrainedModel

from sublayers.configuration.sublayer_order import expand

Weights = dict[str, torch.Tensor]
Model = TypeVar("Model", bound=PreTrainedModel)


class Coverage(NamedTuple):
    """What a conversion could not match: indices of new sublayers, and how many of each kind were left over."""

    new: list[int]
    unused: dict[str, int]


class State(dict[str, torch.Tensor]):
    """Weights by their old names, from which a conversion takes one after the other."""

    def __init__(self, weights: Mapping[str, torch.Tensor]):
        # buffers without information
        super().__init__((k, v) for k, v in weights.items() if not k.endswith(("version", "_float_tensor")))

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


def assemble(model: Model, sublayers: dict[str, list[Weights]], others: Weights) -> tuple[Model, Coverage]:
    """Give a model's i-th sublayer of each kind the i-th weights of that kind, and all `others` under their names.

    Sublayers without weights keep those that they have.

    Raises:
        ValueError: weights that the model has no place for.
    """
    remaining = {letter: iter(weights) for letter, weights in sublayers.items()}
    state, new = dict(others), []
    for i, letter in enumerate(expand(model.config.sublayer_order)):
        if weights := next(remaining[letter], None):
            state |= {f"model.layers.{i}.{name}": tensor for name, tensor in weights.items()}
        else:
            new.append(i)
    if model.base_model is model:
        # a body by itself has no prefix
        state = {name.removeprefix("model."): tensor for name, tensor in state.items()}
    own = model.state_dict()
    for name, tensor in state.items():
        if name not in own or own[name].shape != tensor.shape:
            raise ValueError(f"{name} of shape {tuple(tensor.shape)} does not fit into {type(model).__name__}")
    model.load_state_dict(state, strict=False)
    return model.eval(), Coverage(new, {letter: len(list(rest)) for letter, rest in remaining.items()})


def assemble_whole(model: Model, sublayers: dict[str, list[Weights]], others: Weights) -> Model:
    """Assemble a model that takes every sublayer of its source, and no other.

    Raises:
        ValueError: the order has more or fewer sublayers of a kind than there are weights.
    """
    model, coverage = assemble(model, sublayers, others)
    if coverage.new or any(coverage.unused.values()):
        found = ", ".join(f"{len(weights)} {letter}" for letter, weights in sublayers.items())
        raise ValueError(f"the order {model.config.sublayer_order!r} does not fit a checkpoint with {found}")
    return model


def load_fairseq(path: Path) -> Weights:
    """Read the weights of a fairseq checkpoint without running what else may be in it.

    Raises:
        ValueError: the file holds objects other than tensors and fairseq's options.
    """
    try:
        # fairseq keeps its options beside the weights as a Namespace, the one class that is allowed in
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)["model"]
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path} holds more than weights and would run code to load it; it is not read") from error
