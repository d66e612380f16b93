"""The mixer of `y`."""

import torch
from torch import nn

from sublayers.configuration.order import Order
from sublayers.modeling.mixers.convolution import find_tokens
from sublayers.modeling.mixers.mixer import Batch, Inputs, Mixer
from sublayers.modeling.plan import select_positions
from sublayers.modeling.sublayer import Sublayer


class MovingAverage(Mixer):
    """Read each token into a state that decays: (batch, length, hidden) -> (batch, length or kept, hidden)."""

    def __init__(self, config, slot: int):
        super().__init__()
        self.layer_idx = slot
        self.in_proj = nn.Linear(config.hidden_size, config.state_size, bias=False)
        self.decay = nn.Parameter(torch.zeros(config.state_size))
        self.out_proj = nn.Linear(config.state_size, config.hidden_size, bias=False)

    @property
    def output_map(self) -> nn.Module:
        """The linear map whose result joins the residual stream."""
        return self.out_proj

    def prepare(self, batch: Batch, **kwargs) -> Inputs:
        """Tell tokens from padding."""
        mask, cache, tokens = batch.attention_mask, batch.cache, None
        if mask is not None:
            mask = mask["full_attention"] if isinstance(mask, dict) else mask
            tokens = find_tokens(mask, batch.states.shape[1], 0 if cache is None else cache.get_seq_length())
        return Inputs({"tokens": tokens, "cache": cache})

    def forward(self, hidden_states, tokens=None, cache=None, read_positions=None, packing=None, slot=None):
        """Read token after token; padding changes nothing."""
        given, decay = self.in_proj(hidden_states), self.decay.sigmoid()
        given = given if packing is None else packing.pad(given)
        batch, length = given.shape[:2]
        state, states = given.new_zeros(batch, len(decay)), []
        if cache is not None and cache.layers[slot].is_recurrent_states_initialized[0]:
            state = cache.layers[slot].recurrent_states[0]
        for i in range(length):
            changed = decay * state + given[:, i]
            state = changed if tokens is None else torch.where(tokens[:, i, None], changed, state)
            states.append(state)
        if cache is not None:
            cache.update_recurrent_state(state, slot)
            counted = given.new_ones(batch, 1, length, 1)
            cache.update(counted, counted, slot)
        mixed = torch.stack(states, 1)
        mixed = mixed if packing is None else packing.pack(mixed)
        return self.out_proj(mixed if read_positions is None else select_positions(mixed, read_positions)), None


def build(config, order: Order, place: int, is_causal: bool) -> Sublayer:
    """Make the sublayer at a place of an order."""
    return Sublayer(config, MovingAverage(config, order.slot(place)))
