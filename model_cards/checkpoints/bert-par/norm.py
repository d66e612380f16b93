"""The norms of a model, chosen by its configuration."""

import torch
from torch import nn


class UnitOffsetRMSNorm(nn.RMSNorm):
    """An RMS norm whose gain is 1 + weight, as Gemma has it: (..., width) -> the same."""

    def reset_parameters(self) -> None:
        """Start with a gain of 1."""
        if self.elementwise_affine:
            nn.init.zeros_(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension, in 32 bits at least: 1 and a small weight in 16 bits lose the weight."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        gain = 1 + self.weight.to(dtype)
        return nn.functional.rms_norm(x.to(dtype), self.normalized_shape, gain, self.eps).type_as(x)


def rms_norm(config, width: int, affine: bool = True) -> nn.RMSNorm:
    """Make an RMS norm (Zhang and Sennrich, 2019) of the last dimension, which is `width` wide."""
    kind = UnitOffsetRMSNorm if config.norm_unit_offset else nn.RMSNorm
    return kind(width, config.layer_norm_eps, elementwise_affine=affine)


def hidden_norm(config, affine: bool | None = None) -> nn.Module:
    """Make a norm of hidden states; unless `affine` says otherwise, it has parameters if the configuration says so."""
    affine = config.norm_affine if affine is None else affine
    if config.norm_type == "rms":
        return rms_norm(config, config.hidden_size, affine)
    return nn.LayerNorm(config.hidden_size, config.layer_norm_eps, elementwise_affine=affine, bias=config.norm_bias)
