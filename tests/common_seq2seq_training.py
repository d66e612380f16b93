"""Pairs of texts for training, and their losses written out."""

import torch
from common import EOS, PAD, VOCAB, tokens
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerFast, Seq2SeqTrainingArguments

IGNORED = -100


def ragged_rows(number: int = 8) -> list[dict[str, list[int]]]:
    """Sources of 3 to 9 tokens with targets of 2 to 8."""
    sources, targets = tokens(number, 9).tolist(), tokens(number, 8).tolist()
    return [
        {"input_ids": source[: 3 + 5 * i % 7], "labels": target[: 2 + 3 * i % 7]}
        for i, (source, target) in enumerate(zip(sources, targets, strict=True))
    ]


def rows_of(batch: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    return [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]


def shifted(labels: torch.Tensor) -> torch.Tensor:
    return torch.tensor([EOS, *(PAD if label == IGNORED else label for label in labels.tolist()[:-1])])


def naive_losses(model, rows: list[dict[str, torch.Tensor]], smoothing: float, **inputs) -> list[torch.Tensor]:
    """The smoothed loss of every label, from one row at a time without padding."""
    losses = []
    for row in rows:
        labels = row["labels"]
        length = max(i + 1 for i, label in enumerate(labels) if label != IGNORED)
        source = row["input_ids"][row["attention_mask"].bool()]
        given = {"decoder_input_ids": shifted(labels[:length])[None], "use_cache": False}
        logits = model(source[None], **given, **inputs).logits[0]
        for scores, label in zip(logits, labels[:length], strict=True):
            if label != IGNORED:
                log_probs = scores - scores.exp().sum().log()
                losses.append(-(1 - smoothing) * log_probs[label] - smoothing * log_probs.mean())
    return losses


def trainer_arguments(folder, **options) -> Seq2SeqTrainingArguments:
    settings = {"use_cpu": True, "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    return Seq2SeqTrainingArguments(output_dir=str(folder), **settings | options)


def collator(model) -> DataCollatorForSeq2Seq:
    words = {f"w{i}": i for i in range(VOCAB)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w3"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w1", bos_token="w0", eos_token="w2")
    return DataCollatorForSeq2Seq(tokenizer, model=model)
