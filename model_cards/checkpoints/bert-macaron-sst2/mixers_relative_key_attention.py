"""Self-attention whose keys know how far away they are, a mixer of the stack.

Shaw, Uszkoreit and Vaswani (2018), "Self-Attention with Relative Position Representations", equation 4: the vectors of
keys, not those of values, which the paper finds to add nothing (table 3).
"""

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache

from .memory import count_keys
from .mixers_attention import SelfAttention, takes_single_queries
from .mixers_mixer import Batch, Inputs
from .plan import select_positions
from .relative_bias import add_bias


def number_keys(batch: Batch) -> torch.Tensor:
    """Number the tokens that have keys in their texts, those of the past too: (batch or 1, keys)."""
    mask, cache = batch.attention_mask, batch.cache
    if cache is None or not cache.layers:
        return batch.numbers
    _, num_keys = count_keys(batch)
    if isinstance(mask, dict):
        mask = mask.get("full_attention")
    if mask is None:
        return torch.arange(num_keys, device=batch.states.device)[None]
    if mask.ndim == 4:
        # tokens are what some query sees
        seen = (mask if mask.dtype == torch.bool else mask >= 0)[:, 0].any(1)
    else:
        # a static cache has room for tokens to come
        seen = nn.functional.pad(mask.bool(), (0, num_keys - mask.shape[1]))
    return seen.long().cumsum(1) - 1


class RelativeKeyAttention(SelfAttention):
    """Self-attention with a learned key for each distance: (batch, length, hidden) -> (batch, length or kept, hidden).

    All heads share the keys of distances, and distances beyond `relative_key_distance` have those of the farthest.
    """

    def __init__(self, config, layer_idx: int, is_causal: bool):
        super().__init__(config, layer_idx, is_causal)
        # a row of its weight is the key of a distance, from the farthest before a token to the farthest after it
        self.distance_proj = nn.Linear(self.head_dim, 2 * config.relative_key_distance + 1, bias=False)

    def prepare(self, batch: Batch, **kwargs) -> Inputs:
        """Say how far each key is from each query, beside what self-attention needs.

        Raises:
            ValueError: the backend of attention adds nothing to its scores, or batching is continuous.
        """
        if not (batch.cache is None or isinstance(batch.cache, Cache)):
            raise ValueError("continuous batching does not tell distances between tokens; call generate instead")
        if not takes_single_queries(self.config):
            raise ValueError(
                f"attn_implementation={self.config._attn_implementation!r} knows no keys of distances; choose 'eager' "
                "or 'sdpa'"
            )
        farthest = self.config.relative_key_distance
        distances = number_keys(batch)[:, None] - batch.numbers[..., None]
        distances = distances.clamp(-farthest, farthest) + farthest
        return Inputs({**super().prepare(batch, **kwargs).named, "distances": distances})

    def forward(  # type: ignore[override]
        self, hidden_states: torch.Tensor, read_positions: torch.Tensor | None = None, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from every position, and choose those that are read."""
        output, weights = super().forward(hidden_states, **kwargs)
        return output if read_positions is None else select_positions(output, read_positions), weights

    def attend(
        self, query, key, value, attention_mask: Any = None, distances: Any = None, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend with scores of distances (batch or 1, queries, keys) beside those of the content."""
        scores = self.distance_proj(query) * self.scaling
        scores = scores.gather(-1, distances[:, None].expand(*scores.shape[:2], -1, -1))
        is_causal = self.is_causal if kwargs.get("is_causal") is None else kwargs["is_causal"]
        if attention_mask is None and is_causal and query.shape[2] > 1:
            # where backends find no mask, they hide the future
            seen = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
            attention_mask = seen.tril(key.shape[2] - query.shape[2])
        return super().attend(query, key, value, add_bias(attention_mask, scores), **kwargs)
