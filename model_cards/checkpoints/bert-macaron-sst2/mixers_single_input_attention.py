"""Single-input attention, a mixer of the stack: the keys and values of all such sublayers come from the same states.

Qiao et al. (2024), "SwiftKV: Fast Prefill-Optimized Inference with Knowledge-Preserving Model Transformation", section
3.1; Sun et al. (2024), "You Only Cache Once: Decoder-Decoder Architectures for Language Models", section 2; for a
single query, Touvron et al. (2021), "Going Deeper with Image Transformers", section 3.
"""

from typing import Any

import torch
from transformers.cache_utils import Cache

from .order import Order
from .mixers_attention import QueryContext, SelfAttention, takes_single_queries
from .mixers_mixer import Inputs
from .plan import Packing
from .sublayer import Sublayer


class SingleInputAttention(SelfAttention):
    """Multi-head attention to fixed states: (batch, kept, hidden), (batch, length, hidden) -> (batch, kept, hidden).

    These are the states where the tail of the order begins. Nothing changes them from there on, so that only the
    positions that are read are computed in the tail.
    """

    normalises_sources = True

    def begin_tail(
        self, inputs: Inputs, states: torch.Tensor, packing: Packing | None, kept: torch.Tensor | None
    ) -> Inputs:
        """Take over the fixed states, and find out what the positions that are kept see of them.

        Raises:
            ValueError: the only query is the mean of all states, and the backend computes all queries.
        """
        named = dict(inputs.named)
        rotations, cache = named["position_embeddings"], named["cache"]
        context = QueryContext(named.pop("attention_mask"), packing, rotations)
        if kept is not None:
            if not takes_single_queries(self.config):
                raise ValueError(
                    f"attn_implementation={self.config._attn_implementation!r} cannot compute the query of a mean of "
                    "states alone; choose 'eager' or 'sdpa', or tail_query='first'"
                )
            context = self.only(context, kept, states, cache, self.layer_idx, named.get("is_causal"))
            if packing is not None and cache is None and self.folds(states):
                # rows are made once for all sublayers
                one = context.packing is not None and context.packing.length == 1
                states, packing = (packing.pad(states), None) if one else (states, packing)
        return Inputs({**named, "context": context, "fixed_packing": packing}, sources=(states,))

    def forward(  # type: ignore[override]
        self,
        hidden_states: torch.Tensor,
        *fixed_states: torch.Tensor,
        context: QueryContext | None = None,
        cache: Cache | None = None,
        read_positions: torch.Tensor | None = None,
        packing: Packing | None = None,
        fixed_packing: Packing | None = None,
        position_embeddings: tuple[torch.Tensor, ...] | None = None,
        slot: Any = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from all states that are given to all fixed ones; without these, run as `SelfAttention` does.

        Fixed states are packed as `fixed_packing` says, and their keys turned by `position_embeddings`.
        """
        if context is None:
            kwargs |= {"cache": cache, "position_embeddings": position_embeddings, "slot": slot}
            return super().forward(hidden_states, read_positions=read_positions, packing=packing, **kwargs)
        (states,) = fixed_states
        return self.attend_from(
            hidden_states, context, states, fixed_packing, position_embeddings, cache, slot, **kwargs
        )


def build(config, order: Order, place: int, is_causal: bool) -> Sublayer:
    """Make the sublayer at a place of an order."""
    return Sublayer(config, SingleInputAttention(config, order.slot(place), is_causal))
