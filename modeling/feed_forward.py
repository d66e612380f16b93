"""The position-wise feed-forward block, a mixer of the stack."""

import torch
from torch import nn
from transformers.activations import ACT2FN


class FeedForward(nn.Module):
    """Two linear maps around an activation: (batch, length, hidden) -> (batch, length, hidden)."""

    reads_source = False

    def __init__(self, config, hidden_act: str):
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.act = ACT2FN[hidden_act]
        self.dropout = nn.Dropout(config.activation_dropout)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    @property
    def output_map(self) -> nn.Module:
        """The linear map whose result joins the residual stream."""
        return self.fc2

    def forward(self, hidden_states: torch.Tensor, **kwargs) -> tuple[torch.Tensor, None]:
        """Map each position on its own; what attention needs arrives in `kwargs` and is ignored."""
        return self.fc2(self.dropout(self.act(self.fc1(hidden_states)))), None
