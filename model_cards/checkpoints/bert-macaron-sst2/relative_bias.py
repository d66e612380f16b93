"""Relative biases: what attention adds to its scores for each distance.

Raffel et al. (2020), "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", section 2.1;
Song et al. (2020), "MPNet: Masked and Permuted Pre-training for Language Understanding".
"""

import math

import torch
from torch import nn

# farther tokens have the bias of this distance
FARTHEST = 128


def buckets(distances: torch.Tensor, number: int) -> torch.Tensor:
    """Put distances from queries to keys into groups: half of them for each side, of which half grow farther out."""
    side = number // 2
    exact = side // 2
    far = distances.abs()
    share = torch.log(far.clamp(min=1).float() / exact) / math.log(FARTHEST / exact)
    grown = (exact + (share * (side - exact)).long()).clamp(max=side - 1)
    return torch.where(far < exact, far, grown) + side * (distances > 0)


class RelativeBias(nn.Module):
    """Biases by distance, which all attentions of a stack share."""

    def __init__(self, number: int, num_attention_heads: int):
        super().__init__()
        self.table = nn.Embedding(number, num_attention_heads)

    def forward(self, length: int) -> torch.Tensor:
        """Look up the biases of rows of a length: (1, heads, length, length)."""
        places = torch.arange(length, device=self.table.weight.device)
        distances = places - places[:, None]
        return self.table(buckets(distances, self.table.num_embeddings)).permute(2, 0, 1)[None]


def add_bias(mask: torch.Tensor | None, bias: torch.Tensor) -> torch.Tensor:
    """Hide what a mask (batch or 1, 1, queries, keys) hides from biased scores: (batch or 1, heads, queries, keys)."""
    if mask is None:
        return bias
    if mask.dtype == torch.bool:
        return bias.masked_fill(~mask, torch.finfo(bias.dtype).min)
    # masks that are added hide by large numbers, beside which biases do not count
    return bias + mask
