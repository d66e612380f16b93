"""Ctrl-C: one sentence, what goes on, and the status 130, whatever runs."""

import os
import signal
import subprocess
import sys
import time

import pytest
from tiny_runs import make_commands

from sublayers.training import cli
from sublayers.training.interrupts import kept_from_children

CHECKPOINTS = "checkpoints are kept, and the same command with --resume_from_checkpoint goes on from the last one"
FINISHED = "what is finished is kept, and the same command goes on"
AGAIN = "it has nothing to go on from, and the same command begins again"


@pytest.fixture
def handler():
    """Keep the handler of pytest, which is not that of a command that ends."""
    before = signal.getsignal(signal.SIGINT)
    yield before
    signal.signal(signal.SIGINT, before)


def said_by(command, capsys, monkeypatch, error=KeyboardInterrupt):
    def run(argv):
        raise error

    monkeypatch.setattr(cli, "run", run)
    with pytest.raises(SystemExit) as stopped:
        cli.main(command.split())
    assert stopped.value.code == 130
    # a second one, while all ends, is no traceback either
    assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    return capsys.readouterr().err


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_says_in_one_sentence_what_goes_on(command, handler, capsys, monkeypatch):
    said = said_by(command, capsys, monkeypatch)
    resumed, continued = {"pretrain", "seq2seq", "distill", "squad"}, {"glue", "prune"}
    goes_on = command in continued or command.startswith(("study ", "search "))
    # these do not go on in a folder that has something
    goes_on &= command != "search report"
    expected = CHECKPOINTS if command in resumed else FINISHED if goes_on else AGAIN
    assert said == f"sublayers {command}: stopped; {expected}\n"


def test_what_another_error_causes_while_a_process_is_interrupted_is_no_traceback(handler, capsys, monkeypatch):
    class SlowError(ValueError):
        def __str__(self):
            # such as the lost connection to a process that ended first
            raise KeyboardInterrupt

    assert said_by("pretrain", capsys, monkeypatch, SlowError()) == f"sublayers pretrain: stopped; {CHECKPOINTS}\n"


def test_of_several_processes_the_first_one_speaks(handler, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert said_by("pretrain", capsys, monkeypatch) == ""
    monkeypatch.setenv("RANK", "0")
    assert said_by("pretrain", capsys, monkeypatch)


def test_processes_that_are_started_ignore_what_their_parent_hears(handler):
    code = "import signal; print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
    with kept_from_children():
        assert subprocess.check_output([sys.executable, "-c", code], text=True) == "True\n"
    assert signal.getsignal(signal.SIGINT) == handler


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(
    ("command", "flags", "begun", "expected"),
    [
        ("pretrain", ["--dataloader_num_workers=1"], "checkpoint-*", CHECKPOINTS),
        ("glue", [], "sst2-*/checkpoint-*", FINISHED),
        ("glue", ["--jobs=2", "--seeds", "1", "2"], "sst2-*/checkpoint-*", FINISHED),
    ],
)
def test_ctrl_c_in_a_terminal_ends_a_command_and_its_processes_in_one_sentence(
    command, flags, begun, expected, tmp_path
):
    words = [*make_commands(tmp_path)[command], *flags, "--max_steps=100000", f"--output_dir={tmp_path / 'out'}"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    # a terminal sends the signal to all processes of a group
    started = subprocess.Popen(
        [sys.executable, "-m", "sublayers", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
        # a shell lets what it starts in the background ignore it, a terminal does not
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while started.poll() is None and not any((tmp_path / "out").glob(f"{begun}/trainer_state.json")):
        time.sleep(0.1)
    assert started.poll() is None
    os.killpg(started.pid, signal.SIGINT)
    said = started.communicate()[1]
    assert started.returncode == 130
    assert said.splitlines()[-1] == f"sublayers {command}: stopped; {expected}"
    assert "Traceback" not in said
    assert "leaked" not in said
