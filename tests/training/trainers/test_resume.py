import json
import os
import random
import resource
import shutil
import subprocess
import sys
from functools import cache
from itertools import product

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_runs import SIZES, losses, make_commands, weights
from transformers import Trainer, TrainerCallback

from sublayers import PARBertConfig, PARBertForQuestionAnswering
from sublayers.training import cli
from sublayers.training.trainers.arguments import TrainerArguments
from sublayers.training.trainers.resume import NEEDED_TO_RESUME, find_checkpoint, find_fault

pytestmark = pytest.mark.slow

RESUMABLE = ("pretrain", "seq2seq", "squad")

# another process that holds a folder until it is killed
HOLDER = """
import sys, time
from filelock import FileLock
from sublayers.training.folders import LOCK

with FileLock(f"{sys.argv[1]}/{LOCK}"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    return make_commands(tmp_path_factory.mktemp("commands"))


@pytest.fixture(scope="module")
def finished(commands, tmp_path_factory):
    """Give the folder of a run of a command that has ended, which is to be copied."""

    @cache
    def run(command):
        folder = tmp_path_factory.mktemp(command) / "whole"
        cli.main([*commands[command], "--output_dir", str(folder)])
        return folder

    return run


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.mark.parametrize("command", RESUMABLE)
@pytest.mark.representatives(1)
def test_a_resumed_run_ends_as_if_it_had_never_stopped(command, commands, finished, tmp_path, capsys):
    whole = finished(command)
    # before the first log, between two, and while the final model was written; what is over trains no more
    for step, steps in ((2, 7), (4, 7), (7, 7), (7, 4)):
        out = tmp_path / f"{step}-{steps}"
        for saved in (n for n in (2, 4, 6, 7) if n <= step):
            shutil.copytree(whole / f"checkpoint-{saved}", out / f"checkpoint-{saved}")
        before = (out / f"checkpoint-{step}" / "model.safetensors").stat().st_mtime_ns
        cli.main([*commands[command], "--output_dir", str(out), "--resume_from_checkpoint", "--max_steps", str(steps)])
        assert "train_loss" in capsys.readouterr().out.splitlines()[-1]
        assert weights(out) == weights(whole)
        assert losses(out) == losses(whole)
        assert {path.name for path in out.iterdir()} == {path.name for path in whole.iterdir()}
        assert (out / f"checkpoint-{step}" / "model.safetensors").stat().st_mtime_ns == before


def test_a_loss_that_the_checkpoint_does_not_tell_is_not_reported(commands, finished, out, capsys):
    shutil.copytree(finished("pretrain") / "checkpoint-4", out / "checkpoint-4")
    path = out / "checkpoint-4" / "trainer_state.json"
    state = json.loads(path.read_text())
    del state["stateful_callbacks"]["losses"]
    path.write_text(json.dumps(state))
    cli.main([*commands["pretrain"], "--output_dir", str(out), "--resume_from_checkpoint"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert "eval_loss" in last
    assert "train_loss" not in last


def test_one_run_at_a_time_writes_into_a_folder(commands, out, refusal):
    out.mkdir()
    # processes of a grid share its folder
    runs = [[*flags, "--output_dir", str(out)] for name, flags in commands.items() if name != "glue"]
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(out)], stdout=subprocess.PIPE) as holder:
        try:
            holder.stdout.readline()
            for flags in (*runs, *([*flags, "--resume_from_checkpoint"] for flags in runs if flags[0] in RESUMABLE)):
                assert f"another run is writing into {out}; wait until it ends or" in refusal(*flags)
        finally:
            holder.kill()
    # what a killed run left is not in the way
    assert [path.name for path in out.iterdir()] == [".lock"]
    cli.main(runs[0])
    assert (out / "model.safetensors").exists()
    assert not (out / ".lock").exists()


OWN_TOKENIZER = {
    "pretrain": ["--tokenizer_model", "wordpiece", "--vocab_size", "60"],
    "seq2seq": ["--separate_vocabularies", "--average_checkpoints", "1"],
}


@pytest.mark.parametrize("command", OWN_TOKENIZER)
@pytest.mark.representatives(1)
def test_a_run_that_had_no_checkpoint_goes_on_with_its_tokenizers(command, commands, tmp_path, refusal, monkeypatch):
    def stop(*args, **kwargs):
        raise OSError("the power is out")

    flags = [*commands[command], *OWN_TOKENIZER[command], "--max_steps", "2", "--save_steps", "9", "--output_dir"]
    cli.main([*flags, str(tmp_path / "whole")])
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "train", stop)
        assert "the power is out" in refusal(*flags, str(tmp_path / "out"))
    # it is not trained again
    monkeypatch.setattr("tokenizers.Tokenizer.train_from_iterator", stop)
    cli.main([*flags, str(tmp_path / "out"), "--resume_from_checkpoint"])
    assert weights(tmp_path / "out") == weights(tmp_path / "whole")


DAMAGE = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "all but a byte": lambda content: content[:-1],
    "garbage": lambda content: random.Random(0).randbytes(len(content)),
    "missing": None,
}
# and what is said to be missing without them
FILES = {"model.safetensors": "model", "optimizer.pt": "optimizer", "scheduler.pt": "scheduler"}
FILES |= {"rng_state.pth": "rng_state"} | {name: name for name in ("trainer_state.json", "config.json")}


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(commands, finished, out, capsys, refusal):
    shutil.copytree(finished("pretrain"), out)
    flags = [*commands["pretrain"], "--output_dir", str(out)]
    whole, last = weights(out), out / "checkpoint-7"
    args = TrainerArguments(str(out), resume_from_checkpoint="true")
    assert find_checkpoint(args) == str(last)
    capsys.readouterr()
    for name, (kind, damage) in product(FILES, DAMAGE.items()):
        content = (last / name).read_bytes()
        (last / name).unlink()
        if damage:
            # a text ends with a line break, which nobody misses
            (last / name).write_bytes(damage(content.rstrip()))
        assert find_checkpoint(args) == str(out / "checkpoint-6"), (name, kind)
        fault, going_on = capsys.readouterr().out.splitlines()
        assert fault.startswith(f"{last} is no complete checkpoint, for "), (name, kind)
        assert (f"{name} is damaged" if damage else f"it has no {FILES[name]}") in fault, (name, kind)
        assert going_on == f"continuing from {out / 'checkpoint-6'}"
        with pytest.raises(FileNotFoundError, match=r"is no complete checkpoint, for .*; give another"):
            find_checkpoint(TrainerArguments(str(out), resume_from_checkpoint=str(last)))
        (last / name).write_bytes(content)

    (last / "optimizer.pt").write_bytes(b"")
    said = f"sublayers pretrain: {last} is no complete checkpoint, for its optimizer.pt is damaged (BadZipFile); give"
    assert refusal(*flags, "--resume_from_checkpoint", str(last)).startswith(said)
    cli.main([*flags, "--resume_from_checkpoint"])
    assert weights(out) == whole
    assert find_checkpoint(args) == str(last)


def test_a_checkpoint_lacks_no_shard_and_names_nothing_outside(commands, finished, out, tmp_path, refusal):
    last = shutil.copytree(finished("squad") / "checkpoint-4", out / "checkpoint-4")
    PARBertForQuestionAnswering.from_pretrained(last).save_pretrained(last, max_shard_size="5KB")
    (last / "model.safetensors").rename(tmp_path / "private.safetensors")
    assert find_fault(last, NEEDED_TO_RESUME) is None
    first = next(last.glob("model-*"))
    first.rename(tmp_path / "shard")
    assert "its model.safetensors.index.json is damaged (FileNotFoundError)" in find_fault(last)
    flags = [*commands["squad"], "--output_dir", str(tmp_path / "theirs"), "--resume_from_checkpoint", str(last)]
    # a checkpoint may be somebody else's, too
    index = last / "model.safetensors.index.json"
    index.write_text(index.read_text().replace(first.name, "../../private.safetensors"))
    assert "names '../../private.safetensors', which is outside of the folder" in refusal(*flags)
    os.mkfifo(last / "more.json")
    assert "more.json is neither a file nor a folder" in refusal(*flags)


def test_a_process_goes_on_with_its_own_random_state(commands, finished, out, refusal):
    last = shutil.copytree(finished("pretrain") / "checkpoint-2", out / "checkpoint-2")
    # as one of two processes writes it
    (last / "rng_state.pth").rename(last / "rng_state_0.pth")
    flags = [*commands["pretrain"], "--output_dir", str(out), "--resume_from_checkpoint"]
    for given in (flags, [*flags, str(last)]):
        assert f"{last} was not made by 1 processes; continue with as many as" in refusal(*given)
    cli.main([*flags, "--any_world_size"])


def test_no_other_checkpoints_are_averaged_than_the_last(commands, finished, out, refusal):
    shutil.copytree(finished("seq2seq"), out)
    flags = [*commands["seq2seq"], "--output_dir", str(out)]
    whole, final = weights(out), load_file(out / "model.safetensors")
    last = [load_file(out / f"checkpoint-{step}" / "model.safetensors") for step in (6, 7)]
    for name, tensor in final.items():
        torch.testing.assert_close(tensor, (last[0][name] + last[1][name]) / 2, rtol=1e-6, atol=1e-7)
    assert not all(torch.equal(tensor, last[1][name]) for name, tensor in final.items())
    # what a longer run had left behind the end of this one
    shutil.copytree(out / "checkpoint-2", out / "checkpoint-8")
    cli.main([*flags, "--resume_from_checkpoint", str(out / "checkpoint-4")])
    assert weights(out) == whole
    shutil.rmtree(out / "checkpoint-8")
    (out / "checkpoint-6" / "model.safetensors").write_bytes(b"")
    assert "checkpoint-6 is no complete checkpoint" in refusal(*flags, "--resume_from_checkpoint")


@pytest.mark.parametrize("place", ["save_model", "_save_optimizer_and_scheduler", "_save_rng_state"])
@pytest.mark.representatives(1)
def test_a_run_without_room_says_so_and_goes_on(place, commands, finished, out, capsys, refusal, monkeypatch):
    def without_room(trainer, *args, **kwargs):
        # of the second checkpoint some files come out
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if trainer.state.global_step == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            save(trainer, *args, **kwargs)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    flags = [*commands["pretrain"], "--output_dir", str(out)]
    save = getattr(Trainer, place)
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, place, without_room)
        said = refusal(*flags)
    assert f"{out / 'checkpoint-4'} cannot be written, perhaps for lack of room (" in said
    assert said.count("\n") == 1
    cli.main([*flags, "--resume_from_checkpoint"])
    assert f"continuing from {out / 'checkpoint-2'}" in capsys.readouterr().out
    assert weights(out) == weights(finished("pretrain"))


def test_half_of_a_checkpoint_of_each_of_two_runs_is_not_a_whole_one(commands, finished, out, refusal, monkeypatch):
    def stop(trainer, folder):
        raise OSError("no more room")

    shutil.copytree(finished("pretrain"), out)
    flags = [*commands["pretrain"], "--output_dir", str(out)]
    monkeypatch.setattr(Trainer, "_save_optimizer_and_scheduler", stop)
    again = [*flags, "--resume_from_checkpoint", str(out / "checkpoint-2"), "--learning_rate", "1e-3"]
    assert "no more room" in refusal(*again)
    assert find_fault(out / "checkpoint-2") is None
    assert find_fault(out / "checkpoint-4") is not None


def test_a_folder_that_cannot_be_written_to_is_refused_at_the_start(commands, tmp_path, refusal):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    (tmp_path / "file").touch()
    # there nobody may write, not even root
    for name in (str(tmp_path / "link"), str(tmp_path / "file"), str(tmp_path / "file" / "out"), "/proc/out"):
        for flags in commands.values():
            assert f"{name} cannot be written to (" in refusal(*flags, "--output_dir", name)


@pytest.mark.parametrize("command", ["pretrain", "seq2seq", "squad", "glue"])
@pytest.mark.representatives(2)
def test_a_loss_that_is_not_finite_ends_the_run(command, commands, out, refusal, monkeypatch):
    def spoil(trainer, model, inputs, *args, **kwargs):
        if trainer.state.global_step == 4:
            next(trainer.model.parameters()).data[:] = float("nan")
        return train(trainer, model, inputs, *args, **kwargs)

    train = Trainer.training_step
    monkeypatch.setattr(Trainer, "training_step", spoil)
    said = refusal(*commands[command], "--output_dir", str(out))
    assert "the loss is nan after 4 steps, so the model is of no use; start again with other settings" in said
    (last,) = (path.parent for path in out.rglob("checkpoint-4/trainer_state.json"))
    assert find_fault(last, NEEDED_TO_RESUME) is None
    assert not list(out.rglob("checkpoint-[567]"))


def test_weights_that_are_not_finite_are_not_saved(commands, out, refusal, monkeypatch):
    def spoil(callback, args, state, control, model, **kwargs):
        # the step itself had a loss
        if state.global_step == 4:
            next(model.parameters()).data[0] = float("inf")

    monkeypatch.setattr(TrainerCallback, "on_step_end", spoil)
    flags = [*commands["pretrain"], "--eval_strategy", "no", "--output_dir", str(out)]
    assert ".weight is not finite after 4 steps" in refusal(*flags)
    assert [path.name for path in out.glob("checkpoint-*")] == ["checkpoint-2"]


def test_a_model_whose_loss_is_not_finite_has_no_score(commands, finished, out, refusal):
    model = shutil.copytree(finished("pretrain"), out.with_name("model"))
    state = load_file(model / "model.safetensors")
    spoilt = {name: torch.full_like(tensor, float("nan")) for name, tensor in state.items()}
    save_file(spoilt, model / "model.safetensors", {"format": "pt"})
    again = ["--model_name_or_path", str(model), "--do_eval", "--output_dir", str(out)]
    assert "eval_loss is nan" in refusal(*commands["pretrain"], *again)


def test_a_checkpoint_of_another_model_is_refused(commands, finished, out, refusal):
    last = shutil.copytree(finished("squad") / "checkpoint-2", out / "checkpoint-2")
    wide = PARBertConfig(**SIZES | {"hidden_size": 32}, sublayer_order="sf", max_position_embeddings=32)
    PARBertForQuestionAnswering(wide).save_pretrained(last)
    flags = [*commands["squad"], "--output_dir", str(out), "--resume_from_checkpoint"]
    assert "checkpoint-2 are not of this model; continue with the flags" in refusal(*flags)
    shutil.copytree(finished("pretrain") / "checkpoint-2", out / "checkpoint-2", dirs_exist_ok=True)
    flags = [*commands["pretrain"], "--output_dir", str(out), "--resume_from_checkpoint", "--hidden_size=32"]
    assert "has hidden_size=16, not 32; continue with the flags" in refusal(*flags)
