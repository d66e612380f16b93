"""Runs that read their corpus while they train, and go on where they were."""

import shutil

import pytest
import torch
from launched import launch
from tiny_runs import NO_DROPOUT, check_same_run, curve, losses, make_stream, weights

from sublayers.training import cli
from sublayers.training.commands.pretrain import make_trainer, parse
from sublayers.training.data import language_modeling
from sublayers.training.data.corpus import join_lines
from sublayers.training.trainers.resumable_trainer import ResumableTrainer

pytestmark = pytest.mark.slow

# documents in each file, of about 16 tokens each; a step reads 12 windows of 15 new tokens
FILES = {"a": 40, "b": 3, "c": 25, "d": 30}


@pytest.fixture
def flags(tmp_path):
    """The words of a run on a folder of files, without its output folder."""
    words = make_stream(tmp_path, FILES)
    steps = ["--gradient_accumulation_steps=2", "--max_steps=16", "--logging_steps=1", "--save_total_limit=99"]
    return [*words, *steps, "--output_dir"]


@pytest.fixture
def asked(monkeypatch):
    """The documents that are tokenized."""
    asked = []

    def count(texts, documents):
        asked.extend(texts)
        return join_lines(texts, documents)

    monkeypatch.setattr(language_modeling, "join_lines", count)
    return asked


# an odd number of batches lies before the first checkpoint that workers go on from
@pytest.mark.parametrize(("workers", "accumulated"), [(0, 2), (2, 3)])
@pytest.mark.representatives(1)
def test_a_resumed_run_ends_as_if_it_had_never_stopped(workers, accumulated, flags, asked, tmp_path, capsys):
    whole, more = tmp_path / "whole", [f"--dataloader_num_workers={workers}", "--save_steps=3"]
    more.append(f"--gradient_accumulation_steps={accumulated}")
    cli.main([*flags, str(whole), *more])
    read, files = [], []
    # in a file, behind several, and when all were read once
    for step in (3, 6, 12):
        out = tmp_path / str(step)
        shutil.copytree(whole / f"checkpoint-{step}", out / f"checkpoint-{step}")
        state = torch.load(out / f"checkpoint-{step}" / "stream_0.pt", weights_only=True)
        files.append(state["places"][0][1])
        asked.clear()
        cli.main([*flags, str(out), *more, "--resume_from_checkpoint"])
        read.append([text for text in asked if not text.startswith("some")])
        assert weights(out) == weights(whole)
        assert losses(out) == losses(whole)
        curves = [(folder / "loss_curve.json").read_bytes() for folder in (out, whole)]
        assert curves[0] == curves[1]
    if not workers:
        # workers count what they read for themselves
        assert files[0] == 0 < files[1] < len(FILES) <= files[2]
        assert [texts[0][0] for texts in read] == ["abcd"[file % len(FILES)] for file in files]
        assert read[0][0] > "a 10"


def test_what_does_not_go_on_is_refused(flags, tmp_path, refusal):
    cli.main([*flags, str(tmp_path / "out"), "--max_steps=2"])
    resumed = [*flags, tmp_path / "out", "--resume_from_checkpoint"]
    other = "reads a stream of {'files': 4, 'block_size': 16, 'workers': 1}, not of {"
    assert other in refusal(*resumed, "--block_size=8")
    assert "'workers': 2}; continue with the flags" in refusal(*resumed, "--dataloader_num_workers=2")
    many = "4 files cannot be divided among 1 processes with 5 workers"
    assert many in refusal(*resumed, "--dataloader_num_workers=5")
    (tmp_path / "out" / "checkpoint-2" / "stream_0.pt").unlink()
    assert "stream_0.pt" in refusal(*resumed)


def test_a_trainer_of_a_search_does_not_stream(flags, tmp_path):
    with pytest.raises(ValueError, match="leave --streaming out"):
        make_trainer(*parse([*flags[1:], str(tmp_path / "out")]), trainer_class=ResumableTrainer)


@pytest.mark.full
def test_two_processes_read_one_file_as_one_process_does_and_go_on_as_one(flags, tmp_path):
    for name in "bcd":
        (tmp_path / "files" / f"train-{name}.jsonl").unlink()
    flags = [*flags[:-1], *NO_DROPOUT, "--output_dir"]
    halves = ["--per_device_train_batch_size=3", "--any_world_size", "--resume_from_checkpoint"]
    cli.main([*flags, str(tmp_path / "one")])
    launch(
        2,
        [*flags, str(tmp_path / "two"), *halves],
        [*flags, str(tmp_path / "more"), *halves, str(tmp_path / "one" / "checkpoint-6")],
    )
    before = str(tmp_path / "two" / "checkpoint-6")
    cli.main([*flags, str(tmp_path / "fewer"), "--any_world_size", "--resume_from_checkpoint", before])
    for name in ("two", "more", "fewer"):
        check_same_run(tmp_path / name, tmp_path / "one")


@pytest.mark.full
def test_two_processes_that_go_on_end_as_if_they_had_not_stopped(flags, tmp_path):
    runs = []
    for name, more in (("plain", []), ("workers", ["--dataloader_num_workers=2"])):
        whole = tmp_path / name
        runs.append([*flags, str(whole), *more])
        parts = [*flags, f"{whole} parts", *more, "--resume_from_checkpoint"]
        runs.append([*parts, str(whole / "checkpoint-6")])
    launch(2, *runs)
    for name in ("plain", "workers"):
        whole, parts = tmp_path / name, tmp_path / f"{name} parts"
        assert weights(parts) == weights(whole)
        assert curve(parts) == curve(whole)
