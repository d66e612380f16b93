import json
import os
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from common import assert_same
from launched import python
from safetensors.torch import load_file
from tiny_teachers import TEXTS, answers_in, save_decoder, save_teacher, write_texts
from transformers import BertForMaskedLM, TrainingArguments

from sublayers import PARBertConfig
from sublayers.training.commands.distill import main as distill, parse
from sublayers.training.distill import student

pytestmark = pytest.mark.slow

RUN = ["--use_cpu", "--disable_tqdm=true", "--report_to=none", "--max_length=16"]
# past the end of an epoch of 40 texts, in steps of two batches and of one; by SGD, weights tell the size of gradients
STEPS = ["--gradient_accumulation_steps=2", "--optim=sgd", "--learning_rate=0.02", "--max_grad_norm=1e9"]
STEPS += ["--max_steps=5", "--logging_steps=1", "--eval_steps=2", "--save_steps=5"]
# of the last batch that is scored, the second process has one text where there are 13, and none where there are 11
ORDER = "--sublayer_order=s2f3"
OBJECTIVES = {
    "embeddings": ["--max_eval_samples=13"],
    "embeddings of first tokens": ["--pooling=cls", "--max_eval_samples=11"],
    "embeddings of a stream": ["--streaming", "--max_eval_samples=13"],
    "embeddings of another width": ["--hidden_size=8", "--max_eval_samples=13"],
    "states": ["--max_eval_samples=13"],
    "states of another width": ["--hidden_size=8", "--max_eval_samples=11"],
    "logits": ["--max_eval_samples=11"],
    "words": ["--max_eval_samples=13"],
    "relations": ["--relation_heads=4", "--gradient_checkpointing", "--max_eval_samples=11"],
}
OBJECTIVES = {name: [ORDER, *flags] for name, flags in OBJECTIVES.items()}
# 32 windows, since the texts that fill up the last batch of an epoch count
OBJECTIVES["next"] = ["--sublayers", "s0", "f0", "f1", "s2", "--max_length=14", "--max_eval_samples=11"]
LAUNCHER = ["torch.distributed.run", "--standalone", "--nproc_per_node=2"]
TOLD = ("step", "epoch", "loss", "grad_norm", "eval_loss", "eval_cosine", "eval_agreement", "eval_next_loss")
NO_DROPOUT = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)


def launch(launcher, runs, folder):
    """Run commands in two processes, one after the other."""
    python("-m", *launcher, Path(__file__).with_name("distill_worker.py"), json.dumps(runs), home=folder)


def asked(folder):
    """The training texts that each process asked the teacher for."""
    return [json.loads((folder / f"asked_{process}.json").read_text()) for process in (0, 1)]


def curve(folder):
    """What was logged, and the last scores."""
    entries = json.loads((folder / "checkpoint-5" / "trainer_state.json").read_text())["log_history"]
    entries.append(json.loads((folder / "eval_results.json").read_text()))
    return [{name: entry[name] for name in TOLD if name in entry} for entry in entries]


SHARDED = [name for name in OBJECTIVES if name != "relations"]


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """Flags of a run of an objective in so many processes, without dropout; its folder comes last."""
    folder = tmp_path_factory.mktemp("runs")
    options = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    save_teacher(folder / "body", **options)
    save_teacher(folder / "logits", labels=3, **options)
    save_teacher(folder / "words", model_class=BertForMaskedLM, **options)
    save_decoder(folder / "next")
    files = [f"--train_file={write_texts(folder / 'train.txt', TEXTS[:40])}"]
    files += [f"--validation_file={write_texts(folder / 'validation.txt', TEXTS[::-1])}"]

    def flags(name, processes, *others):
        teacher = str(folder / (name if name in ("logits", "words", "next") else "body"))
        rows = [f"--per_device_{split}_batch_size={8 // processes}" for split in ("train", "eval")]
        rows += [f"--objective={name.split()[0]}", *OBJECTIVES[name]]
        out = "sharded" if others else processes
        return [teacher, *files, *RUN, *STEPS, *rows, *others, "--output_dir", str(folder / f"{name} {out}")]

    return flags


def check_equal(one, two, name):
    assert len(curve(one)) == len(curve(two)) == 9
    for expected, actual in zip(curve(one), curve(two), strict=True):
        assert actual == pytest.approx(expected, rel=1e-4, abs=1e-6), name
    assert_same(*(load_file(folder / "model.safetensors") for folder in (two, one)), atol=1e-6, rtol=1e-5)


@pytest.fixture(scope="module")
def runs_of_one(flags):
    """The folders of runs in one process."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(student, "PARBertConfig", partial(PARBertConfig, **NO_DROPOUT))
        for name in OBJECTIVES:
            distill(flags(name, 1))
    return {name: Path(flags(name, 1)[-1]) for name in OBJECTIVES}


@pytest.mark.full
def test_two_processes_learn_and_score_as_one_and_share_the_questions(flags, runs_of_one, tmp_path):
    launch(LAUNCHER, [flags(name, 2) for name in OBJECTIVES], tmp_path)
    for name, one in runs_of_one.items():
        two = Path(flags(name, 2)[-1])
        check_equal(one, two, name)
        if name.endswith("stream"):
            continue
        # no text twice, also in the second epoch
        texts = json.loads((two / "answers" / "train" / "about.json").read_text())["texts"]
        assert sorted(asked(two)[0] + asked(two)[1]) == [*range(texts)]
        assert [len(indices) for indices in asked(two)] == [texts // 2, texts // 2]


@pytest.mark.full
def test_two_processes_that_share_the_weights_of_both_models_learn_and_score_as_one(flags, runs_of_one, tmp_path):
    folder = tmp_path / "answers"
    # each process asks about one text at a time, whose answers the other process may have
    shutil.copytree(runs_of_one["logits"] / "answers", folder)
    (numbers,) = (folder / "train").glob("*.texts")
    os.truncate(numbers, 20 * 8)
    shutil.rmtree(folder / "validation")
    made = ["--fsdp", "--only_answers", f"--answers={folder}", "--per_device_eval_batch_size=1"]
    only_answers = [*flags("logits", 2, *made)[:-1], str(folder)]
    launch(LAUNCHER, [*(flags(name, 2, "--fsdp") for name in SHARDED), only_answers], tmp_path)
    for name in SHARDED:
        check_equal(runs_of_one[name], Path(flags(name, 2, "--fsdp")[-1]), name)
    for split in ("train", "validation"):
        expected, actual = (answers_in(each / split) for each in (runs_of_one["logits"] / "answers", folder))
        assert len(actual) == len(expected) == {"train": 40, "validation": 11}[split]
        for text, rows in expected.items():
            np.testing.assert_allclose(actual[text], rows, rtol=1e-4, atol=1e-6)


@pytest.mark.full
def test_two_processes_that_go_on_end_as_if_they_had_not_stopped(tmp_path):
    save_teacher(tmp_path / "teacher")
    flags = [
        str(tmp_path / "teacher"),
        f"--train_file={write_texts(tmp_path / 'texts.txt')}",
        *RUN,
        ORDER,
        "--do_train",
    ]
    flags += ["--max_steps=7", "--save_steps=3", "--save_total_limit=3", "--per_device_train_batch_size=4"]
    flags += ["--learning_rate=1e-2", "--moves_every=2", "--answers", str(tmp_path / "answers"), "--output_dir"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    resumed = [*flags[:-1], f"--resume_from_checkpoint={whole / 'checkpoint-3'}", "--output_dir", str(parts)]
    launcher = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0"]
    launch(launcher, [[*flags, str(whole)], resumed], tmp_path)
    weights = [load_file(folder / "model.safetensors") for folder in (whole, parts)]
    assert all(torch.equal(weights[1][name], tensor) for name, tensor in weights[0].items())
    assert asked(parts) == [[], []]


def test_what_several_processes_need_is_told(monkeypatch):
    flags = ["teacher", "--sublayer_order=sf", "--use_cpu"]
    monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
    with pytest.raises(ValueError, match="start one for each with accelerate launch or torchrun"):
        parse(flags)


def test_what_cannot_be_sharded_is_told(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    flags = ["teacher", "--sublayer_order=sf", "--use_cpu"]
    with pytest.raises(ValueError, match="FSDP1 cannot shard both models; give accelerate launch --fsdp_version 2"):
        parse(flags)
    monkeypatch.setenv("FSDP_VERSION", "2")
    with pytest.raises(ValueError, match="Accelerate shards only what it trains; leave --fsdp out, or give --do_train"):
        parse([*flags, "--do_eval"])
    with pytest.raises(ValueError, match="relations are inside of a layer, whose weights FSDP frees; leave --fsdp out"):
        parse([*flags, "--objective=relations"])
    parse([*flags, "--objective=relations", "--only_answers", "--answers=answers", "--do_eval"])
