"""What a conversion has to show: where every tensor went, and that the result computes what its source does."""

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from sublayers.training.checkpoint import BUFFERS, Weights

# of the size of the outputs
TOLERANCE = 1e-4


class Account(NamedTuple):
    """Where every tensor of a source went, and where every parameter of the model comes from.

    Attributes:
        taken_over: by the source's name, the parameters that were made from it, and how.
        left_out: by the source's name, why.
        new: parameters with random weights.
    """

    taken_over: dict[str, dict[str, str]]
    left_out: dict[str, str]
    new: list[str]

    def summary(self) -> str:
        """Count what was taken over, and name all that was not."""
        total = len(self.taken_over) + len(self.left_out)
        lines = [f"taken over: {len(self.taken_over)} of {total} tensors of the source"]
        for reason in dict.fromkeys(self.left_out.values()):
            names = [name for name, found in self.left_out.items() if found == reason]
            lines.append(f"left out, {reason}: {', '.join(names)}")
        if self.new:
            lines.append(f"new, with random weights: {', '.join(self.new)}")
        return "\n".join(lines)


def account(
    weights: Mapping[str, torch.Tensor], copied: Weights, model: PreTrainedModel, missing: Collection[str] = ()
) -> Account:
    """Account for a conversion.

    Args:
        weights: The source's tensors.
        copied: What `fill` copied of them, by parameter.
        model: What came out.
        missing: Names among `weights` that the source's files lack, and that are random therefore.

    Raises:
        ValueError: a parameter that is not, number by number, what it was copied from, or that was made from nothing.
    """
    own = model.state_dict()
    taken_over: dict[str, dict[str, str]] = {}
    for parameter, piece in copied.items():
        if not _same(own[parameter], piece):
            raise ValueError(f"{parameter} is not what it was copied from; please report this")
        found = {name: how for name, tensor in weights.items() if (how := _view(piece, tensor))}
        # rows cannot be turned round without a copy
        found = found or {name: "rows in reverse order" for name, t in weights.items() if _same(piece, t.flip(0))}
        if not found:
            raise ValueError(f"{parameter} was made from no tensor of the source; please report this")
        for name in found.keys() - missing:
            taken_over.setdefault(name, {})[parameter] = found[name]
    left_out = {name: _why(name, weights, taken_over) for name in weights if name not in {*taken_over, *missing}}
    # tied parameters have one memory
    known = {own[parameter].data_ptr() for parameters in taken_over.values() for parameter in parameters}
    return Account(taken_over, left_out, [name for name, tensor in own.items() if tensor.data_ptr() not in known])


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Compare number by number; a checkpoint of a training that diverged holds some that are none."""
    return first.shape == second.shape and torch.allclose(first, second.to(first.dtype), 0, 0, equal_nan=True)


def _view(piece: torch.Tensor, tensor: torch.Tensor) -> str | None:
    """Say which view of a tensor a piece is; None for a piece of another tensor."""
    if not tensor.data_ptr() <= piece.data_ptr() < tensor.data_ptr() + tensor.nbytes:
        return None
    offset = (piece.data_ptr() - tensor.data_ptr()) // tensor.element_size()
    for view, suffix in ((piece, ""), (piece.transpose(0, -1), ", transposed")):
        if view.dim() == tensor.dim() and view.stride() == tensor.stride():
            if view.shape == tensor.shape:
                return f"whole{suffix}"
            if view.shape[1:] == tensor.shape[1:]:
                start = offset // tensor.stride(0)
                return f"rows {start} to {start + len(view) - 1}{suffix}"
            return f"columns {offset} to {offset + view.shape[1] - 1}{suffix}"
    return "whole, in another shape"


def _why(name: str, weights: Mapping[str, torch.Tensor], taken_over: Collection[str]) -> str:
    """Say why a tensor was left out."""
    if name.endswith(BUFFERS):
        return "a buffer without information"
    if re.search(r"\.\d+\.", name):
        return "of sublayers that the order lacks"
    if equal := next((other for other in taken_over if _same(weights[other], weights[name])), None):
        return f"equal to {equal}"
    return "without a place in the model" if weights[name].any() else "all zero"


@torch.no_grad()
def compare(model: PreTrainedModel, source: PreTrainedModel) -> float:
    """Run a model and its source on the same random tokens, of which some are padding.

    Returns:
        The largest difference of an output at a token that is not padding, relative to the largest number there.

    Raises:
        ValueError: it is over the tolerance.
    """
    config = source.config
    length = min(13, config.max_position_embeddings)
    shape = (3, 2, length) if type(source).__name__.endswith("MultipleChoice") else (3, length)
    generator = torch.Generator().manual_seed(0)
    inputs = {"input_ids": torch.randint(config.vocab_size, shape, generator=generator)}
    mask = torch.ones(shape, dtype=torch.long)
    # on the right: there, all count positions alike
    mask[1, ..., length // 2 :] = 0
    positions = {}
    if config.model_type == "gpt2":
        # no token would see it there; on the left, this source has to be told where it is
        mask = mask.flip(-1)
        positions["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    if config.is_encoder_decoder:
        targets = len(source.get_output_embeddings().weight)
        inputs["decoder_input_ids"] = torch.randint(targets, (3, length - 2), generator=generator)
    elif config.model_type == "bert":
        inputs["token_type_ids"] = torch.randint(config.type_vocab_size, shape, generator=generator)
    ours = model.eval()(**inputs, attention_mask=mask)
    theirs = source.eval()(**inputs, attention_mask=mask, **positions)
    largest = 0.0
    for name, expected in theirs.items():
        if isinstance(expected, torch.Tensor):
            real = mask.bool() if expected.shape[: mask.dim()] == mask.shape else ...
            difference = (ours[name] - expected)[real].abs().max() / expected[real].abs().max()
            if not difference <= TOLERANCE:
                raise ValueError(f"{name} differs from the source's by {difference:.1e} of its size; nothing is kept")
            largest = max(largest, difference.item())
    return largest
