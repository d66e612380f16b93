"""The Trainer of a student."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cosine_similarity
from transformers import EvalPrediction

from sublayers.training.distill.teacher import Pooling, answer
from sublayers.training.trainers.resumable_trainer import ResumableTrainer


class DistillTrainer(ResumableTrainer):
    """A Trainer whose batches have the teacher's `answers`, (batch, width).

    Args:
        pooling: by which the student is asked, see `answer`.
        loss: of the student's and the teacher's answers.
    """

    def __init__(
        self, *args, pooling: Pooling | None, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], **kwargs
    ):
        super().__init__(*args, **kwargs)
        self.pooling, self.loss = pooling, loss

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, *args, **kwargs) -> Any:
        """Ask the student, and compare."""
        texts = {name: tensor for name, tensor in inputs.items() if name != "answers"}
        found = answer(model, texts, self.pooling)
        loss = self.loss(found, inputs["answers"])
        return (loss, {"answers": found}) if return_outputs else loss


def cosine(found: EvalPrediction) -> dict[str, float]:
    """Measure the mean cosine of both embeddings of a text; of other widths there is none."""
    student, teacher = (torch.from_numpy(np.asarray(each)) for each in (found.predictions, found.label_ids))
    return {"cosine": cosine_similarity(student, teacher).mean().item()} if student.shape == teacher.shape else {}


def agreement(found: EvalPrediction) -> dict[str, float]:
    """Measure for how many texts both have the same label."""
    student, teacher = (np.asarray(each).argmax(-1) for each in (found.predictions, found.label_ids))
    return {"agreement": float((student == teacher).mean())}
