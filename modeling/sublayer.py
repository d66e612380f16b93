"""One residual sublayer: norm, mixer, dropout, sum."""

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from sublayers.modeling.attention import Attention, select_positions
from sublayers.modeling.feed_forward import FeedForward


class Sublayer(GradientCheckpointingLayer):
    """One letter of an order: (batch, length, hidden) -> (batch, length or kept, hidden).

    Pre-norm: x + mixer(norm(x)); post-norm: norm(x + mixer(x)).
    """

    def __init__(self, config, letter: str, layer_idx: int):
        super().__init__()
        self.pre_norm = config.norm_position == "pre"
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mixer = Attention(config, layer_idx) if letter == "s" else FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, hidden_states: torch.Tensor, read_positions: torch.Tensor | None = None, **kwargs
    ) -> torch.Tensor:
        """Run the sublayer, with queries and residual only at `read_positions` (batch or 1, kept) if they are given."""
        residual = hidden_states if read_positions is None else select_positions(hidden_states, read_positions)
        if self.pre_norm:
            hidden_states = self.norm(hidden_states)
        hidden_states, _ = self.mixer(hidden_states, read_positions=read_positions, **kwargs)
        hidden_states = residual + self.dropout(hidden_states)
        return hidden_states if self.pre_norm else self.norm(hidden_states)
