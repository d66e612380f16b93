"""The Trainer of a student."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import EvalPrediction

from sublayers.hub.loading import folder_of
from sublayers.hub.self_contained import copy_modules
from sublayers.training.distill.objectives import Batch, Objective
from sublayers.training.distill.sharding import run_in_forward
from sublayers.training.distill.teacher import CLASSIFIER, Pooling, Teacher
from sublayers.training.trainers.resumable_trainer import ResumableTrainer

if TYPE_CHECKING:
    from sublayers.training.metrics.sentence_encoders import Texts

# that are asked in a test
QUESTIONS = 1000
# pooling by the first token needs the state of that token alone
FIRST_TOKEN = {"text": {"method": "forward_first_token", "method_output_name": "last_hidden_state"}}


class DistillTrainer(ResumableTrainer):
    """A Trainer whose batches have the teacher's `answers`, (rows, width), and the `counts` of each text's, (batch,).

    Where a batch has no answers, the teacher is asked.

    Several processes have the losses and gradients that one has whose batches are as large as theirs together.

    Args:
        objective: what both models compute, and how answers are compared.
        max_length: tokens of a text that the student has read.
        tests: what the embeddings of student and teacher are tested on at the end.
    """

    def __init__(self, *args, objective: Objective, max_length: int, tests: "Texts | None" = None, **kwargs):
        def mean(found: EvalPrediction) -> dict[str, float]:
            return {str(objective.metric): float(np.average(found.predictions, weights=found.label_ids))}

        super().__init__(*args, compute_metrics=mean if objective.metric else None, **kwargs)
        self.objective: Objective = objective
        self.max_length, self.tests = max_length, tests
        # without training the student is kept as it starts
        self.leaves_model = True

    def evaluations(self) -> Iterator[tuple[str, Any]]:
        """Give the texts with answers, and then the tests."""
        yield from super().evaluations()
        if self.tests:
            yield "test", self.tests

    def evaluate(self, eval_dataset: Any = None, *args, **kwargs) -> dict[str, float]:
        """Compare answers, or test the folders of student and teacher, which the first process does alone."""
        if self.tests is None or eval_dataset is not self.tests:
            return super().evaluate(eval_dataset, *args, **kwargs)
        # these imports take seconds, for which other objectives do not wait
        from sentence_transformers import SentenceTransformer

        from sublayers.training.metrics.sentence_encoders import score

        folders = {"": str(self.args.output_dir), "teacher_": self.objective.teacher.source}
        found: dict[str, float] = {}
        for name, folder in folders.items() if self.is_world_process_zero() else ():
            scores = score(SentenceTransformer(folder, device=str(self.args.device)), self.tests, QUESTIONS)
            found |= {f"{kwargs['metric_key_prefix']}_{name}{metric}": value for metric, value in scores.items()}
        return found

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
        # texts of a stream come without answers
        answers = inputs["answers"] if "answers" in inputs else self.objective.answers(texts)
        # an objective may call other methods than forward, which alone the Trainer runs in fewer bits
        with self.accelerator.autocast():
            answered = self.ask(model, texts), self.objective.read(answers)
        found, answers = (each.float() for each in answered)
        # texts that fill up the last batches of several processes are not evaluated twice
        gather = self.accelerator.gather_for_metrics if return_outputs else self.accelerator.gather
        loss = self.compare(found, answers, {**texts, "counts": inputs["counts"]}, gather)
        if not return_outputs:
            return loss
        if self.objective.metric is None:
            return loss, {}
        scores = self.objective.score(found, answers, inputs).split(inputs["counts"].tolist())
        return loss, {"scores": torch.stack([each.mean() for each in scores])}

    def ask(self, model: Any, texts: dict[str, torch.Tensor]) -> torch.Tensor:
        """Ask the student: (rows, width)."""
        student = self.objective.student
        return run_in_forward(model, student, lambda **texts: self.objective.ask(student, texts), **texts)

    def compare(
        self, found: torch.Tensor, answers: torch.Tensor, batch: Batch, gather: Callable[[Any], Any]
    ) -> torch.Tensor:
        """Compute the loss of the batches of all processes; the mean of the processes' gradients is the gradient of it.

        Args:
            found: the student's answers to the texts of this process, (rows, width).
            answers: the teacher's.
            batch: these texts, with their `counts` of rows, (batch,).
            gather: makes of the counts of each process those of all texts that are compared.
        """
        processes, own = self.args.world_size, self.args.process_index
        if processes == 1:
            return self.objective.loss(found, answers, batch)
        counts = batch["counts"]
        all_counts = gather(counts)
        if self.objective.compares_texts:
            rows = int(all_counts.sum())
            parts = [*self.accelerator.gather(found.detach()).split(len(found))]
            # what is gathered has no gradients
            parts[own] = found
            found, answers = torch.cat(parts)[:rows], self.accelerator.gather(answers)[:rows]
            loss = self.objective.loss(found, answers, {"counts": all_counts})
        else:
            counts = all_counts[own * len(counts) :][: len(counts)]
            rows = int(counts.sum())
            found, answers = found[:rows], answers[:rows]
            batch = {name: tensor[: len(counts)] for name, tensor in batch.items()} | {"counts": counts}
            # there is no mean of no rows
            total = self.objective.loss(found, answers, batch) * rows if rows else found.sum()
            others = self.accelerator.reduce(total.detach(), "sum") - total.detach()
            loss = (total + others) / all_counts.sum()
        # each process has the gradients of its own rows only, which are going to be averaged, not added up
        return loss + (processes - 1) * (loss - loss.detach())


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
