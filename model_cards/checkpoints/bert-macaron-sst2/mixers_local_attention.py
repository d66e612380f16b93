"""Local self-attention, a mixer of the stack: each token sees those near it.

Beltagy et al. (2020), "Longformer: The Long-Document Transformer", section 3.1.
"""

from functools import cached_property
from typing import Any

import torch
from torch import nn
from transformers.masking_utils import create_bidirectional_sliding_window_mask, create_sliding_window_causal_mask

from .letters_local_attention import block_size, reach
from .order import Order
from .mixers_attention import SelfAttention
from .mixers_mixer import Batch, Inputs
from .plan import Packing
from .rotary import RotaryEmbedding
from .sublayer import Sublayer

# a place far from every text
NOWHERE = -(2**40)


class Window:
    """Which tokens each token of a row sees: those near it that are no padding.

    Attributes:
        before: how many places before its own it sees.
        after: how many after.
        places: where the tokens stand in the whole text, (batch or 1, length).
        real: which of them are no padding, (batch, length); None: all.
    """

    def __init__(self, before: int, after: int, places: torch.Tensor, real: torch.Tensor | None = None):
        self.before, self.after, self.places, self.real = before, after, places, real

    @cached_property
    def mask(self) -> torch.Tensor:
        """What every token sees: (batch or 1, 1, length, length)."""
        return self.rows(self.places)

    def rows(self, places: torch.Tensor) -> torch.Tensor:
        """What tokens at some places (batch or 1, kept) see: (batch or 1, 1, kept, length).

        A token sees itself in any case, since kernels refuse rows of nothing.
        """
        distances = places[..., None] - self.places[:, None]
        seen = (distances <= self.before) & (distances >= -self.after)
        if self.real is not None:
            seen = seen & (self.real[:, None] | (distances == 0))
        return seen[:, None]

    def blocks(self, batch: int, size: int) -> torch.Tensor:
        """What the tokens of each block see of it and its neighbours: (batch * blocks, 1, size, size + both sides)."""
        length = self.places.shape[1]
        number, keys = -(-length // size), size + self.before + self.after
        places = torch.arange(keys, device=self.places.device)
        distances = places[:size, None] + self.before - places
        near = (distances <= self.before) & (distances >= -self.after)
        real = self.places.new_ones(1, length, dtype=torch.bool) if self.real is None else self.real
        real = nn.functional.pad(real, (self.before, number * size - length + self.after))
        seen = near & real.unfold(1, keys, size)[:, :, None] | (distances == 0)
        return seen.expand(batch, -1, -1, -1).flatten(0, 1)[:, None]

    def narrow(self, kept: torch.Tensor, packing: Packing, places: torch.Tensor) -> "Window":
        """Keep only some tokens (1, kept in all), whose new rows and old places are given (see `Packing.only`)."""
        real = packing.pad(torch.ones_like(kept, dtype=torch.bool))
        # the padding of the new rows must be near no token
        places = self.places.expand(packing.batch, -1).gather(1, places).masked_fill(~real, NOWHERE)
        return Window(self.before, self.after, places, real)


class Sliding:
    """What transformers reads of a configuration to make a mask; in an encoder, the window is that of one side."""

    def __init__(self, config, sliding_window: int):
        self._attn_implementation, self.sliding_window = config._attn_implementation, sliding_window


class LocalAttention(SelfAttention):
    """Multi-head attention to the tokens near each: (batch, length, hidden) -> (batch, length or kept, hidden).

    Long texts are computed in blocks with what is on their sides, so that time and memory grow with the length alone.
    """

    def __init__(self, config, layer_idx: int, is_causal: bool):
        super().__init__(config, layer_idx, is_causal)
        theta = config.local_rope_theta
        self.rotary_emb = None if theta is None else RotaryEmbedding(config, theta)

    def rotary(self, batch: Batch) -> nn.Module | None:
        """Return the module that looks rotations up; those of another base are its own."""
        return self.rotary_emb or super().rotary(batch)

    def make_mask(self, batch: Batch) -> Any:
        """Make the mask in the form that the backend wants, or a `Window` where it hides padding alone."""
        mask, states, config = batch.attention_mask, batch.states, self.config
        if isinstance(mask, dict):
            return mask.get("sliding_attention")
        before, after = reach(config.attention_window, self.is_causal)
        if config._attn_implementation == "sdpa" and batch.hides_only_padding:
            places = torch.arange(states.shape[1], device=states.device)[None]
            return Window(before, after, places, None if mask is None else mask.bool())
        window: Any = Sliding(config, config.attention_window if self.is_causal else after)
        if self.is_causal:
            return create_sliding_window_causal_mask(window, states, mask, batch.past, batch.position_ids)
        return create_bidirectional_sliding_window_mask(window, states, mask)

    def narrow(self, inputs: Inputs, kept: torch.Tensor, packing: Packing, places: torch.Tensor) -> Inputs:
        """Keep the rotations of some tokens, and what they see."""
        narrowed = super().narrow(inputs, kept, packing, places).named
        window = narrowed["attention_mask"].narrow(kept, packing, places)
        return Inputs({**narrowed, "attention_mask": window})

    def rows_of(self, attention_mask, positions: torch.Tensor) -> torch.Tensor:
        """Choose the rows of positions (batch or 1, kept) from a mask or window: (batch or 1, 1, kept, keys)."""
        if not isinstance(attention_mask, Window):
            return super().rows_of(attention_mask, positions)
        return attention_mask.rows(attention_mask.places.expand(len(positions), -1).gather(1, positions))

    def attend(self, query, key, value, attention_mask=None, **kwargs) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Mix values, of a window in blocks where that is less work."""
        before, after = reach(self.config.attention_window, self.is_causal)
        if not isinstance(attention_mask, Window):
            # flash kernels get no mask, and cut the window themselves
            return super().attend(query, key, value, attention_mask, sliding_window=max(before, after) + 1, **kwargs)
        batch, _, length, _ = query.shape
        size = block_size(length, before, after)
        if size is None:
            return super().attend(query, key, value, attention_mask.mask, **kwargs)
        number = -(-length // size)
        missing = number * size - length
        queries = nn.functional.pad(query, (0, 0, 0, missing)).unflatten(2, (number, size))
        sides = [
            nn.functional.pad(states, (0, 0, before, missing + after)).unfold(2, size + before + after, size)
            for states in (key, value)
        ]
        # each block becomes a row of the batch
        query = queries.transpose(1, 2).flatten(0, 1)
        key, value = (states.permute(0, 2, 1, 4, 3).flatten(0, 1) for states in sides)
        output, _ = super().attend(query, key, value, attention_mask.blocks(batch, size), **kwargs)
        return output.unflatten(0, (batch, number)).flatten(1, 2)[:, :length], None


def build(config, order: Order, place: int, is_causal: bool) -> Sublayer:
    """Make the sublayer at a place of an order."""
    return Sublayer(config, LocalAttention(config, order.slot(place), is_causal))
