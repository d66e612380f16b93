"""Answers that are made before a student is trained, and processes that are killed while they make them."""

import pytest
import torch
from killed import kill
from safetensors.torch import load_file
from tiny_teachers import TEXTS, answers_in, save_teacher, write_texts

from sublayers.training import cli
from sublayers.training.commands.distill import main as distill
from sublayers.training.distill.objectives import Logits

pytestmark = pytest.mark.slow

FAST = ["--use_cpu", "--disable_tqdm=true", "--report_to=none", "--max_length=16", "--objective=logits"]
# answers differ by rounding where a text is asked about with others
DISTILL = "sublayers.training.distill"
TRAINED = ["--max_steps=12", "--validation_split_percentage=20", "--train_sampling_strategy=sequential"]
TRAINED += ["--per_device_train_batch_size=8", "--per_device_eval_batch_size=8", "--sublayer_order=s2f3"]


def make(folder, number=48):
    save_teacher(folder / "teacher", labels=3)
    texts = write_texts(folder / "texts.txt", [TEXTS[i % 48] for i in range(number)])
    return [str(folder / "teacher"), f"--train_file={texts}", *FAST]


def test_a_student_of_answers_made_before_asks_nothing_and_is_that_of_answers_made_while_training(
    tmp_path, monkeypatch, capsys
):
    flags = make(tmp_path)
    flags += TRAINED
    old, new = tmp_path / "old", tmp_path / "new"
    distill([*flags, "--output_dir", str(old)])
    made = ["--answers", str(tmp_path / "answers")]
    assert distill([*flags, *made, "--only_answers", "--output_dir", str(tmp_path / "none")]) == {}
    assert "answers to 38 train texts, 10 validation texts in" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()
    assert answers_in(tmp_path / "answers" / "train") == answers_in(old / "answers" / "train")
    monkeypatch.setattr(Logits, "ask_teacher", None)
    distill([*flags, *made, "--output_dir", str(new)])
    weights = [load_file(folder / "model.safetensors") for folder in (old, new)]
    assert all(torch.equal(weights[1][name], tensor) for name, tensor in weights[0].items())


@pytest.mark.full
def test_answers_of_processes_that_were_killed_are_those_of_one(tmp_path):
    flags = [*make(tmp_path, number=400), "--only_answers", "--do_train", "--answers"]
    distill([*flags, str(tmp_path / "whole")])
    expected = answers_in(tmp_path / "whole" / "train")
    assert len(expected) == 380
    words = ["distill", *flags, str(tmp_path / "killed")]
    # while the teacher is asked, and before and behind what says of which texts answers are there
    kill((words, [(f"{DISTILL}.objectives:Logits", "ask_teacher", 2), ("os", "fsync", 3), ("os", "fsync", 6)]))
    cli.main(words)
    assert answers_in(tmp_path / "killed" / "train") == expected
    # what a process that was killed had answered was asked no second time
    shards = [*(tmp_path / "killed" / "train").glob("*.texts")]
    assert sum(file.stat().st_size for file in shards) == 8 * len(expected)
    assert len(shards) == 4
