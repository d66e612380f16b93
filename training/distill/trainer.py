"""The Trainer of a student."""

from typing import Any

import numpy as np
import torch
from transformers import EvalPrediction

from sublayers.training.distill.objectives import Objective
from sublayers.training.trainers.resumable_trainer import ResumableTrainer


class DistillTrainer(ResumableTrainer):
    """A Trainer whose batches have the teacher's `answers`, (rows, width), and the `counts` of each text's, (batch,).

    Args:
        objective: what is asked, and how answers are compared.
    """

    def __init__(self, *args, objective: Objective, **kwargs):
        def mean(found: EvalPrediction) -> dict[str, float]:
            return {str(objective.metric): float(np.average(found.predictions, weights=found.label_ids))}

        super().__init__(*args, compute_metrics=mean if objective.metric else None, **kwargs)
        self.objective: Objective = objective

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, *args, **kwargs) -> Any:
        """Ask the student, and compare; what is measured is the mean of each text."""
        texts = {name: tensor for name, tensor in inputs.items() if name not in ("answers", "counts")}
        counts = inputs["counts"]
        # an objective may call other methods than forward, which alone the Trainer runs in fewer bits
        with self.accelerator.autocast():
            answered = self.objective.ask(model, texts), self.objective.read(inputs["answers"])
        found, answers = (each.float() for each in answered)
        loss = self.objective.loss(found, answers, counts)
        if not return_outputs:
            return loss
        if self.objective.metric is None:
            return loss, {}
        scores = self.objective.score(found, answers).split(counts.tolist())
        return loss, {"scores": torch.stack([each.mean() for each in scores])}
