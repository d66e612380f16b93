"""The memory of recurrent language models: what attention read in earlier segments, without its gradient."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.utils.import_utils import is_tracing

from .mixers_attention import SelfAttention
from .mixers_mixer import Batch
from .plan import Packing
from .sublayer import Sublayer


def may_have_gaps(token_mask: torch.Tensor) -> bool:
    """Say whether a row of the mask (batch, past and present length) may have padding between tokens.

    A graph is traced for every mask.
    """
    if is_tracing(token_mask):
        return True
    number = token_mask.long().cumsum(1)
    return bool(((token_mask == 0) & (number > 0) & (number < number[:, -1:])).any())


class Memory:
    """The inputs of each attention sublayer in earlier segments, and those that the next segment will find.

    Dai et al. (2019), "Transformer-XL: Attentive Language Models beyond a Fixed-Length Context", section 3.2.

    Args:
        states: (batch, remembered, hidden) of each attention sublayer, in their order.
    """

    def __init__(self, states: Sequence[torch.Tensor]):
        self.states = tuple(states)
        # not changed in place, since checkpointing runs a sublayer twice
        self.next = list(states)

    def exchange(self, number: int, states: torch.Tensor, limit: int) -> torch.Tensor:
        """Return what an attention remembers, and add new states (batch, length, hidden) for the next segment."""
        remembered, length = self.states[number], states.shape[1]
        forgotten = max(0, remembered.shape[1] + length - limit)
        # a copy, since a view would keep the forgotten states in memory
        kept = [remembered[:, forgotten:], states[:, max(0, length - limit) :].detach()]
        self.next[number] = torch.cat(kept, dim=1)
        return remembered


def count_keys(batch: Batch) -> tuple[int, int]:
    """Count the keys before the new tokens, and all of them; a static cache also counts its empty slots."""
    length, memory, cache = batch.states.shape[1], batch.memory, batch.cache
    if memory is not None:
        past_length = memory.states[0].shape[1] if memory.states else 0
        return past_length, past_length + length
    if cache is None or not cache.layers:
        return 0, length
    num_keys, offset = cache.get_mask_sizes(length, 0)
    return cache.get_seq_length() - offset, num_keys


class RecurrentAttention(SelfAttention):
    """What the attentions with memory share: keys and values of what is remembered."""

    def keys_and_values(
        self, hidden_states: torch.Tensor, remembered: torch.Tensor | None, packing: Packing | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Map what is remembered, (batch, remembered, hidden), and the states: (batch, heads, all, head_dim) each."""
        maps = (self.k_proj, self.v_proj)
        if remembered is None or not remembered.shape[1]:
            key, value = (self.split_heads(project(hidden_states), packing) for project in maps)
            return key, value
        states = hidden_states if packing is None else packing.pad(hidden_states)
        if self.training:
            # two products, since remembered states need no gradient
            seen = [torch.cat([project(remembered), project(states)], dim=1) for project in maps]
        else:
            together = torch.cat([remembered, states], dim=1)
            seen = [project(together) for project in maps]
        return self.split_heads(seen[0], None), self.split_heads(seen[1], None)

    def attend_with(self, query, key, value, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend as `attend` does, with scores (batch, heads, length, keys) added to those of the content."""
        # flex attention takes scores to add under another name
        name = "position_bias" if self.config._attn_implementation == "flex_attention" else "attention_mask"
        return self.attend(query, key, value, **{name: scores})


class RecurrentSublayer(Sublayer):
    """An attention sublayer that also sees what it remembers of earlier segments."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        *sources: torch.Tensor,
        memory: Memory | None = None,
        packing: Packing | None = None,
        slot: Any = None,
        **kwargs,
    ) -> torch.Tensor:
        """Run the sublayer as any other; its mixer finds the remembered states, normalised as its input is."""
        mixer: Any = self.mixer
        remembered = None
        if memory is not None:
            states = hidden_states if packing is None else packing.pad(hidden_states)
            remembered = memory.exchange(slot, states, mixer.memory_length)
            remembered = self.norm(remembered) if self.pre_norm else remembered
        return super().forward(hidden_states, *sources, remembered=remembered, packing=packing, slot=slot, **kwargs)
