"""The model that is pruned, and the texts that it is measured on."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerBase,
)

from sublayers.configuration.configuration_reordered_seq2seq import TARGET_TOKENIZER
from sublayers.hub.loading import folder_of, load
from sublayers.modeling.losses import IGNORED, mean_cross_entropy
from sublayers.training.data.corpus import Text
from sublayers.training.data.pairs import tokenize_pairs
from sublayers.training.distill.objectives import OBJECTIVES
from sublayers.training.distill.teacher import BODY, CLASSIFIER, DECODER, WORDS, Head, Teacher, as_ours, open_teacher
from sublayers.training.distill.texts import encode_texts, padding
from sublayers.training.prune.calibration import Calibration, Measure

PAIRS = Head("encoder-decoder", AutoModelForSeq2SeqLM, ("ForConditionalGeneration", "MTModel"))
# documents that are read for each text that is drawn
DOCUMENTS = 8


def open_model(source: str) -> Teacher:
    """Open a model, converted if it is not of this package, with its head and what a SentenceTransformer does with it.

    Raises:
        OSError: there is no such folder or repository.
        ValueError: what `open_teacher` and the conversion refuse.
    """
    (architecture, *_) = load(AutoConfig, source).architectures or [""]
    heads = (DECODER, PAIRS, CLASSIFIER, WORDS, BODY)
    head = next(head for head in heads if architecture.endswith(head.architectures))
    if head is PAIRS:
        model = load(head.auto_class, source, dtype=torch.float32)
        teacher = Teacher(source, model.eval(), load(AutoTokenizer, source), head=head)
    else:
        teacher = open_teacher(source, head)
    teacher.model = as_ours(teacher.model, source).eval()
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
    """Draw texts of a split of a corpus, tokenized.

    Raises:
        ValueError: the corpus has no such split.
    """
    if split not in corpus:
        raise ValueError(f"there are no texts to ask; give --{split}_file")
    text = corpus[split]
    if text.documents:
        text = Text(text.rows.shuffle(seed=seed)).take(DOCUMENTS * number)
    if teacher.head is PAIRS:
        rows = encode_pairs(text, tokenizers_of(teacher), max_length, split)
    else:
        by_sentence = not whole_rows and OBJECTIVES[objective].by_sentence
        rows = encode_texts(text, teacher.tokenizer, max_length, by_sentence)
    return rows.shuffle(seed=seed).select(range(min(number, len(rows))))


def tokenizers_of(teacher: Teacher) -> list[PreTrainedTokenizerBase]:
    """Return the tokenizer of a model and, where the model has another one for targets, that."""
    if not (folder_of(teacher.source) / TARGET_TOKENIZER).is_dir():
        return [teacher.tokenizer]
    return [teacher.tokenizer, load(AutoTokenizer, teacher.source, subfolder=TARGET_TOKENIZER)]


def encode_pairs(text: Text, tokenizers: Sequence[PreTrainedTokenizerBase], max_length: int, split: str) -> Dataset:
    """Tokenize rows of a source, a tab and a target, of up to `max_length` tokens each; empty rows are left out.

    Raises:
        ValueError: a row that is no such pair, or what `tokenize_pairs` refuses.
    """

    def cut(batch: dict[str, list[str | None]]) -> dict[str, list[str]]:
        rows = [row.rstrip("\r\n") for row in batch["text"] if row and row.strip()]
        pairs = [row.split("\t", 1) for row in rows]
        for row, pair in zip(rows, pairs, strict=True):
            if len(pair) < 2 or not all(map(str.strip, pair)):
                raise ValueError(f"{row[:50]!r} is no source, tab and target; give such pairs to an encoder-decoder")
        return {"source": [source for source, _ in pairs], "target": [target for _, target in pairs]}

    pairs: Any = text.rows.map(cut, batched=True, remove_columns=["text"], desc="Reading pairs")
    return tokenize_pairs(pairs, tokenizers[0], tokenizers[-1], max_length, max_length, drop_long=False, desc=split)


def calibrate(teacher: Teacher, objective: str, rows: Dataset, batch_size: int) -> Calibration:
    """Run the model on texts, and make what compares it with itself without some of its sublayers.

    Raises:
        ValueError: what the objective refuses.
    """
    model: Any = teacher.model
    is_pair = teacher.head is PAIRS
    pad = DataCollatorForSeq2Seq(teacher.tokenizer, model) if is_pair else padding(teacher.tokenizer)

    def batches(rows: Dataset) -> list[dict[str, torch.Tensor]]:
        return [pad([*rows.select(range(i, min(i + batch_size, len(rows))))]) for i in range(0, len(rows), batch_size)]

    if objective == "next":
        asked = batches(rows)
        measure = target_tokens(asked) if is_pair else next_tokens(asked)
        sizes = [int((batch["labels"] != IGNORED).sum()) if is_pair else len(batch["input_ids"]) for batch in asked]
        return Calibration(model, measure, sizes)
    kind = OBJECTIVES[objective](teacher, model)
    rows = kind.prepare(rows)
    asked, counts = batches(rows), torch.tensor(kind.count(rows)).split(batch_size)
    with torch.inference_mode():
        answers = [kind.read(kind.ask_teacher(batch)).float() for batch in tqdm(asked, "Asking the model", leave=False)]

    def compare(model: Any, number: int) -> float:
        found = kind.ask(model, asked[number]).float()
        return kind.loss(found, answers[number], {**asked[number], "counts": counts[number]}).item()

    return Calibration(model, compare, [len(batch["input_ids"]) for batch in asked])


def next_tokens(asked: Sequence[Mapping[str, torch.Tensor]]) -> Measure:
    """Measure the mean loss of the next tokens of a batch."""

    def measure(model: Any, number: int) -> float:
        batch = asked[number]
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED)
        return model(**batch, labels=labels, use_cache=False).loss.item()

    return measure


def target_tokens(asked: Sequence[Mapping[str, torch.Tensor]]) -> Measure:
    """Measure the mean loss of the target tokens of a batch, without label smoothing."""

    def measure(model: Any, number: int) -> float:
        sources = {name: tensor for name, tensor in asked[number].items() if name != "labels"}
        logits = model(**sources, use_cache=False).logits
        return mean_cross_entropy(logits.flatten(0, 1), asked[number]["labels"].flatten()).item()

    return measure
