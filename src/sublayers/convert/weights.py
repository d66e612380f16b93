"""What conversions of all kinds of checkpoints share."""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import torch
from safetensors.torch import load_file
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from sublayers.configuration.order import Order
from sublayers.hub.loading import never_running_code

Weights = dict[str, torch.Tensor]
Model = TypeVar("Model", bound=PreTrainedModel)
# the ends of the names of buffers, which hold no information: fairseq's, Transformer-XL's and adaptive span's
BUFFERS = ("version", "_float_tensor", "inv_freq", "mask_template")
# names of norms that adaptive span's layers have whether they run them or not
UNUSED = r"layers\.\d+\.norm[12]\."
# fields that models of transformers and ours have by the same name
SAME = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "max_position_embeddings"),
    *("attention_dropout", "initializer_range", "tie_word_embeddings", "pad_token_id", "bos_token_id", "eos_token_id"),
    *("id2label", "label2id", "problem_type"),
)
# our letters for transformers' types of layers
LETTERS = {"full_attention": "s", "sliding_attention": "w"}
QKV = ("mixer.q_proj", "mixer.k_proj", "mixer.v_proj")


@dataclass(frozen=True)
class Piece:
    """A tensor for one of our parameters, the names of the source's tensors that it comes from, and how it was taken.

    A tied tensor has several names. A tensor that the source lacks, such as zeros for a bias, has none. A tensor that
    is no view of the source's was made of `views`, which follow each other in it, times a `factor`.
    """

    tensor: torch.Tensor
    names: tuple[str, ...]
    how: str = "whole"
    views: tuple[torch.Tensor, ...] = ()
    factor: float = 1

    @property
    def shape(self) -> torch.Size:
        """Return the tensor's."""
        return self.tensor.shape

    def cut(self, start: int, stop: int, dim: int = 0) -> "Piece":
        """Take some of the rows or, along another dimension than the first, of the columns."""
        how = f"{'columns' if dim % self.tensor.ndim else 'rows'} {start} to {stop - 1}"
        return Piece(self.tensor.transpose(0, dim)[start:stop].transpose(0, dim), self.names, how)

    def chunk(self, number: int, dim: int = 0) -> "list[Piece]":
        """Cut it into a number of parts of one size.

        Raises:
            ValueError: they are not.
        """
        size, rest = divmod(self.shape[dim], number)
        if rest:
            raise ValueError(
                f"{self.names[0]} of shape {(*self.shape,)} does not hold {number} parts of one size; is it of another "
                "kind or version?"
            )
        return [self.cut(size * i, size * (i + 1), dim) for i in range(number)]

    def reverse(self) -> "Piece":
        """Turn the order of the rows round."""
        return Piece(self.tensor.flip(0), self.names, "rows in reverse order")

    def reshape(self, *shape: int) -> "Piece":
        """Give it another shape."""
        tensor = self.tensor.reshape(shape)
        return self if tensor.shape == self.tensor.shape else Piece(tensor, self.names, "whole, in another shape")

    def transpose(self) -> "Piece":
        """Transpose a matrix, and nothing else."""
        return self if self.tensor.ndim < 2 else replace(self, tensor=self.tensor.T, how=f"{self.how}, transposed")

    def multiply(self, factor: float) -> "Piece":
        """Multiply it by a number."""
        if factor == 1:
            return self
        how = f"{self.how}, times {factor:g}"
        return Piece(factor * self.tensor, self.names, how, self.views or (self.tensor,), factor * self.factor)

    def give_back(self, values: torch.Tensor) -> None:
        """Write other values of its shape into the source's own tensors."""
        views = self.views or (self.tensor,)
        for view, part in zip(views, values.flatten().split([view.numel() for view in views]), strict=True):
            view.copy_(part.view(view.shape)).div_(self.factor)


# by the names of our parameters
Pieces = dict[str, Piece]


class State(dict[str, Piece]):
    """Weights of a source, from which a conversion takes one after the other, by their names or as they are renamed.

    Raises:
        ValueError: a tensor that is sparse, complex or without values.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], rename: Callable[[str], str] = str):
        for name, tensor in weights.items():
            if tensor.layout != torch.strided or tensor.is_meta or tensor.is_complex():
                raise ValueError(
                    f"{name} is a tensor of {tensor.dtype} and {tensor.layout} on {tensor.device}; save it as a dense "
                    "one of real numbers"
                )
        kept = {name: tensor for name, tensor in weights.items() if not name.endswith(BUFFERS)}
        super().__init__((rename(name), Piece(tensor, (name,))) for name, tensor in kept.items())

    def unite(self, double: str, name: str) -> None:
        """Keep one of two names that a source may have for the same tensor; of two tensors, it reads the one kept."""
        if double in self and torch.equal((other := self.pop(double)).tensor, self[name].tensor):
            self[name] = replace(self[name], names=self[name].names + other.names)

    def take_piece(self, name: str) -> Piece:
        """Take a single weight.

        Raises:
            ValueError: there is none.
        """
        if name not in self:
            raise ValueError(f"the checkpoint has no {name}; is it of another kind or version?")
        return self.pop(name)

    def take(self, old: str, new: str) -> Pieces:
        """Take the weight and bias of a linear map or norm under its new name.

        Raises:
            ValueError: there is none.
        """
        names = {f"{old}.{kind}": f"{new}.{kind}" for kind in ("weight", "bias")}
        if missing := names.keys() - self.keys():
            raise ValueError(f"the checkpoint has no {sorted(missing)}; is it of another kind or version?")
        return {new_name: self.pop(old_name) for old_name, new_name in names.items()}

    def take_all(self, names: Mapping[str, str], layer: str = "") -> Pieces:
        """Take several of them, given as old names, which follow that of the layer, and new ones."""
        return {name: piece for old, new in names.items() for name, piece in self.take(layer + old, new).items()}

    def take_below(self, names: Mapping[str, str], layer: str = "") -> Pieces:
        """Take all weights below old names as those below new ones; there may be none."""
        return {
            f"{new}{name.removeprefix(layer + old)}": self.pop(name)
            for old, new in names.items()
            for name in [name for name in self if name.startswith(f"{layer}{old}.")]
        }

    def take_joint(self, name: str, parts: Sequence[str], dim: int = 0) -> Pieces:
        """Take linear maps of one size whose weights and biases are joined along a dimension."""
        return {
            f"{part}{kind}": piece
            for kind, joint in self.take_below({name: ""}).items()
            for part, piece in zip(parts, joint.chunk(len(parts), dim), strict=True)
        }

    def refuse_rest(self, kind: str) -> None:
        """Check that nothing is left.

        Raises:
            ValueError: something is.
        """
        if self:
            raise ValueError(f"no place for {sorted(self)} in {kind}")


def place(order: str, sublayers: dict[str, list[Pieces]], stack: str = "model.layers", partly: bool = False) -> Pieces:
    """Give the i-th sublayer of each kind in an order the i-th weights of that kind, under its name in the stack.

    `s` and `m` are of one kind.

    Raises:
        ValueError: the order has more or fewer sublayers of a kind than there are weights, unless it takes them
            `partly`.
    """
    read = Order(order)
    letters = "".join(read.by_weights[place] for place in read.first_places)
    if not partly and any(letters.count(kind) != len(sublayers.get(kind, ())) for kind in {*letters, *sublayers}):
        found = ", ".join(f"{len(weights)} {letter}" for letter, weights in sublayers.items() if weights)
        raise ValueError(f"the order {order!r} does not fit a checkpoint with {found}")
    remaining = {letter: iter(weights) for letter, weights in sublayers.items()}
    return {
        f"{stack}.{i}.{name}": piece
        for i, letter in enumerate(letters)
        for name, piece in next(remaining.get(letter, iter(())), {}).items()
    }


def fill(model_class: type[Model], config: PreTrainedConfig, pieces: Pieces) -> tuple[Model, Pieces]:
    """Make a model of weights; parameters that are not named are random.

    A parameter is in the memory of what it was taken from, unless its numbers lie in another order there.

    Returns:
        What every conversion does: the model, and what its parameters were taken from.

    Raises:
        ValueError: weights that the model has no place for.
    """
    with torch.device("meta"):
        blank = model_class(config)
    if blank.base_model is blank:
        # a body by itself has no prefix
        pieces = {name.removeprefix("model."): piece for name, piece in pieces.items()}
    own, tied = blank.state_dict(), blank.all_tied_weights_keys
    weights: Weights = {}
    taken: set[int] = set()
    like = next(piece.tensor for piece in pieces.values() if piece.names)
    for name, piece in pieces.items():
        if name not in own or own[name].shape != piece.shape:
            raise ValueError(f"{name} of shape {tuple(piece.shape)} does not fit into {model_class.__name__}")
        if name not in tied:
            # what the source has no need of is zero
            tensor = piece.tensor.contiguous() if piece.names else piece.tensor.to(like)
            # layers of a source may lie in the same memory; here each has its own
            weights[name] = tensor.clone() if tensor.data_ptr() in taken else tensor
            taken.add(tensor.data_ptr())
    # random numbers take longer than all else, and room; they are drawn only where some are kept
    with nullcontext() if own.keys() - weights.keys() - tied.keys() else no_init_weights():
        model = model_class(config)
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    return model.eval(), pieces


def assemble(
    model_class: type[Model],
    config: Any,
    sublayers: dict[str, list[Pieces]],
    others: Pieces,
    partly: bool = False,
) -> tuple[Model, Pieces]:
    """Place the sublayers of a model with one stack, and all `others`. Raises what its two halves raise."""
    return fill(model_class, config, others | place(config.sublayer_order, sublayers, partly=partly))


# classes of others, which are unpickled as plain objects with attributes
INERT = [
    # fairseq's clocks and counters, up to 0.8
    *(f"fairseq.meters.{name}" for name in ("AverageMeter", "StopwatchMeter", "TimeMeter")),
    # NVIDIA's vocabulary, and the parts of the module that Transformer-XL's authors save as a whole
    "utils.vocabulary.Vocab",
    "proj_adaptive_softmax.ProjectedAdaptiveLogSoftmax",
    *(f"mem_transformer.{name}" for name in ("MemTransformerLM", "AdaptiveEmbedding", "PositionalEmbedding")),
    *(f"mem_transformer.RelPartialLearnable{name}" for name in ("DecoderLayer", "MultiHeadAttn")),
    "mem_transformer.PositionwiseFF",
    *(f"torch.nn.modules.container.{name}" for name in ("ModuleList", "ParameterList", "Sequential")),
    "torch.nn.modules.activation.ReLU",
    "torch.nn.modules.dropout.Dropout",
    "torch.nn.modules.linear.Linear",
    "torch.nn.modules.normalization.LayerNorm",
    "torch.nn.modules.sparse.Embedding",
]
HARMLESS: list[Any] = [argparse.Namespace, *((argparse.Namespace, name) for name in INERT)]


def load_checkpoint(path: Path) -> Any:
    """Read a file of torch or safetensors without running what else than tensors may be in it.

    Raises:
        ValueError: the file holds other objects, or is none of these.
    """
    with never_running_code(path), torch.serialization.safe_globals(HARMLESS):
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)


@contextmanager
def refusing_values(sentence: str) -> Iterator[None]:
    """Refuse, with a sentence, values of another type or shape than their kind has, as somebody else's file may hold.

    Raises:
        ValueError: a value is so.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:
        raise ValueError(f"{sentence} ({type(error).__name__}: {' '.join(str(error).split())})") from error


def are_weights(value: Any) -> TypeGuard[Weights]:
    """Say whether something is a dictionary of tensors by their names."""
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in value.items()
    )


def read_fairseq(checkpoint: Any, path: Path) -> tuple[Weights, dict[str, Any]]:
    """Find the weights of a fairseq checkpoint, and its model's options.

    A safetensors file holds no options.

    Raises:
        ValueError: there are no weights.
    """
    if path.suffix == ".safetensors":
        return checkpoint, {}
    weights = checkpoint.get("model") if isinstance(checkpoint, dict) else None
    if not are_weights(weights):
        raise ValueError(f"{path} has no 'model' of tensors; is it a fairseq checkpoint?")
    # since 0.10, the options of the model are one of several groups
    options = checkpoint.get("args") or (checkpoint.get("cfg") or {}).get("model") or {}
    return weights, vars(options) if isinstance(options, argparse.Namespace) else options


def agreed(options: Mapping[str, Any], name: str) -> Any:
    """Read an option that encoder and decoder have each, or only one of them; None where neither has it.

    Raises:
        ValueError: they differ.
    """
    names = [f"{side}_{name}" for side in ("encoder", "decoder")]
    values = {name: options[name] for name in names if name in options}
    if len({*values.values()}) > 1:
        raise ValueError(f"{values} cannot be converted; encoder and decoder must agree")
    return next(iter(values.values()), None)


def refuse_others(options: Mapping[str, Any], only: Mapping[str, Any], kind: str) -> None:
    """Check that options which change what a kind of model computes are not told or have the only known value.

    Raises:
        ValueError: one has another value.
    """
    for name, value in only.items():
        if (found := options.get(name, value)) != value:
            raise ValueError(f"{name}={found!r} cannot be converted; only {kind} with {name}={value!r} can")
