"""Teachers of a few thousand parameters, and texts that they read."""

import copy
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from common import randomize
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    TrainerCallback,
)

from sublayers.training.commands import distill as command
from sublayers.training.data.tokenizers import train_tokenizer

WORDS = ["a", "short", "text", "and", "another", "longer", "one", "with", "more", "words", "in", "it", "than"]
WORDS += ["the", "first", "had", "before"]
TEXTS = [" ".join(WORDS[(7 * i + j) % len(WORDS)] for j in range(2 + i % 9)) for i in range(48)]
MODULES = ["Transformer", "Pooling", "Normalize"]


@cache
def tokenizer_of(words):
    """Train one, which gives no second time the same ids."""
    return train_tokenizer(TEXTS, "wordpiece", words)


def save_teacher(folder, layers=3, labels=None, seed=0, words=200, model_class=BertModel, **options):
    """Save transformers' BERT with a tokenizer, with labels as a classifier."""
    tokenizer = copy.deepcopy(tokenizer_of(words))
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": layers, "num_attention_heads": 2}
    if labels:
        options["num_labels"] = labels
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=32, **sizes, **ids, **options)
    model = randomize((BertForSequenceClassification if labels else model_class)(config))
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(seed)
    model.save_pretrained(folder)
    return model, tokenizer


def save_decoder(folder, layers=3, words=300):
    """Save transformers' Llama, whose pairs of heads share keys, with a tokenizer that adds nothing to a text."""
    tokenizer = train_tokenizer(TEXTS, "bpe", words)
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=layers,
        max_position_embeddings=32,
        tie_word_embeddings=True,
        **sizes,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = randomize(LlamaForCausalLM(config)).eval()
    model.save_pretrained(folder)
    return model, tokenizer


def save_plain_norms(model, folder):
    """Save a model again: with random gains all embeddings are nearly the same, and their ranks those of rounding."""
    for norm in (module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)):
        norm.reset_parameters()
    model.save_pretrained(folder)


def make_sentence_encoder(folder, mode="mean", modules=MODULES, **body):
    """Say in a folder what a SentenceTransformer does with its states, as version 2 said it."""
    folder = Path(folder)
    rows = [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": f"sentence_transformers.models.{name}"}
        for i, name in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 24, "do_lower_case": False} | body))
    for row in rows[1:]:
        (folder / row["path"]).mkdir(exist_ok=True)
    modes = {f"pooling_mode_{name}": name.startswith(mode) for name in ("cls_token", "mean_tokens", "max_tokens")}
    config = {"word_embedding_dimension": 16, **modes}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))


def answers_in(folder, width=3):
    """Read kept answers of one row and in 32 bits, by the numbers of their texts; the head of an .npy has 128 bytes."""
    found = {}
    for file in folder.glob("*.texts"):
        numbers = np.fromfile(file, np.int64)
        rows = np.frombuffer(file.with_suffix(".npy").read_bytes()[128:], np.float32).reshape(-1, width)
        assert len(rows) >= len(numbers)
        found |= dict(zip(numbers.tolist(), rows.tolist(), strict=False))
    return found


def write_texts(path, texts=TEXTS):
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def distill_until(step, flags, monkeypatch):
    """Run `sublayers distill`, and interrupt it before the step behind so many."""

    class Interrupt(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == step:
                raise KeyboardInterrupt

    def make_trainer(*args, make=command.make_trainer):
        trainer = make(*args)
        trainer.add_callback(Interrupt())
        return trainer

    with monkeypatch.context() as patched:
        patched.setattr(command, "make_trainer", make_trainer)
        with pytest.raises(KeyboardInterrupt):
            command.main(flags)
