"""Runs that are killed while they write, and what the same command does then."""

import pytest
from killed import kill, kill_and_resume
from tiny_runs import losses, make_commands, weights

from sublayers.training import cli

pytestmark = pytest.mark.slow

TRAINERS = "sublayers.training.trainers"
PLACES = [
    # the first checkpoint has weights only, the second no random state, the third no state of the Trainer
    ("transformers:Trainer", "_save_optimizer_and_scheduler", 1),
    ("transformers:Trainer", "_save_rng_state", 2),
    ("transformers:TrainerState", "save_to_json", 2),
    # after the last two checkpoints, the model has weights and no tokenizer, and then no card
    (f"{TRAINERS}.pair_trainer", "save_tokenizers", 3),
    ("sublayers.hub.folder", "write_card", 1),
]


@pytest.mark.full
def test_a_run_that_was_killed_wherever_it_writes_ends_as_if_it_had_not_been(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    seq2seq = make_commands(tmp_path)["seq2seq"]
    cli.main([*seq2seq, "--output_dir", str(whole)])
    flags = [*seq2seq, "--output_dir", str(killed), "--resume_from_checkpoint"]
    kill((flags, PLACES))
    cli.main(flags)
    assert weights(killed) == weights(whole)
    assert losses(killed) == losses(whole)
    assert {path.name for path in killed.iterdir()} == {path.name for path in whole.iterdir()}


MASKED = ["--objective=mlm+nsp", "--tokenizer_model=wordpiece", "--optimizer=lamb"]
MASKED += ["--tokenizer_name_or_path=model"]


@pytest.mark.parametrize(
    ("command", "more"), [("pretrain", []), ("pretrain", MASKED), ("seq2seq", []), ("squad", []), ("glue", [])]
)
@pytest.mark.full
def test_a_run_ends_as_if_it_had_not_been_killed_at_any_write(command, more, tmp_path, pytestconfig, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [*make_commands(tmp_path)[command], *more, "--resume_from_checkpoint"]
    (runs := tmp_path / "runs").mkdir()
    number = pytestconfig.getoption("kills")
    kill_and_resume(words, runs, number)
    whole, *killed = sorted(runs.iterdir(), key=lambda path: path.name != "whole")
    assert killed
    for path in killed:
        assert names(path) == names(whole), path.name
        for name in ("model.safetensors", "optimizer.pt", "loss_curve.json", "results.json"):
            for place in whole.rglob(name):
                place = place.relative_to(whole)
                assert (path / place).read_bytes() == (whole / place).read_bytes(), (path.name, place)


def names(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
