"""Batches of at most a number of tokens, made of rows of similar length."""

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler


class TokenBatchSampler(Sampler[list[int]]):
    """Batches of rows of similar length, each with rows * max(longest source, longest target) <= max_tokens.

    That is what fairseq's --max-tokens limits: the larger side of a batch, padding included. The seed alone decides
    which rows are together, the seed and the epoch in which order batches come.

    Args:
        source_lengths: tokens of each row's source.
        target_lengths: tokens of each row's target.
        max_tokens: limit of a batch.
        seed: not negative.
        shuffle: False leaves the batches in order of their length.

    Raises:
        ValueError: a row is longer than max_tokens.
    """

    def __init__(
        self,
        source_lengths: Sequence[int],
        target_lengths: Sequence[int],
        max_tokens: int,
        seed: int = 0,
        shuffle: bool = True,
    ):
        source, target = np.asarray(source_lengths), np.asarray(target_lengths)
        lengths = np.maximum(source, target)
        if lengths.max() > max_tokens:
            row = int(np.argmax(lengths > max_tokens))
            raise ValueError(
                f"row {row} has {lengths[row]} tokens, more than max_tokens={max_tokens}; "
                "raise it, or leave out pairs of this length"
            )
        self.seed, self.shuffle, self.epoch = seed, shuffle, 0
        ties = np.random.default_rng(seed).random(len(lengths))
        order = np.lexsort((ties, source, target, lengths))
        starts = [0]
        for i, length in enumerate(lengths[order].tolist()):
            # the last row is the longest
            if (i + 1 - starts[-1]) * length > max_tokens:
                starts.append(i)
        self.batches = [rows.tolist() for rows in np.split(order, starts[1:])]

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the batches, as Trainer and accelerate do before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        numbers = np.arange(len(self.batches))
        if self.shuffle:
            np.random.default_rng((self.seed, self.epoch)).shuffle(numbers)
        return (self.batches[number] for number in numbers)
