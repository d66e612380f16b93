"""The model that is pruned, and what it is asked."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoConfig

from sublayers.convert.sources import from_transformers
from sublayers.hub.loading import load
from sublayers.modeling.losses import IGNORED
from sublayers.modeling.modeling_sublayers import SublayersPreTrainedModel
from sublayers.training.data.corpus import Text
from sublayers.training.distill.objectives import OBJECTIVES
from sublayers.training.distill.teacher import BODY, CLASSIFIER, DECODER, WORDS, Teacher, open_teacher
from sublayers.training.distill.texts import encode_texts, padding
from sublayers.training.prune.calibration import Calibration, Measure

# documents that are read for each text that is asked
DOCUMENTS = 8


def open_model(source: str) -> Teacher:
    """Open a model of ours, or one that becomes ours, with its head and what a SentenceTransformer does with it.

    Raises:
        OSError: there is no such folder or repository.
        ValueError: what `open_teacher` and the conversion refuse.
    """
    (architecture, *_) = load(AutoConfig, source).architectures or [""]
    heads = (CLASSIFIER, WORDS, DECODER, BODY)
    teacher = open_teacher(source, next(head for head in heads if architecture.endswith(head.architectures)))
    if not isinstance(teacher.model, SublayersPreTrainedModel):
        teacher.model = from_transformers(teacher.model, {})[0].eval()
    return teacher


def read_texts(
    teacher: Teacher,
    objective: str,
    number: int,
    max_length: int,
    whole_rows: bool,
    seed: int,
    corpus: Mapping[str, Text],
    split: str,
) -> Dataset:
    """Draw texts of a corpus that the model is asked, tokenized.

    Raises:
        ValueError: the corpus has no such texts.
    """
    if split not in corpus:
        raise ValueError(f"there are no texts to ask; give --{split}_file")
    text = corpus[split]
    if text.documents:
        text = Text(text.rows.shuffle(seed=seed)).take(DOCUMENTS * number)
    by_sentence = not whole_rows and OBJECTIVES[objective].by_sentence
    rows = encode_texts(text, teacher.tokenizer, max_length, by_sentence)
    return rows.shuffle(seed=seed).select(range(min(number, len(rows))))


def calibrate(teacher: Teacher, objective: str, rows: Dataset, batch_size: int) -> Calibration:
    """Ask the model itself about texts, and make what compares it without some of its sublayers.

    Raises:
        ValueError: what the objective refuses.
    """
    model: Any = teacher.model
    pad = padding(teacher.tokenizer)

    def batches(rows: Dataset) -> list[dict[str, torch.Tensor]]:
        return [pad([*rows.select(range(i, min(i + batch_size, len(rows))))]) for i in range(0, len(rows), batch_size)]

    if objective == "next":
        asked = batches(rows)
        return Calibration(model, next_tokens(asked), [len(batch["input_ids"]) for batch in asked])
    kind = OBJECTIVES[objective](teacher, model)
    rows = kind.prepare(rows)
    asked, counts = batches(rows), torch.tensor(kind.count(rows)).split(batch_size)
    with torch.inference_mode():
        answers = [kind.read(kind.ask_teacher(batch)).float() for batch in asked]

    def measure(model: Any, number: int) -> float:
        found = kind.ask(model, asked[number]).float()
        return kind.loss(found, answers[number], {**asked[number], "counts": counts[number]}).item()

    return Calibration(model, measure, [len(batch["input_ids"]) for batch in asked])


def next_tokens(asked: Sequence[Mapping[str, torch.Tensor]]) -> Measure:
    """Measure the mean loss of the next tokens of a batch."""

    def measure(model: Any, number: int) -> float:
        batch = asked[number]
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED)
        return model(**batch, labels=labels, use_cache=False).loss.item()

    return measure
