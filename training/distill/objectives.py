"""What a student can learn: what its teacher is asked, what is kept of the answers, and how they are compared."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from torch.nn.functional import cosine_similarity
from transformers import PreTrainedModel

from sublayers.training.distill.losses import embedding_loss, logit_loss
from sublayers.training.distill.teacher import BODY, CLASSIFIER, Head, Pooling, Teacher, answer

LABELS_OF_NUMBERS = ("regression", "multi_label_classification")
Batch = Mapping[str, torch.Tensor]


@dataclass
class Objective(ABC):
    """What a student learns. A text has one or more answers, each a row of numbers; those of a batch are (rows, width).

    Attributes:
        teacher: that answers.
        student: that learns to answer alike.
        pooling: of the tokens of a text, where the student is to be a SentenceTransformer.
        temperature: of the probabilities that are compared.
        head: of teacher and student.
        by_sentence: whether a text is a sentence, or else a row of the corpus.
        dtype: of the answers on disk.
        metric: name of what `score` measures, if there is anything but the loss.
    """

    head: ClassVar[Head] = BODY
    by_sentence: ClassVar[bool] = True
    dtype: ClassVar[type] = np.float32

    teacher: Teacher
    student: PreTrainedModel
    pooling: Pooling | None = None
    temperature: float = 1.0

    @property
    def metric(self) -> str | None:
        """Name what is measured."""
        return None

    def count(self, texts: Dataset) -> np.ndarray:
        """Count the answers to each text: (texts,)."""
        return np.ones(len(texts), dtype=int)

    def ask_teacher(self, batch: Batch) -> torch.Tensor:
        """Ask the teacher what is kept: (rows, width)."""
        return self.ask(self.teacher.model, batch)

    @abstractmethod
    def ask(self, model: Any, batch: Batch) -> torch.Tensor:
        """Ask the student: (rows, width)."""

    @abstractmethod
    def loss(self, student: torch.Tensor, teacher: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Compare the answers to a batch, (rows, width) each, of which every text has so many: (batch,)."""

    def score(self, student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        """Measure for each of the answers, (rows, width), how near both are: (rows,)."""
        return cosine_similarity(student, teacher)

    @abstractmethod
    def describe(self) -> str:
        """Say what the student was trained to reduce."""


@dataclass
class Embeddings(Objective):
    """Of texts; a student may pool otherwise than its teacher."""

    def __post_init__(self):
        self.pooling = self.pooling or self.teacher.pooling

    @property
    def metric(self) -> str | None:
        """Measure cosines of embeddings of the same width."""
        return "cosine" if has_same_width(self.student, self.teacher) else None

    def ask_teacher(self, batch: Batch) -> torch.Tensor:
        """Pool as the teacher does."""
        return answer(self.teacher.model, batch, self.teacher.pooling)

    def ask(self, model: Any, batch: Batch) -> torch.Tensor:
        """Pool as the student does."""
        return answer(model, batch, self.pooling)

    def loss(self, student: torch.Tensor, teacher: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Compare texts."""
        return embedding_loss(student, teacher)

    def describe(self) -> str:
        """Name both terms."""
        return "one minus the cosine of both, and the squared difference of the cosines within a batch"


@dataclass
class Logits(Objective):
    """Of a classifier or reranker."""

    head = CLASSIFIER
    by_sentence = False

    def __post_init__(self):
        config: Any = self.teacher.model.config
        self.exclusive = config.num_labels > 1 and config.problem_type not in LABELS_OF_NUMBERS

    @property
    def metric(self) -> str | None:
        """Measure how often labels that exclude each other agree."""
        return "agreement" if self.exclusive else None

    def ask(self, model: Any, batch: Batch) -> torch.Tensor:
        """Classify."""
        return answer(model, batch, None)

    def loss(self, student: torch.Tensor, teacher: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Compare probabilities, or numbers."""
        return logit_loss(student, teacher, self.temperature, self.exclusive)

    def score(self, student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        """Say whether both have the same label."""
        return agreement(student, teacher)

    def describe(self) -> str:
        """Name what is compared."""
        if self.exclusive:
            return f"the divergence of both probabilities at temperature {self.temperature:g}"
        return "the squared difference of both"


def agreement(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Say where both logits, (rows, labels), are highest for the same label: (rows,)."""
    return (student.argmax(-1) == teacher.argmax(-1)).float()


def has_same_width(student: PreTrainedModel, teacher: Teacher) -> bool:
    """Say whether the states of both have as many numbers."""
    old: Any = teacher.model.config
    return student.config.hidden_size == old.hidden_size


OBJECTIVES: dict[str, type[Objective]] = {"embeddings": Embeddings, "logits": Logits}
