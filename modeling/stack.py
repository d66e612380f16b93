"""A stack that runs sublayers in any order."""

import torch
from torch import nn

from sublayers.configuration.sublayer_order import expand, tail_start
from sublayers.modeling.attention import select_positions
from sublayers.modeling.sublayer import Sublayer


class SublayerStack(nn.ModuleList):
    """The sublayers of an order, one after the other: (batch, length, hidden) -> (batch, length or kept, hidden).

    What follows the last attention sublayer is position-wise, so positions that nobody reads leave the stack there.
    """

    def __init__(self, config, order: str):
        order = expand(order)
        # attention sublayers take the cache slots 0, 1, ...: a cache with gaps breaks generation without a word
        super().__init__(Sublayer(config, letter, order[:i].count("s")) for i, letter in enumerate(order))
        self.config = config
        self.last_attention = tail_start(order) - 1

    def forward(
        self, hidden_states: torch.Tensor, read_positions: torch.Tensor | None = None, **kwargs
    ) -> torch.Tensor:
        """Run every sublayer; `read_positions` (batch or 1, kept) are the positions whose final states are wanted."""
        # flash and flex attention cannot be asked for single queries: there the last attention runs in full
        by_query = self.config._attn_implementation in ("eager", "sdpa")
        if read_positions is not None and self.last_attention < 0:
            hidden_states = select_positions(hidden_states, read_positions)
        for i, layer in enumerate(self):
            leaving = read_positions if i == self.last_attention else None
            hidden_states = layer(hidden_states, read_positions=leaving if by_query else None, **kwargs)
            if leaving is not None and not by_query:
                hidden_states = select_positions(hidden_states, leaving)
        return hidden_states
