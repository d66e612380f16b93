"""The teacher's answers, computed when a text is first read, and kept on disk for any number of students."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from sublayers.training.distill.objectives import Objective
from sublayers.training.distill.texts import padding
from sublayers.training.folders import claim, whole_folder
from sublayers.training.trainers.resumable_trainer import writing

# files of a folder of answers: the answers of all texts, which texts have them, and what was asked
ANSWERS, ANSWERED, ABOUT = "answers.npy", "answered.npy", "about.json"


class AnsweredTexts(torch.utils.data.Dataset):
    """Tokenized texts, each with the teacher's answers to it, (its rows, width), as `answers`.

    When a batch is read, the teacher is asked for those that are not kept yet.

    Args:
        rows: the texts.
        objective: what the teacher is asked.
    """

    def __init__(self, rows: Dataset, objective: Objective):
        self.rows, self.objective = rows, objective
        self.counts = objective.count(rows)
        self.ends = np.cumsum(self.counts)
        self.pad = padding(objective.teacher.tokenizer)

    def keep(self, folder: Path, about: dict[str, Any], device: Any) -> None:
        """Choose a folder that keeps answers, made if there is none, and the device that the teacher runs on.

        Students of the same teacher and texts may share it, also at the same time.

        Raises:
            FileExistsError: another run is making it.
            OSError: it cannot be written to.
            ValueError: the answers there are of something else than `about` names.
        """
        self.file, self.device = folder / ANSWERS, device
        if not folder.exists():
            with claim(folder.parent):
                # another run may have made it in the meantime
                if not folder.exists():
                    self._make(folder, about)
        kept = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if differing := [name for name in about if kept.get(name) != about[name]]:
            raise ValueError(
                f"{folder.parent} holds answers for {folder.name} with another {' and '.join(differing)}; choose "
                "another folder with --answers"
            )
        self.answers = np.load(self.file, mmap_mode="r")
        self.answered = np.load(folder / ANSWERED, mmap_mode="r+")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Read a text without its answers, for which the teacher need not be asked."""
        return self.rows[index]

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        """Read the texts of a batch with their answers."""
        if missing := [i for i in dict.fromkeys(indices) if not self.answered[i]]:
            self._answer(missing)
        places = [slice(self.ends[i] - self.counts[i], self.ends[i]) for i in indices]
        return [{**self.rows[i], "answers": self.answers[place]} for i, place in zip(indices, places, strict=True)]

    def _answer(self, indices: list[int]) -> None:
        found = self._ask(indices).astype(self.answers.dtype)
        # a full disk is an error of a file that is written, and would end the process if it were mapped into memory
        with writing(self.file), open(self.file, "r+b") as file:
            for i, rows in zip(indices, np.split(found, np.cumsum(self.counts[indices])[:-1]), strict=True):
                file.seek(self.answers.offset + (self.ends[i] - self.counts[i]) * self.answers.strides[0])
                file.write(rows.tobytes())
            file.flush()
            os.fsync(file.fileno())
        # answers are flushed to disk before they are marked as there
        self.answered[indices] = True

    @torch.no_grad()
    def _ask(self, indices: list[int]) -> np.ndarray:
        teacher: Any = self.objective.teacher.model
        teacher.to(self.device)
        batch = self.pad([self.rows[i] for i in indices]).to(self.device)
        return self.objective.ask_teacher(batch).float().cpu().numpy()

    def _make(self, folder: Path, about: dict[str, Any]) -> None:
        shape = int(self.ends[-1]), self._ask([0]).shape[1]
        with writing(folder), whole_folder(folder) as new:
            # the file is sparse: answers that are missing take no room
            np.lib.format.open_memmap(new / ANSWERS, "w+", self.objective.dtype, shape)
            np.save(new / ANSWERED, np.zeros(len(self), bool))
            (new / ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


class AnswerCollator:
    """Pad texts to a batch; put their answers one behind the other, (rows, width), and count them, (batch,)."""

    def __init__(self, tokenizer: Any):
        self.pad = padding(tokenizer)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Make a batch with `answers` and `counts`."""
        answers = [row["answers"] for row in rows]
        texts = [{name: value for name, value in row.items() if name != "answers"} for row in rows]
        return {
            **self.pad(texts),
            "answers": torch.from_numpy(np.concatenate(answers, dtype=np.float32)),
            "counts": torch.tensor([len(each) for each in answers]),
        }
