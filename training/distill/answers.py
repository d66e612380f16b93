"""The teacher's answers, computed once and kept on disk for any number of students."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from rich.console import Console
from rich.progress import track
from transformers import DataCollatorWithPadding

from sublayers.training.distill.teacher import Teacher, answer
from sublayers.training.folders import claim


class AnsweredTexts(torch.utils.data.Dataset):
    """Tokenized texts, each with the teacher's answer (width,) as `answers`."""

    def __init__(self, rows: Dataset, answers: np.ndarray):
        self.rows, self.answers = rows, answers

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**self.rows[index], "answers": self.answers[index]}


class AnswerCollator:
    """Pad texts to a batch, and stack their answers (batch, width)."""

    def __init__(self, tokenizer: Any):
        self.pad = DataCollatorWithPadding(tokenizer)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Make a batch."""
        answers = torch.from_numpy(np.stack([row["answers"] for row in rows]))
        texts = [{name: value for name, value in row.items() if name != "answers"} for row in rows]
        return {**self.pad(texts), "answers": answers}


def check_answers(folder: Path, split: str, about: dict[str, Any]) -> bool:
    """Find out whether a folder has all answers for a split, of what `about` names.

    Raises:
        ValueError: it has those of something else.
    """
    record = folder / f"{split}.json"
    if not record.exists():
        return False
    kept = json.loads(record.read_text(encoding="utf-8"))
    if differing := [name for name in about if kept.get(name) != about[name]]:
        raise ValueError(
            f"{folder} holds answers for {split} with another {' and '.join(differing)}; choose another folder with "
            "--answers"
        )
    return True


def load_answers(
    folder: Path, split: str, about: dict[str, Any], teacher: Teacher, rows: Dataset, batch_size: int, device: Any
) -> np.ndarray:
    """Read the teacher's answers to all rows, or compute and keep them: (rows, width), on disk.

    The record of what they are of is written when all of them are there; without it they are computed anew.

    Raises:
        FileExistsError: another run is computing them.
        ValueError: what `check_answers` refuses.
    """
    file, part, record = (folder / f"{split}{ending}" for ending in (".npy", ".part.npy", ".json"))
    if not check_answers(folder, split, about):
        with claim(folder):
            _compute(part, teacher, rows, batch_size, device)
            part.replace(file)
            partial = record.with_suffix(".part.json")
            partial.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
            partial.replace(record)
    return np.load(file, mmap_mode="r")


@torch.no_grad()
def _compute(file: Path, teacher: Teacher, rows: Dataset, batch_size: int, device: Any) -> None:
    # texts of similar length need little padding
    order = np.argsort([len(ids) for ids in rows["input_ids"]], kind="stable")
    pad: Any = DataCollatorWithPadding(teacher.tokenizer)
    model: Any = teacher.model
    model.to(device)
    answers: Any = None
    starts = range(0, len(order), batch_size)
    for start in track(starts, "asking the teacher", console=Console(stderr=True)):
        chosen = order[start : start + batch_size]
        batch = pad([rows[int(i)] for i in chosen]).to(device)
        found = answer(model, batch, teacher.pooling).float().cpu().numpy()
        if answers is None:
            shape = (len(order), found.shape[1])
            answers = np.lib.format.open_memmap(file, "w+", dtype=np.float32, shape=shape)
        answers[chosen] = found
    answers.flush()
    model.cpu()
