"""What is computed of a batch: only what is read, and padding only where attention needs whole rows."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers.utils.import_utils import is_tracing

# where padding is a smaller share than 1 / this number, leaving it out costs more than computing it
LEAST_PADDING = 32


class Packing:
    """Unpadding: a padded batch without its padding, and back: (batch, length, ...) <-> (1, tokens, ...).

    Only attention needs rows. Every other part treats tokens one by one and never sees padding. `index` (tokens,) says
    where each token stands, counted row by row; None: there is no padding.
    """

    def __init__(self, batch: int, length: int, index: torch.Tensor | None):
        self.batch, self.length, self.index = batch, length, index

    @property
    def number(self) -> int:
        """How many tokens there are."""
        return self.batch * self.length if self.index is None else len(self.index)

    def pack(self, states: torch.Tensor) -> torch.Tensor:
        """Remove the padding: (batch or 1, length, ...) -> (1, tokens, ...)."""
        states = states.expand(self.batch, *states.shape[1:]).flatten(0, 1)
        return (states if self.index is None else states.index_select(0, self.index))[None]

    def pad(self, states: torch.Tensor) -> torch.Tensor:
        """Put the tokens back into rows, with zeros as padding: (1, tokens, ...) -> (batch, length, ...)."""
        states = states[0]
        if self.index is not None:
            rows = states.new_zeros(self.batch * self.length, *states.shape[1:])
            states = rows.index_copy(0, self.index, states)
        return states.unflatten(0, (self.batch, self.length))

    def part(self, tokens: torch.Tensor) -> "Packing":
        """Make the packing of some tokens (kept,); the others become padding."""
        return Packing(self.batch, self.length, tokens if self.index is None else self.index[tokens])

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


def select_positions(states: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Take some positions: (batch, length, ...), (batch or 1, kept) -> (batch, kept, ...)."""
    # take_along_dim would fix batch and length in an exported graph
    rows = torch.arange(states.shape[0], device=states.device)[:, None]
    return states[rows, positions]


def mean_state(states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Take the mean of each text's tokens: (batch, length, hidden), (batch, length) or None -> (batch, hidden)."""
    if mask is None:
        return states.mean(1)
    real = mask.bool()[..., None]
    return states.masked_fill(~real, 0).sum(1) / real.sum(1).clamp(min=1)


@dataclass(frozen=True, eq=False)
class Plan:
    """Which positions of a batch are computed and in which layout, decided once for all sublayers; see `Plan.of`.

    A batch with padding is packed, unless it has hardly any or a graph needs fixed shapes. Positions that no head reads
    leave the stack where the tail of the order begins.

    Attributes:
        batch, length: of the tokens.
        read: the positions that are read, (batch or 1, kept), or true where (batch, length) is; None for all.
        leaving: what of the states, packed or not, the stack returns: (batch or 1, kept); None for all.
        packing: of the tokens; None: the batch stays a rectangle.
        padding: what is set to zero in the end, true where (batch, length) is; None: nothing.
        real: which tokens are no padding, (batch, length); None: all.
        is_whole: every position is computed where it stands, since shapes are fixed or states are recorded.
        takes_mean: the tail computes the mean of the states where it begins, in the place of what is read.
    """

    batch: int
    length: int
    read: torch.Tensor | None
    leaving: torch.Tensor | None
    packing: Packing | None
    padding: torch.Tensor | None
    real: torch.Tensor | None
    is_whole: bool
    takes_mean: bool

    @classmethod
    def of(
        cls,
        tokens: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        read: torch.Tensor | None = None,
        is_recorded: bool = False,
        takes_mean: bool = False,
    ) -> "Plan":
        """Plan a batch of tokens (batch, length, ...), of which a mask (batch, past and present length) hides padding.

        What is read counts as a token. Recorded states are those of every position, as they are. A plan that takes the
        mean reads one position in each row.
        """
        batch, length = tokens.shape[:2]
        in_graph = is_tracing(tokens)
        ragged = read is not None and read.dtype == torch.bool
        leaving = None if (is_recorded and not takes_mean) or (ragged and in_graph) else read
        real, packing = None, None
        if isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2:
            real = attention_mask[:, -length:].bool()
        seen = None if is_recorded else real
        padding = ~seen if seen is not None and read is None and length > 1 else None
        if not in_graph:
            hidden = 0 if seen is None else seen.numel() - int(seen.sum())
            # one new token in each row has no padding
            if seen is None or (length == 1 and not ragged) or hidden * LEAST_PADDING < seen.numel():
                packing = Packing(batch, length, None) if ragged and not is_recorded else None
                padding = padding if hidden else None
            else:
                if read is not None:
                    seen = seen | read if ragged else seen.scatter(1, read.expand(batch, -1), True)
                packing, padding = Packing(batch, length, seen.flatten().nonzero()[:, 0]), None
        if packing is not None and leaving is not None:
            leaving = packing.locate(leaving)
        return cls(batch, length, read, leaving, packing, padding, real, in_graph or is_recorded, takes_mean)

    @property
    def ragged(self) -> bool:
        """Whether rows may have different numbers of positions that are read."""
        return self.read is not None and self.read.dtype == torch.bool

    @property
    def reads_one(self) -> bool:
        """Whether only one position per row is needed."""
        if self.read is None or self.leaving is None or self.ragged or self.is_whole or self.takes_mean:
            return False
        return self.read.shape[1] == 1

    def packed(self) -> "Plan":
        """Return a plan whose batch is packed; without padding, this joins the rows."""
        if self.packing is not None:
            return self
        packing = Packing(self.batch, self.length, None)
        return replace(self, packing=packing, leaving=None if self.leaving is None else packing.locate(self.leaving))

    def near(self, reaches: dict[int, tuple[int, int]], attention_mask: torch.Tensor | None) -> dict[int, torch.Tensor]:
        """Find the tokens of a packed batch that are near the one that each row reads, one sublayer after the other.

        Args:
            reaches: how many places before and after the token that is read matter, farther ones first.
            attention_mask: hides padding (batch, length), which is never near.

        Returns:
            Their places among the packed tokens that the reach before left: (1, kept in all).
        """
        read: Any = self.read
        distances = read - torch.arange(self.length, device=read.device)
        packing: Any = self.packing
        index, found = packing.index, {}
        for name, (before, after) in reaches.items():
            seen = (distances <= before) & (distances >= -after)
            if attention_mask is not None:
                seen = seen & (attention_mask.bool() | (distances == 0))
            places = seen.expand(self.batch, -1).flatten().nonzero()[:, 0]
            found[name] = (places if index is None else torch.searchsorted(index, places))[None]
            index = places
        return found

    def enter(self, states: torch.Tensor) -> torch.Tensor:
        """Give states the layout of the sublayers: (batch or 1, length, hidden) -> the same, or (1, tokens, hidden)."""
        return states if self.packing is None else self.packing.pack(states)

    def summarise(self, states: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        """Choose what the tail computes: the states `kept` (batch or 1, kept), or the mean of each row's tokens."""
        if not self.takes_mean:
            return select_positions(states, kept)
        rows = states if self.packing is None else self.packing.pad(states)
        mean = mean_state(rows, self.real)[:, None]
        return mean if self.packing is None else mean.transpose(0, 1)

    def choose(self, states: torch.Tensor) -> torch.Tensor:
        """Return what is wanted of the states of all tokens, see `leave`."""
        return self.leave(states if self.leaving is None else select_positions(states, self.leaving))

    def leave(self, states: torch.Tensor) -> torch.Tensor:
        """Give states the layout of the output: (batch, length or kept, hidden), or (kept in all, hidden) of a mask.

        Padding, where it was computed, is zero as where it was not.
        """
        if self.packing is None:
            return states if self.padding is None else states.masked_fill(self.padding[..., None], 0)
        if self.leaving is None:
            return self.packing.pad(states)
        return states[0] if self.ragged else states.unflatten(1, (self.packing.batch, -1))[0]

    def select(self, states: torch.Tensor) -> torch.Tensor:
        """Choose what is read from what left the stack: (batch, kept, hidden), or (kept in all, hidden) of a mask."""
        if self.read is None or self.leaving is not None:
            return states
        return states[self.read] if self.ragged else select_positions(states, self.read)
