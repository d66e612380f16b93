"""A beginning that all rows of a batch share, such as a prompt before many passages, is computed once."""

from typing import NamedTuple

import torch

from .plan import Plan

# another run of the stack, over the prefix alone, has to save this number of tokens
LEAST_SAVED = 256


class Divided(NamedTuple):
    """A batch whose rows begin alike.

    Attributes:
        prefix: the tokens with which all rows begin, (1, shared).
        rest: what follows in each row, with padding on the right: (batch, longest rest).
        attention_mask: of both, (batch, shared and longest rest).
        read: where in the rest stands what is read, (batch, 1).
    """

    prefix: torch.Tensor
    rest: torch.Tensor
    attention_mask: torch.Tensor
    read: torch.Tensor


def divide(input_ids: torch.Tensor, attention_mask: torch.Tensor | None, plan: Plan) -> Divided | None:
    """Divide rows (batch, length), of each of which one token is read; None where that would save too little."""
    batch, length = input_ids.shape
    if (batch - 1) * length < LEAST_SAVED or not plan.reads_one or plan.read is None:
        return None
    real = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
    read = plan.read.expand(batch, 1)
    # a mask may be of another shape; where padding lies between tokens, or is read, places mean something else
    if real.shape != input_ids.shape or (real.diff(dim=1) != 0).sum(1).max() > 1 or not real.gather(1, read).all():
        return None
    counts = real.sum(1, keepdim=True)
    rows = input_ids.gather(1, real.argsort(dim=1, descending=True, stable=True))
    # each row keeps a token, which may be the one that is read
    alike = (rows == rows[:1]).all(0)[: int(counts.min()) - 1]
    shared, longest = int(alike.long().cumprod(0).sum()), int(counts.max())
    read = real.cumsum(1).gather(1, read) - 1 - shared
    if (batch - 1) * shared < LEAST_SAVED or read.min() < 0:
        return None
    mask = torch.arange(longest, device=rows.device) < counts
    return Divided(rows[:1, :shared], rows[:, shared:longest], mask.long(), read)
