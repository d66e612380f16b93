"""Self-attention that learns how far back it looks, a mixer of the stack.

Sukhbaatar et al. (2019), "Adaptive Attention Span in Transformers".
"""

import math
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.utils.import_utils import is_tracing

from .memory import RecurrentAttention, count_keys, may_have_gaps
from .mixers_mixer import Batch, Inputs
from .plan import Packing, select_positions

# spans are rounded up to multiples of this number of tokens; one more step is remembered, since a span may grow
STEP = 64
# queries that are computed at once: the scores of a long text would not fit into memory
QUERIES = 512


def skew(scores: torch.Tensor, empty: float) -> torch.Tensor:
    """Move row i of the last dimensions i columns to the right: (..., length, span) -> (..., length, span + length)."""
    length, span = scores.shape[-2:]
    rows = nn.functional.pad(scores, (0, length + 1), value=empty).flatten(-2)
    return rows[..., : length * (span + length)].unflatten(-1, (length, span + length))


def behind_padding(token_mask: torch.Tensor) -> torch.Tensor:
    """Say where each place of a row goes if all padding moves to its front: (batch, length) -> the same."""
    # ONNX has no stable sort
    tokens, padding = token_mask.long(), 1 - token_mask.long()
    return torch.where(token_mask.bool(), padding.sum(1, keepdim=True) + tokens.cumsum(1), padding.cumsum(1)) - 1


def move(states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Move the states of each row to other places (batch, length): (batch, heads, length, width) -> the same."""
    numbers = torch.arange(places.shape[1], device=places.device).expand_as(places)
    order = torch.zeros_like(places).scatter(1, places, numbers)
    return select_positions(states.transpose(1, 2), order).transpose(1, 2)


class DistanceKeys(nn.Module):
    """The keys of all distances, of all sublayers and heads."""

    def __init__(self, config):
        super().__init__()
        self.table = nn.Parameter(torch.empty(config.attention_span, config.hidden_size // config.num_attention_heads))


class SpanAttention(RecurrentAttention):
    """Multi-head self-attention to the tokens before, but not to the token itself: (batch, length, hidden) -> the same.

    Before a text stand zeros, which attention weighs as it does tokens.
    """

    def __init__(self, config, layer_idx: int):
        super().__init__(config, layer_idx, is_causal=True)
        # the share of the longest span that each head reads
        self.span = nn.Parameter(torch.empty(config.num_attention_heads)) if config.adaptive_span else None

    @property
    def read_length(self) -> int:
        """How many tokens the head that looks back farthest reads, in whole steps."""
        longest = self.config.attention_span
        if self.span is None or is_tracing(self.span):
            return longest
        reads = math.ceil(self.span.detach().max().clamp(0, 1).item() * longest) + self.config.span_ramp_size
        return longest - max(0, longest - max(1, reads)) // STEP * STEP

    @property
    def memory_length(self) -> int:
        """How many tokens are remembered."""
        longest = self.config.attention_span
        return longest if self.span is None else min(longest, self.read_length + STEP)

    def prepare(self, batch: Batch, **kwargs) -> Inputs:
        """Hand over the keys of distances, and say where there are tokens."""
        tokens = batch.attention_mask
        if tokens is not None and tokens.ndim == 4:
            # the row of the last token
            tokens = tokens[:, 0, -1, : count_keys(batch)[0] + batch.states.shape[1]]
            tokens = tokens if tokens.dtype == torch.bool else tokens >= 0
        named = {
            "key_table": batch.positions.table,
            "token_mask": tokens,
            "has_gaps": tokens is not None and may_have_gaps(tokens),
            "cache": batch.cache,
            "memory": batch.memory,
        }
        return Inputs(named | kwargs)

    def span_mask(self, span: torch.Tensor, length: int) -> torch.Tensor:
        """Say how much each head reads of the tokens before, the farthest first: (heads, length) from 0 to 1."""
        distances = torch.arange(length, 0, -1, device=span.device)
        reach = span.clamp(0, 1)[:, None] * self.config.attention_span
        return ((1 - distances + reach) / self.config.span_ramp_size + 1).clamp(0, 1)

    def forward(  # type: ignore[override]
        self,
        hidden_states: torch.Tensor,
        key_table: torch.Tensor,
        token_mask: torch.Tensor | None = None,
        has_gaps: bool = False,
        remembered: torch.Tensor | None = None,
        cache: Cache | None = None,
        read_positions: torch.Tensor | None = None,
        packing: Packing | None = None,
        slot: Any = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from every position to the tokens before, among them what is remembered or cached.

        Args:
            hidden_states: (batch, length, hidden), or packed tokens (1, tokens, hidden).
            key_table: keys of all distances, the farthest first, of all sublayers and heads: (span, head_dim).
            token_mask: where there are tokens, (batch, past and present length).
            has_gaps: whether padding may stand between tokens.
            remembered: (batch, remembered, hidden).
            cache: cache, instead.
            read_positions: (batch or 1, kept), the only ones whose output is mapped and returned.
            packing: where packed tokens belong.
            slot: of the cache.
            kwargs: for attention kernels, which are not called.

        Returns:
            The output, and the weights, of each row's tokens without gaps, if the backend has them.
        """
        query = self.split_heads(self.q_proj(hidden_states), packing)
        length, past_length, span = query.shape[2], 0, self.read_length
        if remembered is not None:
            remembered = remembered[:, -span:]
            past_length = remembered.shape[1]
        key, value = self.keys_and_values(hidden_states, remembered, packing)
        if token_mask is not None:
            # padding is zero, as all that stands before a text, also where it is read and so was computed
            key, value = (states * token_mask[:, None, -length:, None] for states in (key, value))
        if cache is not None:
            _, offset = cache.get_mask_sizes(length, slot)
            past_length = cache.get_seq_length(slot) - offset
            key, value = cache.update(key, value, slot)
        places = None
        if token_mask is not None and has_gaps:
            # padding moves to the front of a row; free places of a static cache stay after the tokens
            known = token_mask[:, -(past_length + length) :]
            filling = torch.arange(known.shape[1], key.shape[2], device=known.device).expand(known.shape[0], -1)
            moved = torch.cat([behind_padding(known), filling], dim=1)
            key, value = move(key, moved), move(value, moved)
            places = behind_padding(known[:, -length:])
            query = move(query, places)
        key, value = (
            nn.functional.pad(states, (0, 0, span, 0))[:, :, past_length : past_length + span + length]
            for states in (key, value)
        )

        if length <= QUERIES or is_tracing(query):
            output, weights = self.read(query, key, value, key_table[-span:])
        else:
            mixes, weights = [], None
            for start in range(0, length, QUERIES):
                seen = slice(start, start + span + QUERIES)
                queries = query[:, :, start : start + QUERIES]
                mixes.append(self.read(queries, key[:, :, seen], value[:, :, seen], key_table[-span:])[0])
            output = torch.cat(mixes, dim=1)
        if places is not None:
            output = select_positions(output, places)
            if weights is not None:
                weights = select_positions(weights.transpose(1, 2), places).transpose(1, 2)
        output = output if packing is None else packing.pack(output)
        return self.o_proj(output if read_positions is None else select_positions(output, read_positions)), weights

    def read(self, query, key, value, key_table) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from tokens to those within the span before each: (batch, heads, length, head_dim), span + length.

        The paper multiplies what the softmax gives with the mask of spans and makes it sum to one again; adding the
        mask's logarithm before the softmax is the same.
        """
        scores = query @ key_table.T * self.scaling
        lowest = torch.finfo(scores.dtype).min
        if self.span is not None:
            mask = self.span_mask(self.span, len(key_table))
            scores = scores + torch.where(mask > 0, mask.clamp(min=1e-30).log(), lowest)[:, None].to(scores.dtype)
        return self.attend_with(query, key, value, skew(scores.clamp(min=lowest), lowest))
