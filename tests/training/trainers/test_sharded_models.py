"""Models that are sharded while they train, and checkpoints of shards."""

import json
import shutil

import datasets
import pytest
import torch
from launched import launch
from safetensors.torch import load_file
from tiny_runs import losses, make_commands, weights, write_rows
from transformers import AutoModelForCausalLM, TrainingArguments
from transformers.training_args import ParallelMode

from sublayers.training import cli
from sublayers.training.commands.pretrain import make_trainer, parse
from sublayers.training.trainers.resume import NEEDED_TO_RESUME, find_fault

pytestmark = [pytest.mark.slow, pytest.mark.full]

NO_DROPOUT = ["--dropout=0", "--attention_dropout=0", "--activation_dropout=0", "--logging_steps=1"]
SHARDS = ["--fsdp", "--fsdp_config", '{"state_dict_type": "SHARDED_STATE_DICT"}']


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Train in one process, in two and in four, and go on with as many and with others; give the folder of the runs."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", str(folder / "cache"))
        plain = [*make_commands(folder)["pretrain"], "--per_device_train_batch_size"]
        stream = [*plain]
        at = plain.index("--train_file")
        stream[at : at + 2] = ["--dataset_name", str(folder / "files"), "--streaming"]
        (folder / "files").mkdir()
        write_rows(folder / "files" / "validation.jsonl", [{"text": "some other text"}] * 9)
        for name in "abcd":
            rows = [{"text": f"{name} {number:02} " + "x" * (number * 7 % 23)} for number in range(30)]
            write_rows(folder / "files" / f"train-{name}.jsonl", rows)

        def words(flags, rows, name, *more):
            return [*flags, str(rows), *more, "--output_dir", str(folder / name)]

        def going_on(run, *more):
            return [*run, *more, "--resume_from_checkpoint"]

        cli.main(words(plain, 4, "one", *NO_DROPOUT))
        launch(
            4,
            words(plain, 1, "four", *NO_DROPOUT, *SHARDS),
            words(stream, 1, "stream of four", *NO_DROPOUT, *SHARDS),
        )
        launch(
            2,
            words(plain, 2, "two", *NO_DROPOUT, *SHARDS),
            words(plain, 2, "whole weights", *NO_DROPOUT, "--fsdp"),
            words(plain, 2, "dropout", *SHARDS),
            [*going_on(words(plain, 2, "dropout resumed", *SHARDS)), str(folder / "dropout" / "checkpoint-4")],
            *(
                [
                    *going_on(words(flags, 2, f"{name} to two", *NO_DROPOUT, *SHARDS), "--any_world_size"),
                    str(folder / name / "checkpoint-4"),
                ]
                for name, flags in (("four", plain), ("stream of four", stream))
            ),
        )
    return folder


def curve(folder):
    found = json.loads((folder / "loss_curve.json").read_text())
    return [loss for name in ("loss", "eval_loss") for _, loss in found[name]]


@pytest.mark.parametrize("name", ["two", "four", "whole weights"])
def test_processes_that_share_a_model_train_as_one_and_leave_it_whole(name, runs):
    assert curve(runs / name) == pytest.approx(curve(runs / "one"), rel=1e-4)
    model, loaded = AutoModelForCausalLM.from_pretrained(runs / name, output_loading_info=True)
    assert not any(loaded.values())
    assert model.config.architectures == ["SandwichLMForCausalLM"]
    assert model.config.use_cache
    expected = load_file(runs / "one" / "model.safetensors")
    found = load_file(runs / name / "model.safetensors")
    assert found.keys() == expected.keys()
    for parameter, value in found.items():
        torch.testing.assert_close(value, expected[parameter], atol=1e-4, rtol=1e-3)


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


def test_shards_are_for_processes_that_share_a_model(runs, tmp_path, capsys, monkeypatch):
    flags = [*make_commands(tmp_path)["pretrain"], *NO_DROPOUT, "--output_dir", str(tmp_path / "out")]
    resumed = ["--resume_from_checkpoint", str(runs / "two" / "checkpoint-4")]
    for more, said in (
        ([*resumed], "was not made by 1 processes; continue with as many"),
        ([*resumed, "--any_world_size"], "only supported when using PyTorch FSDP"),
        (["--fsdp"], "Using fsdp only works in distributed training"),
    ):
        with pytest.raises(SystemExit, match=r"^2$"):
            cli.main([*flags, *more])
        assert said in capsys.readouterr().err
    # in one of several processes
    monkeypatch.setattr(TrainingArguments, "parallel_mode", ParallelMode.DISTRIBUTED)
    with pytest.raises(ValueError, match="leave --fsdp out on CPUs"):
        make_trainer(*parse([*flags[1:], "--fsdp"]))
