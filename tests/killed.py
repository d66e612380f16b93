"""Commands that get SIGKILL at a call of a function, while they write."""

import gc
import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pkgutil import resolve_name


def kill(*runs, **environment):
    """Run commands, each of them once for each place.

    Args:
        runs: words of a command, and its places: what has the function, as `module` or `module:Class`, the function's
            name, and at which of its calls the command is killed.
        environment: variables of the commands.
    """
    command = [sys.executable, __file__, json.dumps(runs)]
    subprocess.run(command, capture_output=True, check=True, env={**os.environ, **environment})


def _die(owner, name, number):
    def die(*args, **kwargs):
        nonlocal number
        number -= 1
        if not number:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)

    call = getattr(owner, name)
    setattr(owner, name, die)


def _main(runs):
    # what is below imports takes seconds
    from torch import set_num_threads

    from sublayers.training import cli

    for words, _ in runs:
        import_module(f"sublayers.training.{cli.COMMANDS[words[0]][0]}")
    # OpenMP's other threads do not survive a fork, and another number of them rounds otherwise
    set_num_threads(1)
    # every training collects garbage, and what was imported is none
    gc.freeze()
    for words, places in runs:
        for owner, name, number in places:
            # children of one process, since imports take longer than the runs
            if not (child := os.fork()):
                _die(resolve_name(owner), name, number)
                cli.main(words)
                os._exit(0)
            assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL, (words[0], name)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
