"""Add a letter to the order language, `b`, a gate of each channel: `python examples/custom_mixer.py`."""

from dataclasses import replace

import torch
from torch import nn

from sublayers import PARBertConfig, PARBertModel
from sublayers.configuration.alphabet import ALPHABET
from sublayers.modeling.mixers.builders import BUILDERS
from sublayers.modeling.mixers.mixer import Mixer
from sublayers.modeling.sublayer import Sublayer


class Gate(Mixer):
    """Weigh what each channel holds: (batch, length, hidden) -> the same, and no attention weights."""

    def __init__(self, config):
        super().__init__()
        self.output_map = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states, **kwargs):
        """Run for each position on its own."""
        return self.output_map(hidden_states).sigmoid() * hidden_states, None


ALPHABET["b"] = replace(ALPHABET["f"], name="gate", multiply_adds=lambda sizes, work: work.read * sizes.hidden_size**2)
BUILDERS["b"] = lambda config, order, index, is_causal: Sublayer(config, Gate(config))
config = PARBertConfig(sublayer_order="(sfb)2f", hidden_size=64, intermediate_size=256, num_attention_heads=4)
print(PARBertModel(config)(torch.tensor([[2, 11, 7, 3]])).last_hidden_state.shape)
