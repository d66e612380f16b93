"""The Trainer of a student."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import EvalPrediction

from sublayers.hub.loading import folder_of
from sublayers.hub.self_contained import copy_modules
from sublayers.training.distill.objectives import Objective
from sublayers.training.distill.teacher import CLASSIFIER, Pooling, Teacher
from sublayers.training.trainers.resumable_trainer import ResumableTrainer

# pooling by the first token needs the state of that token alone
FIRST_TOKEN = {"text": {"method": "forward_first_token", "method_output_name": "last_hidden_state"}}


class DistillTrainer(ResumableTrainer):
    """A Trainer whose batches have the teacher's `answers`, (rows, width), and the `counts` of each text's, (batch,).

    Args:
        objective: what is asked, and how answers are compared.
        max_length: tokens of a text that the student has read.
    """

    def __init__(self, *args, objective: Objective, max_length: int, **kwargs):
        def mean(found: EvalPrediction) -> dict[str, float]:
            return {str(objective.metric): float(np.average(found.predictions, weights=found.label_ids))}

        super().__init__(*args, compute_metrics=mean if objective.metric else None, **kwargs)
        self.objective: Objective = objective
        self.max_length = max_length
        # without training the student is kept as it starts
        self.leaves_model = True

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the student; what is not part of a checkpoint opens as its teacher's folder does."""
        if _internal_call:
            super().save_model(output_dir, _internal_call)
            return
        # a map that only training needs is part of a checkpoint, but not of the student
        to_teacher = self.objective.student._modules.pop("to_teacher", None)
        super().save_model(output_dir)
        if to_teacher:
            self.objective.student.to_teacher = to_teacher
        if not self.args.should_save:
            return
        folder, teacher = Path(output_dir or str(self.args.output_dir)), self.objective.teacher
        if self.objective.pooling:
            save_sentence_encoder(folder, teacher, self.objective.pooling, self.max_length)
        elif teacher.head is CLASSIFIER:
            copy_modules(folder_of(teacher.source), folder)

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, *args, **kwargs) -> Any:
        """Ask the student, and compare; what is measured is the mean of each text."""
        texts = {name: tensor for name, tensor in inputs.items() if name not in ("answers", "counts")}
        # an objective may call other methods than forward, which alone the Trainer runs in fewer bits
        with self.accelerator.autocast():
            answered = self.objective.ask(model, texts), self.objective.read(inputs["answers"])
        found, answers = (each.float() for each in answered)
        loss = self.objective.loss(found, answers, inputs)
        if not return_outputs:
            return loss
        if self.objective.metric is None:
            return loss, {}
        scores = self.objective.score(found, answers, inputs).split(inputs["counts"].tolist())
        return loss, {"scores": torch.stack([each.mean() for each in scores])}


def save_sentence_encoder(folder: str | Path, teacher: Teacher, pooling: Pooling, max_length: int) -> None:
    """Add to a student's folder what a SentenceTransformer does with its states: it pools, and what its teacher's does.

    Args:
        folder: with model and tokenizer.
        teacher: whose answers the student was trained for.
        pooling: by which the student was trained.
        max_length: tokens of a text that are read where the teacher does not say how many.
    """
    # these imports take seconds
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling as PoolingModule, Transformer

    method = {"modality_config": FIRST_TOKEN, "module_output_name": "token_embeddings"}
    body = Transformer(str(folder), **(method if pooling == "cls" else {}))
    positions = body.model.config.max_position_embeddings
    body.max_seq_length = min(teacher.max_seq_length or max_length, positions)
    modules = [body, PoolingModule(body.get_embedding_dimension(), pooling)]
    if teacher.normalize:
        modules.append(Normalize())
    encoder = SentenceTransformer(modules=modules, device="cpu", **teacher.settings)
    encoder.save(str(folder), create_model_card=False)
