"""Training windows of a corpus that is read while a model trains, by several processes, and from any place on."""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerBase

from sublayers.training.data.corpus import Text
from sublayers.training.data.language_modeling import Windows, token_pieces

Window = dict[str, Tensor]


class Place(NamedTuple):
    """Where a stream goes on: after how many windows, and at which token of which piece of which file.

    Files are counted on when the stream begins with its first one again.
    """

    windows: int = 0
    file: int = 0
    piece: int = 0
    token: int = 0


class StreamedWindows(IterableDataset):
    """The windows of a text's files, again and again, as one or several streams.

    A stream reads its files one after the other; each file ends with a window that is padded. Readers are the workers
    of all processes, or the processes themselves. They share the streams evenly: a reader of several streams takes a
    window of each in turn, and several readers of a stream take its windows in turn. So what a step reads does not
    depend on the number of readers, as long as it is the same number of windows and the streams are the same.

    A window has `input_ids` and `labels`, (block_size,), and the `place` after it, with the number of its stream
    before.

    Args:
        text: to read.
        tokenizer: a tokenizer with an end token.
        block_size: tokens in a window.

    Attributes:
        places: where each stream goes on; those of this process follow its training.
        batches: how many batches this process has trained on.

    Raises:
        ValueError: fewer files than readers, or a stream without a token to predict.
    """

    def __init__(self, text: Text, tokenizer: PreTrainedTokenizerBase, block_size: int):
        self.text, self.tokenizer, self.block_size = text, tokenizer, block_size
        self.divide(0, 1)

    def divide(self, process: int, processes: int, workers: int = 1) -> None:
        """Say which process this is, and make as many streams as files and readers allow."""
        self.process, self.processes, self.workers = process, processes, workers
        files, readers = self.text.num_files, processes * workers
        if workers > 1 and files < readers:
            raise ValueError(
                f"{files} files cannot be divided among {processes} processes with {workers} workers each; "
                "give a smaller --dataloader_num_workers"
            )
        # each reader has its own stream, or equally many share one
        streams = max(number for number in range(1, readers + 1) if readers % number == 0 and number <= files)
        self.go_on([Place()] * streams, 0)

    def go_on(self, places: list[Place], batches: int) -> None:
        """Begin each stream at a place. Raises a ValueError if the readers cannot share the streams evenly."""
        readers = self.processes * self.workers
        if max(readers, len(places)) % min(readers, len(places)):
            raise ValueError(
                f"{len(places)} streams cannot be divided among {readers} readers; continue with a number of "
                "processes that divides the first number, or that it divides"
            )
        self.places, self.batches = places, batches

    def __iter__(self) -> Iterator[Window]:
        worker: Any = get_worker_info()
        # a loader asks its first worker first, but another one may be next
        number = (worker.id + self.batches) % self.workers if worker else 0
        reader, readers = self.process * self.workers + number, self.processes * self.workers
        streams = len(self.places)
        mine = range(reader % streams, streams, readers)
        turn, turns = reader // streams, max(1, readers // streams)
        reading = {stream: self._read(stream) for stream in mine}
        done = {stream: self.places[stream].windows for stream in mine}
        while True:
            stream = min(mine, key=done.__getitem__)
            window, place = next(reading[stream])
            done[stream] = place.windows
            if (place.windows - 1) % turns == turn:
                yield window | {"place": torch.tensor([stream, *place])}

    def _read(self, stream: int) -> Iterator[tuple[Window, Place]]:
        files = range(stream, self.text.num_files, len(self.places))
        place, empty = self.places[stream], 0
        # the file of a place may have no more windows
        while empty <= len(files):
            empty += 1
            file = self.text.file(files[place.file % len(files)])
            for window, piece, token in _file_windows(file, self.tokenizer, self.block_size, place.piece, place.token):
                place, empty = Place(place.windows + 1, place.file, piece, token), 0
                yield window, place
            place = Place(place.windows, place.file + 1)
        raise ValueError("a part of the corpus has no tokens to predict; give fewer or larger files")


def _file_windows(
    text: Text, tokenizer: PreTrainedTokenizerBase, block_size: int, piece: int, token: int
) -> Iterator[tuple[Window, int, int]]:
    # each window comes with the piece and the token at which the next one begins
    rest, lengths = np.empty(0, dtype=np.int32), deque[int]()
    for tokens, more in token_pieces(text, tokenizer, piece):
        rest = np.concatenate([rest, tokens])
        lengths.extend(more)
        while len(rest) - token >= block_size:
            window = Windows(rest[token:], block_size)[0]
            token += block_size - 1
            while token >= lengths[0]:
                token -= lengths[0]
                rest = rest[lengths.popleft() :]
                piece += 1
            yield window, piece, token
    if len(rest) - token > 1:
        yield Windows(rest[token:], block_size)[0], piece + len(lengths), 0
