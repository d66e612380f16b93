"""The teacher's answers, computed once and kept on disk for any number of students."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from rich.console import Console
from rich.progress import Progress
from transformers import DataCollatorWithPadding

from sublayers.training.distill.objectives import Objective
from sublayers.training.folders import claim

# texts between two records of how far the teacher has come
CHUNK = 4096


class AnsweredTexts(torch.utils.data.Dataset):
    """Tokenized texts, each with the teacher's answers to it, (its rows, width), as `answers`.

    Args:
        rows: the texts.
        counts: how many answers each has, (texts,).
        answers: those of all texts one behind the other, (rows of all, width).
    """

    def __init__(self, rows: Dataset, counts: np.ndarray, answers: np.ndarray | None = None):
        self.rows, self.counts, self.answers = rows, counts, answers
        self.ends = np.cumsum(counts)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        assert self.answers is not None
        end = self.ends[index]
        return {**self.rows[index], "answers": self.answers[end - self.counts[index] : end]}


class AnswerCollator:
    """Pad texts to a batch; put their answers one behind the other, (rows, width), and count them, (batch,)."""

    def __init__(self, tokenizer: Any):
        self.pad = DataCollatorWithPadding(tokenizer)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Make a batch with `answers` and `counts`."""
        answers = [row["answers"] for row in rows]
        texts = [{name: value for name, value in row.items() if name != "answers"} for row in rows]
        return {
            **self.pad(texts),
            "answers": torch.from_numpy(np.concatenate(answers, dtype=np.float32)),
            "counts": torch.tensor([len(each) for each in answers]),
        }


def check_answers(folder: Path, split: str, about: dict[str, Any]) -> dict[str, Any] | None:
    """Read what is recorded of a split's answers, if there are any: what they are of and, if some lack, how many texts.

    Raises:
        ValueError: they are of something else than `about` names.
    """
    record = folder / f"{split}.json"
    if not record.exists():
        return None
    kept = json.loads(record.read_text(encoding="utf-8"))
    if differing := [name for name in about if kept.get(name) != about[name]]:
        raise ValueError(
            f"{folder} holds answers for {split} with another {' and '.join(differing)}; choose another folder with "
            "--answers"
        )
    return kept


def load_answers(
    folder: Path,
    split: str,
    about: dict[str, Any],
    objective: Objective,
    texts: AnsweredTexts,
    batch_size: int,
    device: Any,
) -> np.ndarray:
    """Read the teacher's answers to all texts, or compute and keep them: (rows, width), on disk.

    A computation that was interrupted goes on behind the last texts that the record counts. The record without a count,
    which is written when all answers are there, stands for all of them.

    Raises:
        FileExistsError: another run is computing them.
        OSError: there is no room for them.
        ValueError: what `check_answers` refuses.
    """
    file = folder / f"{split}.npy"
    kept = check_answers(folder, split, about)
    if kept is None or "answered" in kept:
        with claim(folder):
            _compute(folder, split, about, objective, texts, batch_size, device)
    return np.load(file, mmap_mode="r")


@torch.no_grad()
def _compute(
    folder: Path,
    split: str,
    about: dict[str, Any],
    objective: Objective,
    texts: AnsweredTexts,
    batch_size: int,
    device: Any,
) -> None:
    file, number = folder / f"{split}.npy", len(texts)
    # what another run has computed in the meantime is there
    kept = check_answers(folder, split, about) or {"answered": 0}
    done = kept.get("answered", number)
    answers: Any = np.load(file, mmap_mode="r+") if done else None
    pad: Any = DataCollatorWithPadding(objective.teacher.tokenizer)
    lengths = np.array([len(ids) for ids in texts.rows["input_ids"]])
    model: Any = objective.teacher.model
    model.to(device)
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("asking the teacher", total=number, completed=done)
        for start in range(done, number, CHUNK):
            # texts of similar length need little padding
            chunk = start + np.argsort(lengths[start : start + CHUNK], kind="stable")
            for batch in np.split(chunk, range(batch_size, len(chunk), batch_size)):
                found = objective.ask_teacher(pad([texts.rows[int(i)] for i in batch]).to(device)).float().cpu().numpy()
                if answers is None:
                    answers = _create(file, (int(texts.ends[-1]), found.shape[1]), objective.dtype)
                for i, rows in zip(batch, np.split(found, np.cumsum(texts.counts[batch])[:-1]), strict=True):
                    answers[texts.ends[i] - len(rows) : texts.ends[i]] = rows
                bar.advance(task, len(batch))
            # on disk before they are counted
            answers.flush()
            end = start + len(chunk)
            _write(folder / f"{split}.json", about | ({"answered": end} if end < number else {}))
    model.cpu()


def _create(file: Path, shape: tuple[int, int], dtype: Any) -> np.memmap:
    needed, free = np.dtype(dtype).itemsize * shape[0] * shape[1], shutil.disk_usage(file.parent).free
    # a full disk would end the process without a word
    if needed > free:
        raise OSError(
            f"the answers take {needed / 1e9:.1f} GB, and {file.parent} has room for {free / 1e9:.1f} GB; give another "
            "folder with --answers, or fewer texts"
        )
    return np.lib.format.open_memmap(file, "w+", dtype=dtype, shape=shape)


def _write(record: Path, about: dict[str, Any]) -> None:
    partial = record.with_suffix(".part.json")
    partial.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    # half a record is never read
    partial.replace(record)
