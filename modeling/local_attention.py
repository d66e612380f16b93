"""Local self-attention, a mixer of the stack: each token sees those near it.

Beltagy et al. (2020), "Longformer: The Long-Document Transformer", section 3.1.
"""

from functools import cached_property
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.masking_utils import create_bidirectional_sliding_window_mask, create_sliding_window_causal_mask
from transformers.utils.import_utils import is_tracing

from sublayers.configuration.alphabet import block_size, reach
from sublayers.modeling.attention import SelfAttention
from sublayers.modeling.plan import Packing

# a place that no text has
NOWHERE = -(2**40)


class Window:
    """Which tokens each token of a row sees: those near it that are no padding.

    Attributes:
        before: how many places before its own it sees.
        after: how many behind.
        places: where the tokens stand in the whole text, (batch or 1, length).
        real: which of them are no padding, (batch, length); None: all.
    """

    def __init__(self, before: int, after: int, places: torch.Tensor, real: torch.Tensor | None = None):
        self.before, self.after, self.places, self.real = before, after, places, real

    @cached_property
    def mask(self) -> torch.Tensor:
        """What every token sees: (batch or 1, 1, length, length)."""
        return self.rows(self.places)

    def rows(self, places: torch.Tensor, times: int = 1) -> torch.Tensor:
        """What tokens at some places (batch or 1, kept) see through so many local attentions, one after the other.

        A token sees itself in any case, since kernels refuse rows of nothing: (batch or 1, 1, kept, length).
        """
        distances = places[..., None] - self.places[:, None]
        seen = (distances <= times * self.before) & (distances >= -times * self.after)
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

    def narrow(self, packing: Packing, kept: torch.Tensor) -> tuple[Packing, "Window"]:
        """Keep only some tokens (1, kept in all) of packed rows."""
        packing, old = packing.only(kept)
        real = packing.pad(torch.ones_like(kept, dtype=torch.bool))
        # what fills shorter rows up is near nothing
        places = self.places.expand(packing.batch, -1).gather(1, old).masked_fill(~real, NOWHERE)
        return packing, Window(self.before, self.after, places, real)


class Sliding:
    """What transformers reads of a configuration to make a mask; in an encoder, the window is that of one side."""

    def __init__(self, config, sliding_window: int):
        self._attn_implementation, self.sliding_window = config._attn_implementation, sliding_window


def local_mask(
    config,
    is_causal: bool,
    states: torch.Tensor,
    attention_mask: torch.Tensor | None,
    past_key_values: Cache | None = None,
    position_ids: torch.Tensor | None = None,
):
    """Make the mask of local attention for states (batch, length, hidden), in the form that its backend wants.

    That is a `Window` unless there are past tokens, several texts in a row or fixed shapes; `attention_mask` hides
    padding, (batch, past and present length). Positions are given where they restart within a row.
    """
    before, after = reach(config.attention_window, is_causal)
    is_new, restarts = True, position_ids is not None and attention_mask is None
    if past_key_values is not None:
        is_new, restarts = not past_key_values.is_compileable and not past_key_values.get_seq_length(), False
    is_plain = not restarts and (attention_mask is None or attention_mask.ndim == 2)
    if config._attn_implementation == "sdpa" and is_new and is_plain and not is_tracing(states):
        places = torch.arange(states.shape[1], device=states.device)[None]
        return Window(before, after, places, None if attention_mask is None else attention_mask.bool())
    window: Any = Sliding(config, config.attention_window if is_causal else after)
    if is_causal:
        return create_sliding_window_causal_mask(window, states, attention_mask, past_key_values, position_ids)
    return create_bidirectional_sliding_window_mask(window, states, attention_mask)


class LocalAttention(SelfAttention):
    """Multi-head attention to the tokens near each: (batch, length, hidden) -> (batch, length or kept, hidden).

    Long texts are computed in blocks with what is on their sides, so that time and memory grow with the length alone.
    """

    def rows_of(self, attention_mask, positions: torch.Tensor) -> torch.Tensor:
        """Choose the rows of positions (batch or 1, kept) from a mask or window: (batch or 1, 1, kept, keys)."""
        if not isinstance(attention_mask, Window):
            return super().rows_of(attention_mask, positions)
        return attention_mask.rows(attention_mask.places.expand(len(positions), -1).gather(1, positions))

    def attend(self, query, key, value, attention_mask=None, **kwargs) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Mix values, of a window in blocks where that is less work."""
        before, after = reach(self.config.attention_window, self.is_causal)
        if not isinstance(attention_mask, Window):
            # what of their mask flash kernels do not see
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
        # a block is a row
        query = queries.transpose(1, 2).flatten(0, 1)
        key, value = (states.permute(0, 2, 1, 4, 3).flatten(0, 1) for states in sides)
        output, _ = super().attend(query, key, value, attention_mask.blocks(batch, size), **kwargs)
        return output.unflatten(0, (batch, number)).flatten(1, 2)[:, :length], None
