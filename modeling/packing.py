"""Batches without their padding: the tokens of all rows one behind the other."""

import torch
from transformers.utils.import_utils import is_tracing


class Packing:
    """Where each of the packed tokens belongs: (batch, length, ...) <-> (1, tokens, ...).

    Everything but attention treats tokens one by one and never needs to see padding. Rows may hold different numbers
    of tokens; `index` (tokens,) counts places row by row and is None where every place is taken.
    """

    def __init__(self, batch: int, length: int, index: torch.Tensor | None):
        self.batch, self.length, self.index = batch, length, index

    def pack(self, states: torch.Tensor) -> torch.Tensor:
        """Take the tokens out of their rows: (batch or 1, length, ...) -> (1, tokens, ...)."""
        states = states.expand(self.batch, *states.shape[1:]).flatten(0, 1)
        return (states if self.index is None else states.index_select(0, self.index))[None]

    def pad(self, states: torch.Tensor) -> torch.Tensor:
        """Put the tokens back into rows, zeros between them: (1, tokens, ...) -> (batch, length, ...)."""
        states = states[0]
        if self.index is not None:
            rows = states.new_zeros(self.batch * self.length, *states.shape[1:])
            states = rows.index_copy(0, self.index, states)
        return states.unflatten(0, (self.batch, self.length))

    def locate(self, positions: torch.Tensor) -> torch.Tensor:
        """Find positions (batch, kept), or the true ones of (batch, length), among the tokens: (1, kept in all)."""
        if positions.dtype == torch.bool:
            places = positions.flatten().nonzero()[:, 0]
        else:
            starts = self.length * torch.arange(self.batch, device=positions.device)
            places = (positions + starts[:, None]).flatten()
        if self.index is None:
            return places[None]
        return torch.searchsorted(self.index, places)[None]

    def only(self, kept: torch.Tensor) -> tuple["Packing", torch.Tensor]:
        """Move some tokens (1, kept), in their order, to the left ends of shorter rows.

        Returns the packing of these rows, and where in its old row each place's token stood: (batch, new length).
        """
        places = kept[0] if self.index is None else self.index[kept[0]]
        rows = places // self.length
        counts = rows.bincount(minlength=self.batch)
        # attention kernels refuse rows without a place
        length = max(1, int(counts.max()))
        starts = counts.cumsum(0) - counts
        index = rows * length + torch.arange(len(rows), device=rows.device) - starts[rows]
        packing = Packing(self.batch, length, index)
        return packing, packing.pad((places % self.length)[None])


def real_tokens(tokens: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor | None:
    """Tell tokens (batch, length, ...) from padding by a mask (batch, past and present length): (batch, length).

    None where the mask says nothing of that kind.
    """
    if attention_mask is None or attention_mask.ndim != 2:
        return None
    return attention_mask[:, -tokens.shape[1] :].bool()


def packing_of(
    tokens: torch.Tensor, attention_mask: torch.Tensor | None, read_positions: torch.Tensor | None
) -> Packing | None:
    """Decide how to pack a batch (batch, length, ...), or None where its rectangle is as good.

    Positions that are read count as tokens whatever the mask (batch, past and present length) says.
    """
    batch, length = tokens.shape[:2]
    ragged = read_positions is not None and read_positions.dtype == torch.bool
    # a compiled graph has fixed shapes, and one new token in each row leaves nothing to save
    if is_tracing(tokens) or (length == 1 and not ragged):
        return None
    real = real_tokens(tokens, attention_mask)
    if real is None or real.all():
        return Packing(batch, length, None) if ragged else None
    if read_positions is not None:
        real = real | read_positions if ragged else real.scatter(1, read_positions.expand(batch, -1), True)
    return Packing(batch, length, real.flatten().nonzero()[:, 0])


def clear_padding(states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """Write zeros over padding in a graph, (batch, length, hidden), as a packing leaves them outside of one."""
    real = real_tokens(states, attention_mask) if is_tracing(states) and states.shape[1] > 1 else None
    return states if real is None else states.masked_fill(~real[..., None], 0)
