"""Runs of several machines, and processes that are killed and started again."""

import json
import shutil
import socket

import pytest
from launched import launch, start, wait
from tiny_runs import NO_DROPOUT, check_same_run, losses, make_commands, weights

from sublayers.training import cli

pytestmark = [pytest.mark.slow, pytest.mark.full]


@pytest.fixture
def flags(tmp_path):
    # a tokenizer of words is not the same every time that it is trained
    own = ["--tokenizer_model", "wordpiece", "--vocab_size", "60", "--logging_steps=1"]
    return [*make_commands(tmp_path)["pretrain"], *own, "--per_device_train_batch_size=3", "--output_dir"]


def start_two_machines(*folders, flags):
    """Start an agent with one process for each of two machines."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = ["--nnodes=2", "--master_addr=127.0.0.1", f"--master_port={port}"]
    return [
        start(1, [*flags, str(folder)], launcher=[*common, f"--node_rank={rank}"])
        for rank, folder in enumerate(folders)
    ]


def test_two_machines_train_as_one_process(flags, tmp_path):
    # the last step of an epoch is filled up otherwise
    flags = [*flags[:-1], *NO_DROPOUT, "--max_steps=4", "--output_dir"]
    for agent in start_two_machines(tmp_path / "two", tmp_path / "two", flags=flags):
        _, said = wait(agent)
        assert agent.returncode == 0, said
    given = ["--tokenizer_name_or_path", str(tmp_path / "two"), "--per_device_train_batch_size=6"]
    cli.main([*flags, str(tmp_path / "one"), *given])
    check_same_run(tmp_path / "two", tmp_path / "one")
    assert {path.name for path in (tmp_path / "two" / "checkpoint-4").glob("rng_state*")} == {
        "rng_state_0.pth",
        "rng_state_1.pth",
    }


def test_machines_that_do_not_share_the_output_folder_are_refused(flags, tmp_path):
    first, second = start_two_machines(tmp_path / "one", tmp_path / "two", flags=flags)
    _, said = wait(second)
    assert second.returncode
    assert f"this machine does not see {tmp_path / 'two'} of the first process; name a folder that all" in said
    wait(first)
    assert first.returncode
    assert not list((tmp_path / "one").glob("checkpoint-*"))


def test_processes_that_are_killed_and_started_again_end_as_if_they_had_not_been(flags, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    launch(2, [*flags, str(whole)])
    # the same tokenizer
    killed.mkdir()
    for file in whole.glob("tokenizer*"):
        shutil.copy(file, killed)
    # at the second checkpoint, of which the other process may have written all of its part, and then the first process
    kills = [(1, "transformers:Trainer", "_save_rng_state", 2), (0, "transformers:Trainer", "training_step", 3)]
    environment = {"KILLS": json.dumps(kills), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    launcher = ["--standalone", "--max-restarts=3"]
    printed = launch(2, [*flags, str(killed), "--resume_from_checkpoint"], launcher=launcher, **environment)
    for said in (
        "so starting from the beginning",
        f"{killed}/checkpoint-4 is no complete checkpoint, for it has no trainer_state.json",
        f"continuing from {killed}/checkpoint-2",
        f"continuing from {killed}/checkpoint-4",
    ):
        assert printed.count(said) == 1, said
    assert weights(killed) == weights(whole)
    assert losses(killed) == losses(whole)
    assert {path.name for path in killed.iterdir()} == {path.name for path in whole.iterdir()}
