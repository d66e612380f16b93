"""What a student can learn: what its teacher is asked, what is kept of the answers, and how they are compared."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy, mse_loss
from transformers import PreTrainedModel

from sublayers.modeling.heads import run_planned
from sublayers.modeling.modeling_reordered_bert import ReorderedBertPreTrainedModel
from sublayers.modeling.modeling_sandwich_lm import SandwichLMForCausalLM
from sublayers.modeling.plan import Plan
from sublayers.training.data.corpus import Text
from sublayers.training.data.files import Rows
from sublayers.training.data.masked_language_modeling import check_tokenizer
from sublayers.training.distill.losses import embedding_loss, logit_loss, relation_loss
from sublayers.training.distill.sharding import run_in_forward
from sublayers.training.distill.teacher import BODY, CLASSIFIER, DECODER, WORDS, Head, Pooling, Teacher, answer
from sublayers.training.distill.texts import cut_stream, encode_texts, mask_words

LABELS_OF_NUMBERS = ("regression", "multi_label_classification")
# the names of the maps to queries, keys and values
PROJECTIONS = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
    ("q", "k", "v"),
)
Batch = Mapping[str, torch.Tensor]


@dataclass
class Objective(ABC):
    """What a student learns. A text has one or more answers, each a row of numbers; those of a batch are (rows, width).

    Attributes:
        teacher: that answers.
        student: that learns to answer alike.
        pooling: of the tokens of a text, where the student is to be a SentenceTransformer.
        temperature: of the probabilities that are compared.
        relation_heads: into which queries, keys and values are cut.
        head: of teacher and student.
        by_sentence: whether a text is a sentence, or else a row of the corpus.
        compares_texts: whether texts of a batch, with one answer each, are compared with each other; if not, the loss
            is a mean over answers.
        dtype: of the answers on disk.
        metric: name of what `score` measures, if there is anything but the loss.
        reduces: what the student is trained to reduce, as its card tells.
    """

    head: ClassVar[Head] = BODY
    by_sentence: ClassVar[bool] = True
    compares_texts: ClassVar[bool] = False
    dtype: ClassVar[type] = np.float32

    teacher: Teacher
    student: PreTrainedModel
    pooling: Pooling | None = None
    temperature: float = 1.0
    relation_heads: int = 12
    metric: str | None = field(default=None, init=False)
    reduces: str = field(init=False)

    @abstractmethod
    def __post_init__(self):
        """Check teacher and student, and say what is measured and reduced."""

    def encode(self, text: Text, max_length: int, whole_rows: bool) -> Rows:
        """Tokenize a corpus, as `encode_texts` does, and change it into what teacher and student read."""
        rows = encode_texts(text, self.teacher.tokenizer, max_length, self.by_sentence and not whole_rows)
        return self.prepare(rows)

    def prepare(self, texts: Rows) -> Rows:
        """Change texts into what teacher and student read."""
        return texts

    def count(self, texts: Any) -> np.ndarray:
        """Count the answers to each text: (texts,)."""
        return np.ones(len(texts["input_ids"]), dtype=int)

    @torch.no_grad()
    def answers(self, batch: Batch) -> torch.Tensor:
        """Ask the teacher, on the device of a batch; the processes that share its weights do so together."""
        teacher: Any = self.teacher.model
        teacher.to(batch["input_ids"].device)
        return run_in_forward(teacher, teacher, lambda **batch: self.ask_teacher(batch), **batch).float()

    def ask_teacher(self, batch: Batch) -> torch.Tensor:
        """Ask the teacher what is kept: (rows, width)."""
        return self.ask(self.teacher.model, batch)

    @abstractmethod
    def ask(self, model: Any, batch: Batch) -> torch.Tensor:
        """Ask the student: (rows, width)."""

    def read(self, answers: torch.Tensor) -> torch.Tensor:
        """Make of kept answers what the student's are compared with: (rows, width) both."""
        return answers

    @abstractmethod
    def loss(self, student: torch.Tensor, teacher: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Compare the answers to a batch, (rows, width) each; each text has as many as its `counts` say, (batch,)."""

    def score(self, student: torch.Tensor, teacher: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Measure for each of the answers, (rows, width), their cosine or whether both agree on a label: (rows,)."""
        if self.metric == "agreement":
            return (student.argmax(-1) == teacher.argmax(-1)).float()
        return cosine_similarity(student, teacher)

    def has_same_width(self) -> bool:
        """Say whether the states of both have as many numbers."""
        old: Any = self.teacher.model.config
        return self.student.config.hidden_size == old.hidden_size


class Embeddings(Objective):
    """Embeddings of texts; a student may pool otherwise than its teacher."""

    compares_texts = True
    reduces = "one minus the cosine of both, and the squared difference of the cosines within a batch"

    def __post_init__(self):
        self.pooling = self.pooling or self.teacher.pooling
        # embeddings of different widths have no cosine
        self.metric = "cosine" if self.has_same_width() else None

    def ask_teacher(self, batch: Batch) -> torch.Tensor:
        """Pool as the teacher does."""
        return answer(self.teacher.model, batch, self.teacher.pooling)

    def ask(self, model: Any, batch: Batch) -> torch.Tensor:
        """Pool as the student does."""
        return answer(model, batch, self.pooling)

    def loss(self, student: torch.Tensor, teacher: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Compare texts."""
        return embedding_loss(student, teacher)


class Logits(Objective):
    """Logits of a classifier or reranker."""

    head = CLASSIFIER
    by_sentence = False
    exclusive: bool

    def __post_init__(self):
        config: Any = self.teacher.model.config
        self.exclusive = config.num_labels > 1 and config.problem_type not in LABELS_OF_NUMBERS
        self.reduces = "the squared difference of both"
        if self.exclusive:
            self.metric = "agreement"
            self.reduces = f"the divergence of both probabilities at temperature {self.temperature:g}"

    def ask(self, model: Any, batch: Batch) -> torch.Tensor:
        """Classify."""
        return answer(model, batch, None)

    def loss(self, student: torch.Tensor, teacher: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Compare probabilities, or numbers."""
        return logit_loss(student, teacher, self.temperature, self.exclusive)


class OfTokens(Objective):
    """Answers for every token; in 16 bits they take half the room, and differ by rounding from the teacher's."""

    dtype = np.float16

    def count(self, texts: Any) -> np.ndarray:
        """Count tokens."""
        return np.array([len(ids) for ids in texts["input_ids"]])


class States(OfTokens):
    """The hidden states after the last sublayer; those of another width through a linear map that learns, too."""

    metric = "cosine"
    reduces = "the squared difference of the states of each token"

    def __post_init__(self):
        if self.teacher.is_sentence_encoder:
            self.pooling = self.teacher.pooling
        self.is_mapped = not self.has_same_width()
        if self.is_mapped:
            own, old = (each.config.hidden_size for each in (self.student, self.teacher.model))
            # the map is a module of the student, so that optimizer and checkpoints include it
            self.student.to_teacher = nn.Linear(own, old)
            self.reduces += ", the student's through a linear map that is not kept"

    def ask_teacher(self, batch: Batch) -> torch.Tensor:
        """Take the states of all tokens."""
        return self.teacher.model(**batch).last_hidden_state[batch["attention_mask"].bool()]

    def ask(self, model: Any, batch: Batch) -> torch.Tensor:
        """Take the states of all tokens, and map them."""
        states = model(**batch).last_hidden_state[batch["attention_mask"].bool()]
        return model.to_teacher(states) if self.is_mapped else states

    def loss(self, student: torch.Tensor, teacher: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Compare numbers."""
        return mse_loss(student, teacher)


class Relations(OfTokens):
    """Relations of tokens in the last self-attention, see `relation_loss`; nothing after its three maps learns.

    Raises:
        ValueError: there is no self-attention, or a width that the relation heads do not divide.
    """

    def __post_init__(self):
        for whose, model in (("the teacher", self.teacher.model), ("the student", self.student)):
            last_projections(model, whose)
            width, heads = model.config.hidden_size, self.relation_heads
            if heads < 1 or width % heads:
                raise ValueError(
                    f"--relation_heads {heads} do not divide {whose}'s hidden size {width}; give a divisor of both"
                )
        self.reduces = (
            "the divergence of both relations of tokens in the queries, the keys and the values of the last "
            f"self-attention, in {heads} heads"
        )

    def ask(self, model: Any, batch: Batch) -> torch.Tensor:
        """Take queries, keys and values of the last self-attention, side by side: (tokens, 3 * hidden)."""
        mask, found = batch["attention_mask"].bool(), {}
        with ExitStack() as hooks:
            for i, projection in enumerate(last_projections(model, "the model")):
                hooks.enter_context(projection.register_forward_hook(lambda _, args, out, i=i: found.update({i: out})))
            model(**batch)
        # our stack may have left the padding out
        rows = [found[i][mask] if found[i].shape[:2] == mask.shape else found[i][0] for i in range(3)]
        return torch.cat(rows, -1)

    def loss(self, student: torch.Tensor, teacher: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Compare relations within each text."""
        counts = batch["counts"]
        mask = torch.arange(int(counts.max()), device=counts.device) < counts[:, None]
        # all texts are padded in one step: the gradients of pad_sequence copy the batch once for each text
        found, wanted = (
            rows.new_zeros(*mask.shape, rows.shape[1]).index_put((mask,), rows) for rows in (student, teacher)
        )
        return relation_loss(found, wanted, mask, self.relation_heads)


class Words(Logits):
    """Logits of masked words; of the teacher's answers, the states from which its decoder makes logits are kept.

    Raises:
        ValueError: the teacher is no BERT, or its tokenizer has no [MASK].
    """

    head = WORDS
    by_sentence = True
    exclusive = True
    metric = "agreement"

    def __post_init__(self):
        teacher: Any = self.teacher.model
        if not isinstance(teacher, ReorderedBertPreTrainedModel):
            raise ValueError(f"{self.teacher.source} is no BERT; choose another teacher or --objective")
        check_tokenizer(self.teacher.tokenizer, whole_word_mask=False)
        self.mask = self.teacher.tokenizer.mask_token_id
        self.reduces = f"the divergence of both probabilities of masked words at temperature {self.temperature:g}"

    def prepare(self, texts: Rows) -> Rows:
        """Mask words."""
        return mask_words(texts, self.teacher.tokenizer)

    def count(self, texts: Any) -> np.ndarray:
        """Count masks."""
        return np.array([ids.count(self.mask) for ids in texts["input_ids"]])

    def ask_teacher(self, batch: Batch) -> torch.Tensor:
        """Take the states of masked words after the head's transform."""
        return self.transform(self.teacher.model, batch)

    def ask(self, model: Any, batch: Batch) -> torch.Tensor:
        """Score masked words: (masked, vocabulary)."""
        return model.lm_head(self.transform(model, batch))

    def transform(self, model: Any, batch: Batch) -> torch.Tensor:
        """Run a model for masked words alone, up to its decoder: (masked, hidden)."""
        tokens = batch["input_ids"]
        states, _ = run_planned(model.model, Plan.of(tokens, batch["attention_mask"], tokens == self.mask), **batch)
        return model.lm_transform(states)

    def read(self, answers: torch.Tensor) -> torch.Tensor:
        """Score words as the teacher does: (masked, vocabulary)."""
        teacher: Any = self.teacher.model
        with torch.no_grad():
            return run_in_forward(teacher, teacher, teacher.lm_head.to(answers.device), answers)


class NextTokens(OfTokens):
    """Next tokens of a language model; of the teacher's answers, the states from which its head makes logits are kept.

    Raises:
        ValueError: the teacher or the student has a memory.
    """

    head = DECODER
    by_sentence = False
    metric = "next_loss"

    def __post_init__(self):
        for model in (self.teacher.model, self.student):
            if not isinstance(model, SandwichLMForCausalLM):
                raise ValueError(f"{model.config.model_type} has a memory; give a language model without one")
        self.reduces = (
            "the loss of next tokens, and the divergence of both probabilities of them at temperature "
            f"{self.temperature:g}"
        )

    def encode(self, text: Text, max_length: int, whole_rows: bool) -> Rows:
        """Cut a corpus into windows of tokens."""
        return cut_stream(text, self.teacher.tokenizer, max_length)

    def count(self, texts: Any) -> np.ndarray:
        """Count tokens that have one after them."""
        return super().count(texts) - 1

    def ask_teacher(self, batch: Batch) -> torch.Tensor:
        """Take the states of tokens that have one after them."""
        return self.states(self.teacher.model, batch)

    def ask(self, model: Any, batch: Batch) -> torch.Tensor:
        """Score next tokens: (tokens, vocabulary)."""
        return model.compute_logits(self.states(model, batch))

    def states(self, model: Any, batch: Batch) -> torch.Tensor:
        """Run a model up to its head: (tokens, hidden)."""
        states = model.base_model(**batch, use_cache=False).last_hidden_state
        return states[:, :-1][followed(batch)]

    def read(self, answers: torch.Tensor) -> torch.Tensor:
        """Score next tokens as the teacher does: (tokens, vocabulary)."""
        teacher: Any = self.teacher.model
        with torch.no_grad():
            return run_in_forward(teacher, teacher, teacher.to(answers.device).compute_logits, answers)

    def loss(self, student: torch.Tensor, teacher: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Compare with the tokens of the texts, and with the teacher; both count once."""
        divergence = logit_loss(student, teacher, self.temperature, exclusive=True)
        return self.score(student, teacher, batch).mean() + divergence

    def score(self, student: torch.Tensor, teacher: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Measure the loss of the student's next tokens: (tokens,)."""
        return cross_entropy(student, batch["input_ids"][:, 1:][followed(batch)], reduction="none")


def followed(batch: Batch) -> torch.Tensor:
    """Say which tokens, but the last one, have one after them: (batch, length - 1)."""
    mask = batch["attention_mask"].bool()
    return mask[:, :-1] & mask[:, 1:]


def last_projections(model: PreTrainedModel, whose: str) -> list[nn.Module]:
    """Find the maps to queries, keys and values of a model's last self-attention.

    Raises:
        ValueError: there are none by the names that we know.
    """
    parts = [dict(module.named_children()) for module in model.modules()]
    found = [[part[name] for name in names] for part in parts for names in PROJECTIONS if part.keys() >= {*names}]
    if not found:
        raise ValueError(f"{whose} has no self-attention with maps to queries, keys and values; choose another")
    return found[-1]


OBJECTIVES: dict[str, type[Objective]] = {
    "embeddings": Embeddings,
    "states": States,
    "logits": Logits,
    "words": Words,
    "relations": Relations,
    "next": NextTokens,
}
