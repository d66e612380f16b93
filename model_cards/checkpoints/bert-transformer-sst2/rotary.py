"""Rotary positions: queries and keys are turned by angles that grow with their positions.

Su et al. (2021), "RoFormer: Enhanced Transformer with Rotary Position Embedding".
"""

from copy import copy

import torch
from transformers.models.phi.modeling_phi import PhiRotaryEmbedding


class RotaryEmbedding(PhiRotaryEmbedding):
    """Cosines and sines of positions, scaled as `rope_parameters` say."""

    def __init__(self, config, theta: float | None = None):
        # transformers' formulas need head_dim as a number
        config = copy(config)
        config.head_dim = config.head_width
        if theta is not None:
            config.rope_parameters = {**config.rope_parameters, "rope_type": "default", "rope_theta": theta}
        super().__init__(config)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Look positions (batch or 1, length) up: cosines and sines (batch or 1, length, 1, width), in the dtype of x.

        The sines of the first half are negative, as `rotate` wants them.
        """
        cosines, sines = super().forward(x, position_ids)
        first, second = sines.chunk(2, dim=-1)
        return cosines[:, :, None], torch.cat([-first, second], dim=-1)[:, :, None]


def rotate(states: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Turn each head of queries or keys: (batch, length, heads, head_dim) -> the same.

    Channel i of the first half of the rotated channels and channel i of the second are a pair; the rest stays.
    """
    width = cosines.shape[-1]
    turned = states[..., :width]
    # nothing else reads the rolled copy, so it can be changed in place
    turned = turned.roll(width // 2, dims=-1).mul_(sines).addcmul_(turned, cosines)
    return turned if width == states.shape[-1] else torch.cat([turned, states[..., width:]], dim=-1)
