"""Students of texts that are read while they are trained, or whose answers are made before."""

import json

import pytest
import torch
from killed import kill
from safetensors.torch import load_file
from tiny_teachers import TEXTS, answers_in, distill_until, save_decoder, save_teacher, write_texts
from transformers import BertForMaskedLM

from sublayers.training import cli
from sublayers.training.commands.distill import main as distill
from sublayers.training.distill.objectives import Logits, Objective

pytestmark = pytest.mark.slow

FAST = ["--use_cpu", "--disable_tqdm=true", "--report_to=none", "--max_length=16", "--per_device_train_batch_size=8"]
# past the end of 40 texts
FAST += ["--max_steps=7", "--learning_rate=1e-2", "--logging_steps=1"]
STUDENTS = {
    "embeddings": ["--sublayer_order=s2f3"],
    # 32 windows of 14 tokens
    "next": ["--sublayers", "s0", "f0", "f1", "s2", "--max_length=14"],
    "relations": ["--sublayer_order=s2f3", "--relation_heads=4"],
    "words": ["--sublayer_order=s2f3"],
    "logits": ["--sublayer_order=s2f3"],
}
# answers differ by rounding where a text is asked about with others
FEW = ["--train_sampling_strategy=sequential", "--per_device_eval_batch_size=8"]


def make(folder, objective):
    if objective == "next":
        save_decoder(folder / "teacher")
    else:
        kinds = {"words": {"model_class": BertForMaskedLM}, "logits": {"labels": 3}}.get(objective, {})
        save_teacher(folder / "teacher", **kinds, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    files = [f"--train_file={write_texts(folder / 'train.txt', TEXTS[:40])}"]
    files += [f"--validation_file={write_texts(folder / 'validation.txt', TEXTS[40:])}"]
    return [str(folder / "teacher"), *files, *FAST, f"--objective={objective}", *STUDENTS[objective]]


def results(folder):
    losses = json.loads((folder / "loss_curve.json").read_text())
    return [value for name in ("loss", "eval_loss") for _, value in losses[name]]


@pytest.mark.parametrize("objective", STUDENTS)
@pytest.mark.representatives(2)
def test_a_stream_teaches_what_its_texts_do_in_their_order(objective, tmp_path):
    flags, (kept, read) = make(tmp_path, objective), (tmp_path / name for name in ("kept", "read"))
    distill([*flags, "--train_sampling_strategy=sequential", "--output_dir", str(kept)])
    distill([*flags, "--streaming", "--output_dir", str(read)])
    assert len(results(read)) == len(results(kept)) > 7
    # answers that are kept may have 16 bits
    exact, rounded = {"rel": 1e-6}, {"rel": 1e-3, "abs": 1e-6}
    assert results(read) == pytest.approx(results(kept), **rounded if objective in ("next", "relations") else exact)
    assert [path.name for path in (read / "answers").iterdir()] == ["validation"]


def test_a_run_that_was_interrupted_goes_on_in_the_stream(tmp_path, monkeypatch):
    flags = [*make(tmp_path, "embeddings"), "--streaming", "--save_steps=3"]
    distill([*flags, "--output_dir", str(tmp_path / "whole")])
    asked, answers = [], Objective.answers

    distill_until(6, [*flags, "--output_dir", str(tmp_path / "parts")], monkeypatch)

    def record(objective, batch):
        asked.append(len(batch["input_ids"]))
        return answers(objective, batch)

    monkeypatch.setattr(Objective, "answers", record)
    distill([*flags, "--output_dir", str(tmp_path / "parts"), "--resume_from_checkpoint"])
    # the seventh batch; what was read before is not asked again, and texts of the validation are kept
    assert asked == [8]
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts")]
    assert all(torch.equal(weights[1][name], tensor) for name, tensor in weights[0].items())


def test_a_student_of_answers_made_before_asks_nothing_and_is_that_of_answers_made_while_training(
    tmp_path, monkeypatch, capsys
):
    flags = [*make(tmp_path, "logits"), *FEW]
    old, new = tmp_path / "old", tmp_path / "new"
    distill([*flags, "--output_dir", str(old)])
    made = ["--answers", str(tmp_path / "answers")]
    assert distill([*flags, *made, "--only_answers", "--output_dir", str(tmp_path / "none")]) == {}
    assert "answers to 40 train texts, 8 validation texts in" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()
    assert answers_in(tmp_path / "answers" / "train") == answers_in(old / "answers" / "train")
    monkeypatch.setattr(Logits, "ask_teacher", None)
    distill([*flags, *made, "--output_dir", str(new)])
    weights = [load_file(folder / "model.safetensors") for folder in (old, new)]
    assert all(torch.equal(weights[1][name], tensor) for name, tensor in weights[0].items())


# while the teacher is asked, and before and behind what says of which texts answers are there
PLACES = [("sublayers.training.distill.objectives:Logits", "ask_teacher", 2), ("os", "fsync", 3), ("os", "fsync", 6)]


@pytest.mark.full
def test_answers_of_processes_that_were_killed_are_those_of_one(tmp_path):
    write_texts(tmp_path / "many.txt", TEXTS[:40] * 10)
    flags = [*make(tmp_path, "logits"), f"--train_file={tmp_path / 'many.txt'}", "--only_answers"]
    flags += ["--do_train", "--answers"]
    distill([*flags, str(tmp_path / "whole")])
    expected = answers_in(tmp_path / "whole" / "train")
    assert len(expected) == 400
    words = ["distill", *flags, str(tmp_path / "killed")]
    kill((words, PLACES))
    cli.main(words)
    assert answers_in(tmp_path / "killed" / "train") == expected
    # what a process that was killed had answered was asked no second time
    shards = [*(tmp_path / "killed" / "train").glob("*.texts")]
    assert sum(file.stat().st_size for file in shards) == 8 * len(expected)
    assert len(shards) == 4
