"""Commands that get SIGKILL at a call of a function, or at a write, while they run."""

import gc
import json
import os
import signal
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

WRITES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.truncate", "shutil.rmtree")


def kill(*runs, **environment):
    """Run commands, each of them once for each place.

    Args:
        runs: words of a command, and its places: what has the function, as `module` or `module:Class`, the function's
            name, and at which of its calls the command is killed.
        environment: variables of the commands.
    """
    _run({"places": runs}, environment)


def kill_and_resume(words, folder, number, **environment):
    """Run a command once to its end, and then killed at its writes, evenly spread, and again to its end.

    Args:
        words: the command, whose output folders are `whole`, and else the numbers of the writes.
        folder: where these are.
        number: how many writes at most. Each file opened, and whatever is made, moved or removed in the output folder,
            counts as one.
        environment: variables of the commands.
    """
    _run({"words": words, "folder": str(folder), "number": number}, environment)


def _run(task, environment):
    command = [sys.executable, __file__, json.dumps(task)]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    assert ended.returncode == 0, ended.stderr


def die_at_call(owner, name, number):
    """Let this process get SIGKILL at a call of a function of a module or class."""

    def die(*args, **kwargs):
        nonlocal number
        number -= 1
        if not number:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)

    call = getattr(owner, name)
    setattr(owner, name, die)


def _count_writes(folder, number=None):
    """Count writes below a folder, and die before one of them."""
    found = 0

    def hook(event, args):
        nonlocal found
        writes = event in WRITES or (event == "open" and (args[2] or 0) & (os.O_WRONLY | os.O_RDWR))
        if writes and str(args[0]).startswith(folder):
            found += 1
            if found == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return lambda: found


def _fork(words, prepare=lambda: None, end=lambda found: None):
    """Run a command in a child, since imports take longer than the runs, and tell how it ended."""
    from sublayers.training import cli

    if child := os.fork():
        return os.waitpid(child, 0)[1]
    prepared = prepare()
    cli.main(words)
    end(prepared)
    os._exit(0)


def _main(task):
    # what is below imports takes seconds
    from torch import set_num_threads

    from sublayers.training import cli
    from sublayers.training.metrics import glue, language_modeling  # noqa: F401
    from sublayers.training.trainers import order_trainer, run, stream_trainer  # noqa: F401

    for words in [words for words, _ in task["places"]] if "places" in task else [task["words"]]:
        import_module(f"sublayers.training.{cli.COMMANDS[words[0]][0]}")
    # OpenMP's other threads do not survive a fork, and another number of them rounds otherwise
    set_num_threads(1)
    # every training collects garbage, and what was imported is none
    gc.freeze()
    for words, places in task.get("places", ()):
        for owner, name, number in places:
            ended = _fork(words, partial(die_at_call, resolve_name(owner), name, number))
            assert os.WTERMSIG(ended) == signal.SIGKILL, (words[0], name)
    if "words" in task:
        _at_writes(**task)


def _at_writes(words, folder, number):
    def at(name):
        return [*words, "--output_dir", f"{folder}/{name}"]

    counted = Path(f"{folder}/writes")
    count = partial(_count_writes, f"{folder}/whole")
    assert _fork(at("whole"), count, lambda found: counted.write_text(str(found()))) == 0
    writes = int(counted.read_text())
    counted.unlink()
    for place in sorted({1 + writes * n // number for n in range(number)}):
        ended = _fork(at(place), partial(_count_writes, f"{folder}/{place}", place))
        assert os.WTERMSIG(ended) == signal.SIGKILL, place
        assert _fork(at(place)) == 0, place


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
