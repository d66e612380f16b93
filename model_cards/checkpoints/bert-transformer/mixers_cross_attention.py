"""`c`: attention to the source."""

from typing import Any

import torch
from transformers.cache_utils import EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask

from .order import Order
from .mixers_attention import Attention, takes_single_queries
from .mixers_mixer import Batch, Inputs
from .plan import Packing, Plan, select_positions
from .sublayer import Sublayer


class CrossAttention(Attention):
    """Multi-head attention to the source: (batch, length, hidden) -> (batch, length or kept, hidden).

    Several target rows, such as beams, may share a source; they are then queries of one row, and the source's keys and
    values exist once.
    """

    def prepare(self, batch: Batch, **kwargs) -> Inputs:
        """Make the mask of the source, and leave its padding out where nothing is cached yet."""
        source: Any = batch.source
        states, cache = source.states, source.cache
        # rows that share a source are its queries
        queries = batch.states.reshape(states.shape[0], -1, states.shape[-1])
        mask = create_bidirectional_mask(self.config, queries, source.attention_mask, encoder_hidden_states=states)
        if isinstance(mask, torch.Tensor) and mask.ndim == 4:
            mask = mask[:, :, :1]
        packing = None
        if cache is None or not cache.is_updated.get(0):
            packing = Plan.of(states, source.attention_mask).packing
        named = {"attention_mask": mask, "cache": cache, "source_packing": packing}
        return Inputs(named, sources=(states if packing is None else packing.pack(states),))

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        read_positions: torch.Tensor | None = None,
        packing: Packing | None = None,
        source_packing: Packing | None = None,
        slot: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from every position, or only from `read_positions`, to the source (sources, source length, hidden).

        The mask says the same for each query, (sources, 1, 1, source length), unless the backend wants another. With a
        source packing, encoder states are those of packed tokens, (1, source tokens, hidden).
        """
        if read_positions is not None and not takes_single_queries(self.config):
            inputs = (encoder_hidden_states, attention_mask, cache, None, packing, source_packing)
            output, weights = self.forward(hidden_states, *inputs, slot=slot)
            return select_positions(output, read_positions), weights
        if read_positions is not None:
            hidden_states = select_positions(hidden_states, read_positions)
            packing = packing and packing.only(read_positions)[0]
        query = self.split_heads(self.q_proj(hidden_states), packing, self.q_norm)
        if cache is not None and cache.is_updated.get(slot):
            filled: Any = cache.cross_attention_cache.layers[slot]
            key, value = filled.keys, filled.values
        else:
            key = self.split_heads(self.k_proj(encoder_hidden_states), source_packing, self.k_norm)
            value = self.split_heads(self.v_proj(encoder_hidden_states), source_packing)
            if cache is not None:
                key, value = cache.cross_attention_cache.update(key, value, slot)
                cache.is_updated[slot] = True
        length, rows_per_source = query.shape[2], query.shape[0] // key.shape[0]
        if rows_per_source > 1:
            query = query.unflatten(0, (-1, rows_per_source)).transpose(1, 2).flatten(2, 3)
        output, weights = self.attend(query, key, value, attention_mask)
        if rows_per_source > 1:
            output = output.unflatten(1, (-1, length)).flatten(0, 1)
            weights = weights if weights is None else weights.unflatten(2, (-1, length)).transpose(1, 2).flatten(0, 1)
        return self.close(output if packing is None else packing.pack(output), hidden_states), weights


def build(config, order: Order, place: int, is_causal: bool) -> Sublayer:
    """Make the sublayer at a place of an order."""
    return Sublayer(config, CrossAttention(config, order.slot(place)))
