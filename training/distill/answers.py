"""The teacher's answers, computed when a text is first read, and kept on disk for any number of students."""

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
import transformers
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset
from tqdm.auto import tqdm

import sublayers
from sublayers.training.distill.objectives import Objective
from sublayers.training.distill.sharding import is_sharded
from sublayers.training.distill.teacher import read_json
from sublayers.training.distill.texts import padding
from sublayers.training.folders import whole_folder
from sublayers.training.trainers.resumable_trainer import writing

# a folder of answers tells in this file what was asked
ABOUT = "about.json"
# what its files look like; folders of older versions do not say so
FORMAT = 2
# a shard is two files: rows of answers one after the other, and the numbers of the texts whose answers they are
ANSWERS, TEXTS = ".npy", ".texts"
# texts that a process claims at a time
RANGE = 1024


@dataclass(eq=False)
class Shard:
    """What one process was answered, as far as it has been read.

    Attributes:
        texts: how many there are.
        rows: of their answers.
        answers: (rows, width).
    """

    texts: int = 0
    rows: int = 0
    answers: Any = None


class AnsweredTexts(torch.utils.data.Dataset):
    """Tokenized texts, each with the teacher's answers to it, (its rows, width), as `answers`.

    When a batch is read, the teacher is asked for those that are not kept yet. A process writes to a shard of its own
    alone, and reads those of all.

    Args:
        rows: the texts.
        objective: what the teacher is asked.
    """

    def __init__(self, rows: Dataset, objective: Objective):
        self.rows, self.objective = rows, objective
        self.counts = objective.count(rows)
        self.pad = padding(objective.teacher.tokenizer)
        self.shards: dict[str, Shard] = {}
        # each text's shard, and the first row of its answers there
        self.places, self.starts = np.full(len(rows), None, object), np.zeros(len(rows), int)
        self.answered = np.zeros(len(rows), bool)
        # the shard that this process writes to
        self.own: str | None = None

    def keep(self, folder: Path, about: dict[str, Any], device: Any) -> None:
        """Choose a folder that keeps answers, made if there is none, and the device that the teacher runs on.

        Students of the same teacher and texts may share it, also at the same time and from several machines.

        Raises:
            OSError: it cannot be written to.
            ValueError: the answers there are of something else than `about` names, or damaged.
        """
        self.folder, self.device = folder, device
        about = {"format": FORMAT, **about}
        self.key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
        if not folder.exists():
            self._make(about)
        kept = read_json(folder / ABOUT)
        if differing := [name for name in about if kept.get(name) != about[name]]:
            raise ValueError(
                f"{folder.parent} holds answers for {folder.name} with another {' and '.join(differing)}; choose "
                "another folder with --answers"
            )
        self.look()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Read a text without its answers, for which the teacher need not be asked."""
        return self.rows[index]

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        """Read the texts of a batch with their answers."""
        self.complete(indices)
        found = (self.places[i].answers[self.starts[i] :][: self.counts[i]] for i in indices)
        return [{**self.rows[i], "answers": answers} for i, answers in zip(indices, found, strict=True)]

    def complete(self, indices: list[int]) -> None:
        """Ask the teacher for the texts of a batch that have no answers yet."""
        if not self.answered[indices].all():
            self.look()
        missing = [i for i in dict.fromkeys(indices) if not self.answered[i]]
        # where all have to ask at the same time, a process with nothing to ask does so, too
        others = gather_object([bool(missing)]) if is_sharded(self.objective.teacher.model) else []
        if missing:
            self._answer(missing)
        elif any(others):
            self._ask(indices[:1])

    def complete_all(self, batch_size: int) -> None:
        """Ask the teacher for all texts, together with other processes that do so, of this machine or another.

        All of them end when all answers are there. What a process has claimed that dies is left to the others.

        Args:
            batch_size: texts that a process asks for at a time.
        """
        state, together = PartialState(), is_sharded(self.objective.teacher.model)
        process, processes = (state.process_index, state.num_processes) if together else (0, 1)
        name = f"asking about {self.folder.name} texts"
        with tqdm(total=len(self), desc=name, unit="text", disable=not state.is_main_process) as bar:
            for claimed in self._claims_of_all() if together else self._claims():
                for start in range(0, len(claimed), batch_size * processes):
                    texts = [*claimed[start:][: batch_size * processes]]
                    self.complete(texts[process::processes] or texts[:1])
                    bar.update(int(self.answered.sum()) - bar.n)
            bar.update(len(self) - bar.n)

    def look(self) -> None:
        """Look for answers that this or another process has written since.

        Raises:
            ValueError: a shard is of other texts, or damaged.
        """
        for file in sorted(self.folder.glob(f"*{TEXTS}")):
            shard = self.shards.setdefault(file.stem, Shard())
            # a number that is not written to its end does not count yet
            texts = np.fromfile(file, np.int64, offset=8 * shard.texts)
            if not len(texts):
                continue
            if not file.stem.startswith(self.key) or not ((texts >= 0) & (texts < len(self))).all():
                raise ValueError(f"{file} is no shard of these answers; remove it")
            ends = shard.rows + np.cumsum(self.counts[texts])
            # what others have added to a file is seen by those who open it after them
            shard.answers = _map(file.with_suffix(ANSWERS), int(ends[-1]))
            self.places[texts], self.starts[texts], self.answered[texts] = shard, ends - self.counts[texts], True
            shard.texts, shard.rows = shard.texts + len(texts), int(ends[-1])

    def _claims(self) -> Iterator[range]:
        # this import takes as long as all others here
        from filelock import FileLock, Timeout

        while not self.answered.all():
            is_free = False
            for start in range(0, len(self), RANGE):
                texts = range(start, min(start + RANGE, len(self)))
                self.look()
                if self.answered[texts].all():
                    continue
                lock = self.folder / f"{start}.lock"
                # the system takes the lock from a process that ends, however it ends
                with suppress(Timeout), FileLock(lock, blocking=False):
                    is_free = True
                    yield texts
                    lock.unlink(missing_ok=True)
            if not is_free:
                time.sleep(1)
                self.look()

    def _claims_of_all(self) -> Iterator[range]:
        # the first process claims for all that have to ask at the same time
        claims = self._claims() if PartialState().is_main_process else iter(())
        while (claimed := broadcast_object_list([next(claims, None)])[0]) is not None:
            yield claimed

    def _answer(self, indices: list[int]) -> None:
        found: np.ndarray = self._ask(indices).astype(self.objective.dtype)
        # a shard that could not be written to its end is left to those who read it
        own, self.own = self.own or f"{self.key}-{uuid4().hex}", None
        answers = self.folder / f"{own}{ANSWERS}"
        if not answers.exists():
            np.save(answers, found[:0])
        # answers are on disk before they are told to be there
        _append(answers, found)
        _append(answers.with_suffix(TEXTS), np.array(indices, np.int64))
        self.own = own
        self.look()

    def _make(self, about: dict[str, Any]) -> None:
        versions = {module.__name__: module.__version__ for module in (sublayers, torch, transformers)}
        # these are told, but not compared
        told = {"texts": len(self), "dtype": np.dtype(self.objective.dtype).name, "versions": versions}
        try:
            with writing(self.folder), whole_folder(self.folder) as new:
                (new / ABOUT).write_text(json.dumps(about | told, indent=2) + "\n", encoding="utf-8")
        except OSError:
            # another process may have made it in the meantime
            if not (self.folder / ABOUT).exists():
                raise

    def _ask(self, indices: list[int]) -> np.ndarray:
        batch = self.pad([self.rows[i] for i in indices]).to(self.device)
        return self.objective.answers(batch).cpu().numpy()


def _append(file: Path, numbers: np.ndarray) -> None:
    # a full disk is an error of a file that is written, and would end the process if it were mapped into memory
    with writing(file), open(file, "ab") as opened:
        opened.write(numbers.tobytes())
        opened.flush()
        os.fsync(opened.fileno())


def _map(file: Path, rows: int) -> np.ndarray:
    try:
        with open(file, "rb") as opened:
            np.lib.format.read_magic(opened)
            # the head was written before there were rows
            (_, width), _, dtype = np.lib.format.read_array_header_1_0(opened)
            return np.memmap(opened, dtype, "r", opened.tell(), (rows, width))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{file} is damaged ({error}); remove it and {file.stem}{TEXTS}, and its texts are asked again"
        ) from error


class AnswerCollator:
    """Pad texts to a batch; put answers, if they have any, one after the other, (rows, width), and count them."""

    def __init__(self, tokenizer: Any):
        self.pad = padding(tokenizer)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Make a batch, with `answers` and `counts`, (batch,)."""
        texts = [{name: value for name, value in row.items() if name != "answers"} for row in rows]
        batch = {**self.pad(texts)}
        if answers := [row["answers"] for row in rows if "answers" in row]:
            batch["answers"] = torch.from_numpy(np.concatenate(answers, dtype=np.float32))
            batch["counts"] = torch.tensor([len(each) for each in answers])
        return batch
