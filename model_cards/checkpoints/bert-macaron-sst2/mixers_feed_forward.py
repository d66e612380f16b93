"""The position-wise feed-forward block, a mixer of the stack."""

import torch
from torch import nn
from transformers.activations import ACT2FN

from .order import Order
from .mixers_mixer import Mixer
from .sublayer import Sublayer


class FeedForward(Mixer):
    """Two linear maps around an activation: (batch, length, hidden) -> (batch, length, hidden).

    If it is gated (Shazeer, 2020, "GLU Variants Improve Transformer"), the activation of a third map is multiplied with
    the output of the first.
    """

    def __init__(self, config, hidden_act: str, width: int):
        super().__init__()
        sizes = (config.hidden_size, width)
        self.gate = nn.Linear(*sizes, config.mlp_bias) if config.gated_feed_forward else None
        self.fc1 = nn.Linear(*sizes, config.mlp_bias)
        self.act = ACT2FN[hidden_act]
        self.dropout = nn.Dropout(config.activation_dropout)
        self.fc2 = nn.Linear(width, config.hidden_size, config.mlp_bias)

    @property
    def output_map(self) -> nn.Module:
        """The linear map whose result joins the residual stream."""
        return self.fc2

    def forward(self, hidden_states: torch.Tensor, **kwargs) -> tuple[torch.Tensor, None]:
        """Map each position on its own, wherever it stands."""
        inner = self.fc1(hidden_states)
        inner = self.act(inner) if self.gate is None else self.act(self.gate(hidden_states)) * inner
        return self.fc2(self.dropout(inner)), None


def activation(config, order: Order, place: int) -> str:
    """Name the activation of a feed-forward at a place of an order."""
    before_attention = any(kind.group == "self-attention" for kind in order.kinds[place + 1 : place + 2])
    act = config.pre_attention_act if before_attention else None
    return act or config.hidden_act


def build(config, order: Order, place: int, is_causal: bool) -> Sublayer:
    """Make the sublayer at a place of an order."""
    width = order.widths(config.intermediate_size)[place]
    return Sublayer(config, FeedForward(config, activation(config, order, place), width), config.feed_forward_scale)
