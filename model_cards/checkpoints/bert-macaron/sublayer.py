"""One residual sublayer: norm, mixer, dropout, sum."""

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .mixers_mixer import Mixer
from .norm import hidden_norm
from .plan import select_positions


class Sublayer(GradientCheckpointingLayer):
    """One letter of an order: (batch, length, hidden) -> (batch, length or kept, hidden).

    Pre-norm: x + scale * mixer(norm(x)); post-norm: norm(x + scale * mixer(x)); both: x + scale * output_norm(mixer(
    norm(x))).
    """

    def __init__(self, config, mixer: Mixer, scale: float = 1.0):
        super().__init__()
        self.pre_norm = config.norm_position != "post"
        self.norm = hidden_norm(config)
        self.output_norm = hidden_norm(config) if config.norm_position == "both" else None
        self.mixer = mixer
        self.dropout = nn.Dropout(config.dropout)
        self.scale = scale

    def forward(
        self, hidden_states: torch.Tensor, *sources: torch.Tensor, read_positions: torch.Tensor | None = None, **kwargs
    ) -> torch.Tensor:
        """Run the sublayer, with queries and residual only at `read_positions` (batch or 1, kept) if they are given.

        A mixer that reads a second sequence finds it in `sources`.
        """
        residual = hidden_states if read_positions is None else select_positions(hidden_states, read_positions)
        if self.pre_norm:
            hidden_states = self.norm(hidden_states)
            if self.mixer.normalises_sources:
                sources = tuple(self.norm(states) for states in sources)
        hidden_states, _ = self.mixer(hidden_states, *sources, read_positions=read_positions, **kwargs)
        if self.output_norm is not None:
            hidden_states = self.output_norm(hidden_states)
        hidden_states = torch.add(residual, self.dropout(hidden_states), alpha=self.scale)
        return hidden_states if self.pre_norm else self.norm(hidden_states)
