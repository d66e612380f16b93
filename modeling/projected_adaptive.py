"""Transformer-XL's adaptive input and softmax, in which all vectors may be narrower than the model.

Dai et al. (2019), "Transformer-XL: Attentive Language Models beyond a Fixed-Length Context", on WikiText-103; beside
what `adaptive.py` has there are biases, and the head scores the rarest band first.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sublayers.modeling.adaptive import AdaptiveEmbedding, AdaptiveLogSoftmax
from sublayers.modeling.linear import linear


def projection(config, width: int, is_own: bool) -> nn.Parameter | None:
    """Make the matrix between vectors of a width and the model, (hidden, width), where a module has its own."""
    return nn.Parameter(torch.empty(config.hidden_size, width)) if is_own else None


class ProjectedBand(nn.Module):
    """A table of vectors, and what makes them wide: numbers within the band (...) -> (..., hidden or width)."""

    def __init__(self, config, size: int, width: int):
        super().__init__()
        self.table = nn.Parameter(torch.empty(size, width))
        self.projection = projection(config, width, config.adaptive_factor > 1)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Look the words up."""
        vectors = nn.functional.embedding(numbers, self.table)
        return vectors if self.projection is None else nn.functional.linear(vectors, self.projection)


class ProjectedTail(nn.Module):
    """The scores of a band's words, from the same matrices: (..., hidden) -> (..., words of the band)."""

    def __init__(self, config, size: int, width: int):
        super().__init__()
        self.table = nn.Parameter(torch.empty(size, width))
        self.bias = nn.Parameter(torch.empty(size))
        self.projection = projection(config, width, config.is_projected)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Score the words."""
        states = states if self.projection is None else states @ self.projection
        return linear(states, self.table, self.bias)


class ProjectedEmbedding(AdaptiveEmbedding):
    """The embeddings of all bands: ids (batch, length) -> (batch, length, hidden).

    Bands of one width share a projection, if there is one.
    """

    def __init__(self, config):
        nn.ModuleList.__init__(self, [ProjectedBand(config, size, width) for size, width in config.adaptive_bands])
        self.cutoffs = config.reached_cutoffs
        is_shared = config.is_projected and config.adaptive_factor == 1
        self.projection = projection(config, config.adaptive_bands[0][1], is_shared)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Look the words up. Raises what `AdaptiveEmbedding` raises."""
        vectors = super().forward(ids)
        return vectors if self.projection is None else nn.functional.linear(vectors, self.projection)


class ProjectedLogSoftmax(AdaptiveLogSoftmax):
    """Log-probabilities of the next word, or a loss, see there."""

    def __init__(self, config):
        nn.Module.__init__(self)
        self.cutoffs = config.reached_cutoffs
        (frequent, width), *rare = config.adaptive_bands
        self.words = nn.Parameter(torch.empty(frequent, width))
        self.bias = nn.Parameter(torch.empty(frequent))
        self.projection = projection(config, width, config.is_projected)
        # a bare parameter, for the same reason as in AdaptiveBand
        self.band_words = nn.Parameter(torch.empty(len(rare), width)) if rare else None
        self.band_bias = nn.Parameter(torch.empty(len(rare))) if rare else None
        self.tails = nn.ModuleList(ProjectedTail(config, size, width) for size, width in rare)
        self.dropout = nn.Dropout(0.0)

    def head(self, states: torch.Tensor) -> torch.Tensor:
        """Score the first band's words and the other bands: (..., hidden) -> (..., words and bands)."""
        states = states if self.projection is None else states @ self.projection
        words = linear(states, self.words, self.bias)
        if self.band_words is None:
            return words.float()
        bands = linear(states, self.band_words, self.band_bias)
        return torch.cat([words, bands], dim=-1).float()

    def resize_last(self, resized: Callable[[nn.Parameter], nn.Parameter]) -> None:
        """Resize what scores the last band, and its biases."""
        last: Any = self.tails[-1] if self.tails else self
        name = "table" if self.tails else "words"
        setattr(last, name, resized(getattr(last, name)))
        last.bias = nn.Parameter(resized(nn.Parameter(last.bias[:, None].detach()))[:, 0].contiguous())

    def column(self, band: Any) -> Any:
        """Find the column of the head's scores that belongs to a band: the last band comes first."""
        return len(self.words) + len(self.tails) - band


def tied(config, embedding: str, head: str) -> dict[str, str]:
    """Say which parameters of a head are the embedding's: all tables, and all projections but the first band's."""
    pairs = {f"{head}.words": f"{embedding}.0.table"}
    for i in range(len(config.reached_cutoffs)):
        pairs[f"{head}.tails.{i}.table"] = f"{embedding}.{i + 1}.table"
        if config.is_projected:
            band = f"{i + 1}." if config.adaptive_factor > 1 else ""
            pairs[f"{head}.tails.{i}.projection"] = f"{embedding}.{band}projection"
    return pairs
