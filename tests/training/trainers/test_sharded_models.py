"""Models that are sharded while they train, and checkpoints of shards."""

import shutil

import pytest
from launched import launch
from tiny_runs import NO_DROPOUT, check_same_run, curve, losses, make_commands, make_stream, weights
from transformers import AutoModelForCausalLM, TrainingArguments
from transformers.training_args import ParallelMode

from sublayers.training import cli
from sublayers.training.commands.pretrain import make_trainer, parse
from sublayers.training.trainers.resume import NEEDED_TO_RESUME, find_fault

pytestmark = [pytest.mark.slow, pytest.mark.full]

FIXED = [*NO_DROPOUT, "--logging_steps=1"]
SHARDS = ["--fsdp", "--fsdp_config", '{"state_dict_type": "SHARDED_STATE_DICT"}']


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Train in one process, in two and in four, and go on with as many and with others; give the folder of the runs."""
    folder = tmp_path_factory.mktemp("runs")
    stream = [*make_stream(folder, dict.fromkeys("abcd", 30)), "--per_device_train_batch_size"]
    plain = [*make_commands(folder)["pretrain"], "--per_device_train_batch_size"]

    def words(flags, rows, name, *more):
        return [*flags, str(rows), *more, "--output_dir", str(folder / name)]

    def going_on(run, name, *more):
        return [*run, *more, "--resume_from_checkpoint", str(folder / name / "checkpoint-4")]

    cli.main(words(plain, 4, "one", *FIXED))
    launch(4, words(plain, 1, "four", *FIXED, *SHARDS), words(stream, 1, "stream of four", *FIXED, *SHARDS))
    launch(
        2,
        words(plain, 2, "two", *FIXED, *SHARDS),
        words(plain, 2, "whole weights", *FIXED, "--fsdp"),
        words(plain, 2, "dropout", *SHARDS),
        going_on(words(plain, 2, "dropout resumed", *SHARDS), "dropout"),
        *(
            going_on(words(flags, 2, f"{name} to two", *FIXED, *SHARDS), name, "--any_world_size")
            for name, flags in (("four", plain), ("stream of four", stream))
        ),
    )
    return folder


@pytest.mark.parametrize("name", ["two", "four", "whole weights"])
def test_processes_that_share_a_model_train_as_one_and_leave_it_whole(name, runs):
    check_same_run(runs / name, runs / "one")
    model, loaded = AutoModelForCausalLM.from_pretrained(runs / name, output_loading_info=True)
    assert not any(loaded.values())
    assert model.config.architectures == ["SandwichLMForCausalLM"]
    assert model.config.use_cache


def test_a_resumed_run_ends_as_if_it_had_never_stopped(runs):
    assert weights(runs / "dropout resumed") == weights(runs / "dropout")
    assert losses(runs / "dropout resumed") == losses(runs / "dropout")


@pytest.mark.parametrize("name", ["four", "stream of four"])
def test_two_processes_go_on_with_the_shards_of_four(name, runs):
    assert curve(runs / f"{name} to two") == pytest.approx(curve(runs / name), rel=1e-4)
    checkpoint = runs / f"{name} to two" / "checkpoint-6"
    assert len([*checkpoint.glob("rng_state*")]) == len([*checkpoint.glob("optimizer_0/*.distcp")]) == 2


def test_a_checkpoint_of_shards_that_is_not_whole_is_told(runs, tmp_path):
    whole = runs / "two" / "checkpoint-4"
    assert find_fault(whole, NEEDED_TO_RESUME) is None
    for folder in ("pytorch_model_fsdp_0", "optimizer_0"):
        files = sorted((whole / folder).iterdir())
        assert [file.name for file in files] == [".metadata", "__0_0.distcp", "__1_0.distcp"]
        for file in files:
            for kept in (0, 1, 2):
                damaged = shutil.copytree(whole, tmp_path / "damaged")
                content = file.read_bytes()
                (damaged / folder / file.name).write_bytes(content[: len(content) * kept // 3])
                fault = find_fault(damaged, NEEDED_TO_RESUME)
                assert f"for its {folder}" in fault
                assert "is damaged" in fault
                shutil.rmtree(damaged)
        damaged = shutil.copytree(whole, tmp_path / "damaged")
        (damaged / folder / ".metadata").unlink()
        assert f"its {folder} is damaged (FileNotFoundError)" in find_fault(damaged)
        shutil.rmtree(damaged / folder)
        assert "it has no" in find_fault(damaged, NEEDED_TO_RESUME)
        shutil.rmtree(damaged)


def test_shards_are_for_processes_that_share_a_model(runs, tmp_path, refusal, monkeypatch):
    flags = [*make_commands(tmp_path)["pretrain"], *FIXED, "--output_dir", str(tmp_path / "out")]
    resumed = ["--resume_from_checkpoint", str(runs / "two" / "checkpoint-4")]
    for more, said in (
        ([*resumed], "was not made by 1 processes; continue with as many"),
        ([*resumed, "--any_world_size"], "only supported when using PyTorch FSDP"),
        (["--fsdp"], "Using fsdp only works in distributed training"),
    ):
        assert said in refusal(*flags, *more)
    # in one of several processes
    monkeypatch.setattr(TrainingArguments, "parallel_mode", ParallelMode.DISTRIBUTED)
    with pytest.raises(ValueError, match="leave --fsdp out on CPUs"):
        make_trainer(*parse([*flags[1:], "--fsdp"]))
