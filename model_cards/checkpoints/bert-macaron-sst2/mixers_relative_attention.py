"""Self-attention to distances instead of positions, a mixer of the stack.

Dai et al. (2019), "Transformer-XL: Attentive Language Models beyond a Fixed-Length Context", section 3.3.
"""

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.utils.import_utils import is_tracing

from .linear import is_bare
from .memory import RecurrentAttention, count_keys, may_have_gaps
from .mixers_mixer import Batch, Inputs
from .plan import Packing, select_positions

# added to the scores of hidden keys: softmax turns it into 0, and every dtype can hold it
HIDDEN = -3e4


def shift_rows(scores: torch.Tensor) -> torch.Tensor:
    """Move row i of the last dimensions length - 1 - i columns to the left: (..., length, 1 + n) -> (..., length, n).

    The first column belongs to no distance; the places that it moves into from the right must not be read.
    """
    length, columns = scores.shape[-2:]
    return scores.reshape(*scores.shape[:-2], columns, length)[..., 1:, :].reshape(*scores.shape[:-1], columns - 1)


def head_vectors(config, is_own: bool) -> nn.Parameter | None:
    """Make a vector for each head, (heads, head_dim), where a module has its own."""
    heads = config.num_attention_heads
    return nn.Parameter(torch.empty(heads, config.hidden_size // heads)) if is_own else None


class RelativePositions(nn.Module):
    """Sinusoids of distances, and the vectors by which heads weigh content and distance, if sublayers share them."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.content_bias = head_vectors(config, config.share_position_biases)
        self.position_bias = head_vectors(config, config.share_position_biases)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, first: int, number: int, like: torch.Tensor) -> torch.Tensor:
        """Embed a number of distances, from the first one down: (number, hidden), sines before cosines.

        Distances below 0 are those of tokens that are masked. In evaluation, all distances that are clamped to
        `clamp_length` are one row.
        """
        if self.config.clamp_length is not None and not self.training and not is_tracing(like):
            repeated = max(0, first - self.config.clamp_length)
            first, number = first - repeated, number - repeated
        distances = torch.arange(first, first - number, -1, device=like.device, dtype=torch.float32)
        distances = distances.clamp(0, self.config.clamp_length)
        half = torch.arange(0, self.config.hidden_size, 2, device=like.device, dtype=torch.float32)
        angles = distances[:, None] * 10000 ** (-half / self.config.hidden_size)
        return self.dropout(torch.cat([angles.sin(), angles.cos()], dim=-1).to(like.dtype))


class RelativeAttention(RecurrentAttention):
    """Multi-head self-attention that knows how far away a token is: (batch, length, hidden) -> the same."""

    def __init__(self, config, layer_idx: int, is_causal: bool = True):
        super().__init__(config, layer_idx, is_causal)
        self.r_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.content_bias = head_vectors(config, not config.share_position_biases)
        self.position_bias = head_vectors(config, not config.share_position_biases)

    @property
    def memory_length(self) -> int:
        """How many tokens are remembered."""
        return self.config.memory_length

    def prepare(self, batch: Batch, **kwargs) -> Inputs:
        """Embed the distances, and say which keys each query sees."""
        states, mask, position_ids = batch.states, batch.attention_mask, batch.position_ids
        length, (past_length, num_keys) = states.shape[1], count_keys(batch)
        seen = None
        numbers = torch.arange(num_keys, device=states.device)[None]
        own = numbers[:, :length] + past_length
        if mask is not None and mask.ndim == 2:
            # a cache has forgotten the oldest tokens, and a static one has room for tokens to come
            seen = mask.bool()[:, -(past_length + length) :]
            seen = nn.functional.pad(seen, (0, num_keys - seen.shape[1]))
        elif mask is not None:
            # tokens are what some query sees
            mask = mask if mask.dtype == torch.bool else mask >= 0
            seen = mask[:, 0].any(1)
        has_gaps = seen is not None and may_have_gaps(seen)
        if seen is not None and has_gaps:
            # distances count tokens, not padding
            numbers = seen.long().cumsum(1)
            own = numbers.gather(1, own.expand(numbers.shape[0], -1))
        distances = (own[..., None] - numbers[:, None])[:, None]
        visible = distances >= 0
        if self.config.same_length and self.config.memory_length:
            visible = visible & (distances < self.config.memory_length)
        if seen is not None:
            visible = visible & (seen[:, None, None] if mask.ndim == 2 else mask)
        elif position_ids is not None and not past_length and position_ids.shape[1] == num_keys == length:
            # where position ids restart, another text begins
            text = (position_ids[:, 1:] != position_ids[:, :-1] + 1).cumsum(1)
            text = nn.functional.pad(text, (1, 0))
            visible = visible & (text[:, None, :, None] == text[:, None, None, :])
        shared = batch.positions
        named = {
            # shift_rows wants one more
            "distances": shared(past_length + length, 1 + num_keys, states),
            "columns": past_length + length - distances.clamp(min=0) if has_gaps else None,
            "hidden_keys": torch.zeros_like(visible, dtype=states.dtype).masked_fill(~visible, HIDDEN),
            "content_bias": shared.content_bias,
            "position_bias": shared.position_bias,
            "cache": batch.cache,
            "memory": batch.memory,
        }
        return Inputs(named | kwargs)

    def forward(  # type: ignore[override]
        self,
        hidden_states: torch.Tensor,
        hidden_keys: torch.Tensor,
        distances: torch.Tensor,
        columns: torch.Tensor | None = None,
        content_bias: torch.Tensor | None = None,
        position_bias: torch.Tensor | None = None,
        remembered: torch.Tensor | None = None,
        cache: Cache | None = None,
        read_positions: torch.Tensor | None = None,
        packing: Packing | None = None,
        slot: Any = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from every position to what is visible, among it what is remembered or cached.

        Args:
            hidden_states: (batch, length, hidden), or packed tokens (1, tokens, hidden).
            hidden_keys: 0 for keys that a query sees, or else `HIDDEN`, (batch or 1, 1, length, number of keys).
            distances: embedded, (1 + number of keys, hidden), the largest first, after one that is not read; if there
                are fewer, the first stands for all larger ones.
            columns: which of the distances each key has, (batch, 1, length, number of keys); None: they go down by one.
            content_bias: (heads, head_dim), of all sublayers, as the next; None: each has its own.
            position_bias: (heads, head_dim).
            remembered: (batch, remembered, hidden).
            cache: cache, instead.
            read_positions: (batch or 1, kept), the only ones whose output is mapped and returned.
            packing: where packed tokens belong.
            slot: of the cache.
            kwargs: for attention kernels, which are not called.
        """
        content: Any = self.content_bias if content_bias is None else content_bias
        position: Any = self.position_bias if position_bias is None else position_bias
        query = self.split_heads(self.q_proj(hidden_states), packing)
        key, value = self.keys_and_values(hidden_states, remembered, packing)
        if cache is not None:
            key, value = cache.update(key, value, slot)

        scores = self.score_distances((query + position[:, None]) * self.scaling, distances)
        if not is_tracing(scores) and (missing := 1 + key.shape[2] - scores.shape[-1]):
            scores = torch.cat([scores[..., :1].expand(*scores.shape[:-1], missing), scores], dim=-1)
        scores = (
            shift_rows(scores) if columns is None else scores.gather(-1, columns.expand(-1, scores.shape[1], -1, -1))
        )
        scores = scores + hidden_keys
        output, weights = self.attend_with(query + content[:, None], key, value, scores)
        output = output if packing is None else packing.pack(output)
        return self.o_proj(output if read_positions is None else select_positions(output, read_positions)), weights

    def score_distances(self, query: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
        """Multiply queries (batch, heads, length, head_dim) with distances (number, hidden): (..., length, number)."""
        is_short = query.shape[0] * query.shape[2] < self.head_dim
        # a graph serves all lengths
        if not is_tracing(query) and is_short and is_bare(self.r_proj, query):
            # mapping the few queries of generation is cheaper than mapping all distances
            mapped = torch.einsum("bhld,hdm->bhlm", query, self.r_proj.weight.unflatten(0, (-1, self.head_dim)))
            return mapped @ distances.T
        rows = self.r_proj(distances).unflatten(-1, (-1, self.head_dim))
        return query @ rows.permute(1, 2, 0)
