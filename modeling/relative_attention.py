"""Self-attention to distances instead of positions, a mixer of the stack.

Dai et al. (2019), "Transformer-XL: Attentive Language Models beyond a Fixed-Length Context", section 3.3.
"""

import torch
from torch import nn
from transformers.cache_utils import Cache

from sublayers.modeling.attention import SelfAttention
from sublayers.modeling.plan import Packing, select_positions


def shift_rows(scores: torch.Tensor) -> torch.Tensor:
    """Move row i of the last dimensions length - 1 - i columns to the left: (..., length, 1 + n) -> (..., length, n).

    The first column is what moves in from the right; nobody may read there.
    """
    length, columns = scores.shape[-2:]
    return scores.reshape(*scores.shape[:-2], columns, length)[..., 1:, :].reshape(*scores.shape[:-1], columns - 1)


class RelativePositions(nn.Module):
    """Sinusoids of distances, and the two vectors by which every head weighs content and distance in all sublayers."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        heads = config.num_attention_heads
        self.content_bias = nn.Parameter(torch.empty(heads, config.hidden_size // heads))
        self.position_bias = nn.Parameter(torch.empty(heads, config.hidden_size // heads))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, first: int, number: int, like: torch.Tensor) -> torch.Tensor:
        """Embed a number of distances, from the first one down: (number, hidden), sines before cosines.

        Distances below 0 are those of tokens that nobody sees.
        """
        distances = torch.arange(first, first - number, -1, device=like.device, dtype=torch.float32)
        distances = distances.clamp(0, self.config.clamp_length)
        half = torch.arange(0, self.config.hidden_size, 2, device=like.device, dtype=torch.float32)
        angles = distances[:, None] * 10000 ** (-half / self.config.hidden_size)
        return self.dropout(torch.cat([angles.sin(), angles.cos()], dim=-1).to(like.dtype))


class RelativeAttention(SelfAttention):
    """Multi-head self-attention that knows how far away a token is: (batch, length, hidden) -> the same."""

    has_bias = False

    def __init__(self, config, layer_idx: int, is_causal: bool = True):
        super().__init__(config, layer_idx, is_causal)
        self.r_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    @property
    def memory_length(self) -> int:
        """How many tokens are remembered."""
        return self.config.memory_length

    def forward(  # type: ignore[override]
        self,
        hidden_states: torch.Tensor,
        visible: torch.Tensor,
        distances: torch.Tensor,
        content_bias: torch.Tensor,
        position_bias: torch.Tensor,
        remembered: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        read_positions: torch.Tensor | None = None,
        packing: Packing | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from every position to what is visible, among it what is remembered or cached.

        Args:
            hidden_states: (batch, length, hidden), or packed tokens (1, tokens, hidden).
            visible: which keys each query sees, (batch or 1, 1, length, number of keys).
            distances: embedded, (number of keys, hidden), the largest first.
            content_bias: (heads, head_dim), of all sublayers, as the next.
            position_bias: (heads, head_dim).
            remembered: (batch, remembered, hidden).
            past_key_values: cache, instead.
            read_positions: (batch or 1, kept), the only ones whose output is mapped and returned.
            packing: where packed tokens belong.
            kwargs: what other sublayers need.
        """
        query = self.split_heads(self.q_proj(hidden_states), packing)
        key, value = (self.split_heads(project(hidden_states), packing) for project in (self.k_proj, self.v_proj))
        if remembered is not None and remembered.shape[1]:
            key = torch.cat([self.split_heads(self.k_proj(remembered), None), key], dim=2)
            value = torch.cat([self.split_heads(self.v_proj(remembered), None), value], dim=2)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)

        # a column of zeros in front, which shift_rows needs
        rows = nn.functional.pad(self.r_proj(distances), (0, 0, 1, 0)).unflatten(-1, (-1, self.head_dim))
        scores = shift_rows((query + position_bias[:, None]) @ rows.permute(1, 2, 0)) * self.scaling
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        # flex attention takes masks for kinds of pairs only
        name = "position_bias" if self.config._attn_implementation == "flex_attention" else "attention_mask"
        output, weights = self.attend(query + content_bias[:, None], key, value, **{name: scores})
        output = output if packing is None else packing.pack(output)
        return self.o_proj(output if read_positions is None else select_positions(output, read_positions)), weights
