"""Segments of a text that follow each other in every row of a batch, for models that remember the segments before."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from sublayers.modeling.losses import IGNORED
from sublayers.training.data.language_modeling import check_stream


class Segments(Dataset):
    """A stream of tokens, of which each row reads a part from its beginning to its end, segment by segment.

    Item `segment * rows + row` is a segment of the part of a row, so that batches of consecutive items always have the
    same rows, in several processes, too. It has `segment`, the number of the segment within the part, `input_ids`, and
    `labels`, the token that follows each of them, of which the last one stands in the next segment. All labels are
    there twice, since the Trainer counts `labels` and models read `shift_labels`.

    Args:
        tokens: whole stream, (number of tokens,).
        length: tokens in a segment; the last one of a part may be shorter.
        rows: how many parts there are.
        stride: from the beginning of one part to that of the next.
        span: tokens in a part; those that exceed the stride overlap the part before, and are no labels again.

    Raises:
        ValueError: a stream without a target.
    """

    def __init__(self, tokens: np.ndarray, length: int, rows: int, stride: int, span: int):
        check_stream(tokens)
        self.tokens = tokens
        self.length = length
        self.rows = rows
        self.stride = stride
        self.span = span

    def __len__(self) -> int:
        return self.rows * math.ceil(self.span / self.length)

    def __getitem__(self, index: int) -> dict[str, Tensor | int]:
        segment, row = divmod(index, self.rows)
        width = min(self.length, self.span - segment * self.length)
        start = row * self.stride + segment * self.length
        found = torch.from_numpy(self.tokens[start : start + width + 1].astype(np.int64))
        ids, labels = found[:-1], found[1:].clone()
        if row:
            labels[: max(0, self.span - self.stride - segment * self.length)] = IGNORED
        # only at the end of the text; attention never looks right, so that any token will do as padding
        padding = (0, width - len(ids))
        labels = F.pad(labels, padding, value=IGNORED)
        return {"input_ids": F.pad(ids, padding), "labels": labels, "shift_labels": labels, "segment": segment}

    def divide(self, rows: int, warm_up: int) -> "Segments":
        """Cut the text into parts that can be scored beside each other, for the scores of the text as a whole.

        Args:
            rows: how many parts there are.
            warm_up: how many segments before a part have to be read, without being scored, so that its memory is that
                of the whole text.
        """
        num_segments = math.ceil((len(self.tokens) - 1) / self.length)
        stride = max(1, math.ceil((num_segments - warm_up) / rows))
        span = min(num_segments, stride + warm_up) * self.length
        return Segments(self.tokens, self.length, rows, stride * self.length, span)


def training_segments(tokens: np.ndarray, length: int, rows: int) -> Segments:
    """Cut a stream into parts of one length for the rows of a batch; fewer tokens than rows are left over at its end.

    Raises:
        ValueError: a part would be shorter than a segment.
    """
    span = (len(tokens) - 1) // rows
    if span < length:
        raise ValueError(
            f"the training text has {len(tokens)} tokens, too few for {rows} rows with segments of {length}; "
            "give more text, or a smaller --per_device_train_batch_size or --block_size"
        )
    return Segments(tokens, length, rows, span, span)


def whole_text(tokens: np.ndarray, length: int) -> Segments:
    """Cut a text into the segments of a single row, the last one padded."""
    span = math.ceil((len(tokens) - 1) / length) * length
    return Segments(tokens, length, 1, span, span)
