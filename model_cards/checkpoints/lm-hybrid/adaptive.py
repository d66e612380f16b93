"""Adaptive input representations and softmax: the rarer a word, the narrower its vector.

Baevski and Auli (2019), "Adaptive Input Representations for Neural Language Modeling", section 3, and Grave et al.
(2017), "Efficient softmax approximation for GPUs", section 4. Ids are sorted by frequency, the most frequent first, and
`adaptive_cutoffs` divides them into bands.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.utils.import_utils import is_tracing

from .losses import IGNORED, mean_cross_entropy


def number_bands(ids: torch.Tensor, cutoffs: list[int]) -> torch.Tensor:
    """Say in which band each id is, negative ones in the first."""
    return sum((ids >= cutoff for cutoff in cutoffs), torch.zeros_like(ids))


class AdaptiveBand(nn.Module):
    """A table of narrow vectors, which a matrix makes wide: numbers of words within the band (...) -> (..., hidden)."""

    # bare parameters, since tools that adapt or quantise every nn.Linear would break the tie with the softmax
    def __init__(self, size: int, width: int, hidden_size: int):
        super().__init__()
        self.table = nn.Parameter(torch.empty(size, width))
        self.projection = nn.Parameter(torch.empty(hidden_size, width))

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Look the words up."""
        return nn.functional.linear(nn.functional.embedding(numbers, self.table), self.projection)


class AdaptiveTail(AdaptiveBand):
    """The same matrix and table the other way round: (..., hidden) -> (..., words of the band)."""

    def __init__(self, size: int, width: int, hidden_size: int, dropout: float):
        super().__init__(size, width, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Score the words."""
        return nn.functional.linear(self.dropout(states @ self.projection), self.table)


class AdaptiveEmbedding(nn.ModuleList):
    """The embeddings of all bands: ids (batch, length) -> (batch, length, hidden)."""

    def __init__(self, config):
        super().__init__(AdaptiveBand(size, width, config.hidden_size) for size, width in config.adaptive_bands)
        self.cutoffs = config.adaptive_cutoffs

    @property
    def num_embeddings(self) -> int:
        """Size of the vocabulary, which grows and shrinks with the last band."""
        last: Any = self[-1]
        return sum(self.cutoffs[-1:]) + len(last.table)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Look the words up in each band, and keep those that it has, so that no shape depends on the data.

        Raises:
            IndexError: an id outside the vocabulary.
        """
        bands = number_bands(ids, self.cutoffs)
        states = ids.new_zeros(())
        for number, (band, first) in enumerate(zip(self, [0, *self.cutoffs], strict=True)):
            here = bands == number
            states = torch.where(here[..., None], band(torch.where(here, ids - first, 0)), states)
        return states


class AdaptiveLogSoftmax(nn.Module):
    """Log-probabilities of the next word, or a loss from which rare words are left out where they do not occur.

    The head scores the words of the first band and the other bands; the tail of a band scores the words within it.
    """

    def __init__(self, config):
        super().__init__()
        self.cutoffs = config.adaptive_cutoffs
        (frequent, hidden_size), *rare = config.adaptive_bands
        dropout = config.adaptive_softmax_dropout
        self.words = nn.Parameter(torch.empty(frequent, hidden_size))
        self.bands = nn.Linear(hidden_size, len(rare), bias=False)
        self.tails = nn.ModuleList(AdaptiveTail(size, width, hidden_size, dropout) for size, width in rare)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        states: torch.Tensor,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """Score all words, (..., hidden) -> (..., vocabulary), or with labels (...) compute `mean_cross_entropy`."""
        states = self.dropout(states)
        if labels is not None:
            return self.loss(states.flatten(0, -2), labels.flatten(), num_items_in_batch)
        head = self.head(states).log_softmax(-1)
        tails = [
            tail(states).float().log_softmax(-1) + head[..., self.column(band), None]
            for band, tail in enumerate(self.tails, start=1)
        ]
        return torch.cat([head[..., : len(self.words)], *tails], dim=-1)

    def head(self, states: torch.Tensor) -> torch.Tensor:
        """Score the first band's words and the other bands: (..., hidden) -> (..., words and bands)."""
        return torch.cat([nn.functional.linear(states, self.words), self.bands(states)], dim=-1).float()

    def resize_last(self, resized: Callable[[nn.Parameter], nn.Parameter]) -> None:
        """Resize what scores the last band."""
        last: Any = self.tails[-1]
        last.table = resized(last.table)

    def column(self, band: Any) -> Any:
        """Find the column of the head's scores that belongs to a band, by its number from 1, or a tensor of these."""
        return len(self.words) + band - 1

    def loss(
        self, states: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None
    ) -> torch.Tensor:
        """Compute the mean cross-entropy, each tail's only where a word of its band is the label."""
        if num_items_in_batch is None:
            num_items_in_batch = (labels != IGNORED).sum().clamp(min=1)
        bands = number_bands(labels, self.cutoffs)
        chosen = torch.where(bands > 0, self.column(bands), labels)
        loss = mean_cross_entropy(self.head(states), chosen, num_items_in_batch)
        for number, (tail, first) in enumerate(zip(self.tails, self.cutoffs, strict=True), start=1):
            here = bands == number
            if is_tracing(states):
                # a graph has fixed shapes
                scores, inside = tail(states), torch.where(here, labels - first, IGNORED)
            else:
                scores, inside = tail(states[here]), labels[here] - first
            loss = loss + mean_cross_entropy(scores.float(), inside, num_items_in_batch)
        return loss


def resize_bands(
    model: Any, new_num_tokens: int | None, pad_to_multiple_of: int | None, mean_resizing: bool
) -> nn.Module:
    """Give a language model another number of words, for which the last band grows or shrinks.

    Arguments are those of `resize_token_embeddings`.

    Raises:
        ValueError: the last band would be empty.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    # a cutoff beyond the old vocabulary would split the larger one into other bands
    model.config.adaptive_cutoffs = embedding.cutoffs or None
    cutoffs = embedding.cutoffs or [0]
    multiple = pad_to_multiple_of or 1
    size = -(-(new_num_tokens or model.config.vocab_size) // multiple) * multiple
    if size <= cutoffs[-1]:
        raise ValueError(f"{size} words are not enough for adaptive_cutoffs={cutoffs}; keep more")

    def resized(table: nn.Parameter) -> nn.Parameter:
        old = nn.Embedding.from_pretrained(table, freeze=not table.requires_grad)
        return model._get_resized_embeddings(old, size - cutoffs[-1], mean_resizing=mean_resizing).weight

    embedding[-1].table = resized(embedding[-1].table)
    if head:
        head.resize_last(resized)
    model.config.vocab_size = size
    model.tie_weights()
    return embedding
