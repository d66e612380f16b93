"""A tiny run of each training command."""

import json

import pytest
import torch
from safetensors.torch import load_file

from sublayers import PARBertConfig, PARBertForQuestionAnswering
from sublayers.training.data.tokenizers import train_tokenizer

TEXTS = [f"line {n} of a tiny corpus" for n in range(60)]
SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "dropout": 0.1}
RUN = ["--use_cpu", "--disable_tqdm", "true", "--max_steps", "7", "--per_device_train_batch_size", "6"]
# a rate of 0 at the end would hide a step too many; what is logged is not what is saved
RUN += ["--lr_scheduler_type", "inverse_sqrt", "--learning_rate", "1e-2", "--logging_steps", "3"]
RUN += ["--save_strategy", "steps", "--save_steps", "2", "--save_total_limit", "9"]
NO_DROPOUT = ["--dropout=0", "--attention_dropout=0", "--activation_dropout=0"]


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def make_commands(folder):
    """Write what the commands read into a folder, and give the words of each by its name."""
    own = [word for name, value in SIZES.items() for word in (f"--{name}", str(value))]
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(TEXTS))
    pretrain = [*own, "--sublayer_order", "sfsf", "--block_size", "16", "--tokenizer_model", "byte"]
    orders = ["--encoder_sublayer_order", "fsf", "--decoder_sublayer_order", "fscf"]
    pairs = write_rows(folder / "pairs.jsonl", [{"source": text, "target": text[::-1]} for text in TEXTS])
    seq2seq = [*own, *orders, "--vocab_size", "300", "--max_source_length", "24", "--max_target_length", "24"]
    seq2seq += ["--task", "translation", "--source", "source", "--target", "target", "--average_checkpoints", "2"]
    seq2seq += ["--max_tokens", "144"]
    seq2seq += ["--train_file", pairs, "--validation_file", pairs, "--no_predict_with_generate"]
    tokenizer = train_tokenizer(TEXTS, "wordpiece", 200)
    config = PARBertConfig(**SIZES, sublayer_order="sf", vocab_size=len(tokenizer), max_position_embeddings=32)
    for part in (tokenizer, PARBertForQuestionAnswering(config)):
        part.save_pretrained(folder / "model")
    answers = [{"text": [text[-6:]], "answer_start": [len(text) - 6]} for text in TEXTS]
    asked = [
        {"id": str(n), "question": "of what?", "context": text, "answers": answer}
        for n, (text, answer) in enumerate(zip(TEXTS, answers, strict=True))
    ]
    questions = write_rows(folder / "questions.jsonl", asked)
    squad = ["--model_name_or_path", str(folder / "model"), "--max_seq_length", "24", "--doc_stride", "2"]
    squad += ["--train_file", questions, "--validation_file", questions]
    labelled = [{"sentence": text, "label": n % 2, "idx": n} for n, text in enumerate(TEXTS)]
    sentences = write_rows(folder / "sentences.jsonl", labelled)
    glue = ["--model_name_or_path", str(folder / "model"), "--max_length", "24", "--task_name", "sst2"]
    glue += ["--train_file", sentences, "--validation_file", sentences]
    given = {"pretrain": [*pretrain, "--train_file", str(corpus)], "seq2seq": seq2seq, "squad": squad, "glue": glue}
    return {name: [name, *flags, *RUN] for name, flags in given.items()}


def make_stream(folder, documents):
    """Write files with so many documents each, and give the words of `pretrain` on them, without an output folder."""
    (folder / "files").mkdir()
    write_rows(folder / "files" / "validation.jsonl", [{"text": "some other text"}] * 9)
    for name, number in documents.items():
        rows = [{"text": f"{name} {row:02} " + "x" * (row * 7 % 23)} for row in range(number)]
        write_rows(folder / "files" / f"train-{name}.jsonl", rows)
    words = make_commands(folder)["pretrain"]
    at = words.index("--train_file")
    return [*words[:at], "--dataset_name", str(folder / "files"), "--streaming", *words[at + 2 :]]


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def losses(folder):
    """What a run reports of its training."""
    trained = json.loads((folder / "train_results.json").read_text())
    curve = folder / "loss_curve.json"
    return trained["train_loss"], trained["epoch"], curve.exists() and json.loads(curve.read_text())


def curve(folder):
    """All losses of a run, of training and of evaluation."""
    found = json.loads((folder / "loss_curve.json").read_text())
    return [loss for name in ("loss", "eval_loss") for _, loss in found[name]]


def check_same_run(found, expected):
    """A run has the losses and the weights of another one but for rounding."""
    assert curve(found) == pytest.approx(curve(expected), rel=1e-4), found.name
    states = [load_file(folder / "model.safetensors") for folder in (found, expected)]
    torch.testing.assert_close(*states, atol=1e-4, rtol=1e-3)
