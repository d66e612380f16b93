"""`g`: a short convolution of each channel between two gates, a mixer of the stack.

Liquid AI (2025), "LFM2 Technical Report".
"""

from typing import Any

import torch
from torch import nn
from transformers import initialization as init
from transformers.cache_utils import Cache, CacheLayerMixin

from .order import Order
from .mixers_convolution import sum_under, tokens_of
from .mixers_mixer import Batch, Drawn, Inputs, Mixer
from .plan import Packing, select_positions
from .sublayer import Sublayer


def find_texts(batch: Batch) -> torch.Tensor | None:
    """Number the texts of rows that may have several, (batch or 1, length), by the positions where they begin."""
    positions = batch.position_ids
    if positions is None or batch.attention_mask is not None or not positions.shape[-1]:
        return None
    begins = positions.diff() != 1
    return nn.functional.pad(begins.long().cumsum(-1), (1, 0))


class ShortConvolution(Mixer, Drawn):
    """A kernel for each channel between two gates: (batch, length, hidden) -> (batch, length or kept, hidden).

    The kernel of a causal model ends at the position itself, that of an encoder has it in its middle.
    """

    def __init__(self, config, layer_idx: int, is_causal: bool):
        super().__init__()
        self.layer_idx = layer_idx
        self.kernel_size = config.short_kernel_size
        self.before = self.kernel_size - 1 if is_causal else (self.kernel_size - 1) // 2
        # the first gate, the second one, and what they weigh
        self.in_proj = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.kernel = nn.Parameter(torch.empty(config.hidden_size, self.kernel_size))
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    @property
    def output_map(self) -> nn.Module:
        """The linear map whose result joins the residual stream."""
        return self.out_proj

    def draw_weights(self, config) -> None:
        """Draw the kernels so that sums under them are about as large as what is summed."""
        init.normal_(self.kernel, std=self.kernel_size**-0.5)

    def prepare(self, batch: Batch, **kwargs) -> Inputs:
        """Tell tokens from padding, and texts that share a row from each other."""
        return Inputs({"tokens": tokens_of(batch, "conv"), "texts": find_texts(batch), "cache": batch.cache})

    def windows(self, states: torch.Tensor, cache: Cache | None, slot: int) -> torch.Tensor:
        """Put the states before and after around new ones: (batch, length + kernel size - 1, hidden)."""
        if cache is None:
            return nn.functional.pad(states, (0, 0, self.before, self.kernel_size - 1 - self.before))
        batch, length, _ = states.shape
        if isinstance(cache.layers[slot], CacheLayerMixin):
            # no other slot knows how many tokens there are
            counted = states.new_ones(batch, 1, length, 1)
            cache.update(counted, counted, slot)
        kept = cache.update_conv_state(states.transpose(1, 2), slot, conv_kernel_size=self.before).transpose(1, 2)
        # after the first tokens, less is kept; after tokens that may be taken back, more
        missing = length + self.before - kept.shape[1]
        return nn.functional.pad(kept, (0, 0, missing, 0))

    def forward(
        self,
        hidden_states: torch.Tensor,
        tokens: torch.Tensor | None = None,
        texts: torch.Tensor | None = None,
        cache: Cache | None = None,
        read_positions: torch.Tensor | None = None,
        packing: Packing | None = None,
        slot: Any = None,
    ) -> tuple[torch.Tensor, None]:
        """Mix all positions, or return only `read_positions` (batch or 1, kept).

        Where `tokens` (batch or 1, length) is false, there is padding. It counts as zeros, as all outside of the text.
        With a packing, hidden states and positions are those of the packed tokens, (1, tokens, hidden) and (1, kept),
        and rows exist between the projections only.
        """
        first, second, states = self.in_proj(hidden_states).chunk(3, dim=-1)
        states = first * states
        states = states if packing is None else packing.pad(states)
        if tokens is not None:
            states = states.masked_fill(~tokens[..., None], 0)
        mixed = sum_under(self.kernel.T, self.windows(states, cache, slot), self.before, texts)
        mixed = mixed if packing is None else packing.pack(mixed)
        if read_positions is not None:
            second, mixed = (select_positions(each, read_positions) for each in (second, mixed))
        return self.out_proj(second * mixed), None


def build(config, order: Order, place: int, is_causal: bool) -> Sublayer:
    """Make the sublayer at a place of an order."""
    return Sublayer(config, ShortConvolution(config, order.slot(place), is_causal))
