"""Answers that processes make which were not launched together, and students that are trained on them."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_teachers import TEXTS, answers_in, save_teacher, write_texts

from sublayers.training.commands.distill import main as distill
from sublayers.training.distill.objectives import Logits

pytestmark = pytest.mark.slow

FAST = ["--use_cpu", "--disable_tqdm=true", "--report_to=none", "--max_length=16", "--objective=logits"]
# answers differ by rounding where a text is asked about with others
TRAINED = ["--max_steps=12", "--validation_split_percentage=20", "--train_sampling_strategy=sequential"]
TRAINED += ["--per_device_train_batch_size=8", "--per_device_eval_batch_size=8", "--sublayer_order=s2f3"]
# a teacher that takes its time, asked about few texts at a time
ASK = """
import os, sys, time
from sublayers.training.commands.distill import main
from sublayers.training.distill import answers
from sublayers.training.distill.objectives import Logits

answers.RANGE = 256
ask = Logits.ask_teacher
# so slowly that nobody comes to the end before all others have been killed
Logits.ask_teacher = lambda *args: time.sleep(1.5 * os.path.exists("slowly")) or ask(*args)
main(sys.argv[1:])
"""


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
def test_two_processes_make_the_answers_of_one_though_they_are_killed(tmp_path):
    flags = [*make(tmp_path, number=4000), "--only_answers", "--do_train", "--answers"]
    distill([*flags, str(tmp_path / "whole")])
    expected = answers_in(tmp_path / "whole" / "train")
    assert len(expected) == 3800
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    chance, folder = random.Random(0), tmp_path / "shared" / "train"

    def start():
        command = [sys.executable, "-c", ASK, *flags, str(folder.parent)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(command, env=environment, cwd=tmp_path, **quiet)

    def shards():
        return {*folder.glob("*.texts")}

    (tmp_path / "slowly").touch()
    running = start()
    for _ in range(3):
        before, victim = shards(), start()
        while shards() <= before or len(shards()) < 2:
            assert victim.poll() is None
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.7))
        victim.kill()
        victim.wait()
    (tmp_path / "slowly").unlink()
    assert running.wait() == 0
    assert answers_in(folder) == expected
    assert len(shards()) == 4
    # what a process that was killed had answered was asked no second time
    assert sum(Path(file).stat().st_size for file in shards()) == 8 * len(expected)
