"""Commands of which several processes run, as torchrun starts them; also with models that are sharded, on CPUs."""

import json
import os
import signal
import subprocess
import sys
from pkgutil import resolve_name

import psutil
from killed import die_at_call


def python(*words, home=None, check=True, **environment):
    """Run Python in a process of its own, where what is found here is found, too, and return what is printed.

    Args:
        words: behind `python`.
        home: a folder, where it runs as somebody with an empty cache.
        check: whether it has to end well; else the ended process is returned.
        environment: variables.
    """
    own = {"HF_HOME": str(home), "HF_MODULES_CACHE": f"{home}/modules"} if home else {}
    given = {"cwd": home, "env": _environment() | own | environment}
    done = subprocess.run([sys.executable, *map(str, words)], **given, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stderr[-9000:]
    return done.stdout if check else done


def _environment():
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def launch(processes, *runs, launcher=("--standalone",), **environment):
    """Run commands, one after the other, each of them in several processes, and return what is printed.

    Args:
        processes: how many.
        runs: words of commands.
        launcher: flags of torchrun.
        environment: variables. `KILLS` is a JSON list: in its first attempt to run the commands, torchrun's process of
            the first item's number gets SIGKILL at the call that it names as `killed.die_at_call` does, and so on.
    """
    with start(processes, *runs, launcher=launcher, **environment) as started:
        printed, said = wait(started)
    assert started.returncode == 0, said
    return printed


def start(processes, *runs, launcher=("--standalone",), **environment):
    """Start what `launch` runs."""
    command = [sys.executable, "-m", "torch.distributed.run", *launcher, f"--nproc_per_node={processes}"]
    command += [__file__, json.dumps(runs)]
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **given, env=_environment() | {"PYTHONFAULTHANDLER": "1"} | environment)


def wait(started):
    """Wait for what was started, and return what its two streams say: if it hangs, all stacks."""
    try:
        return started.communicate(timeout=400)
    except subprocess.TimeoutExpired:
        # the processes of the launcher, and the workers of their loaders
        for process in reversed(psutil.Process(started.pid).children(recursive=True)):
            process.send_signal(signal.SIGABRT)
        return started.communicate()


def _shard_on_cpus():
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType

    begin = AcceleratorState.__init__

    def shard(state, *args, fsdp_plugin=None, **kwargs):
        begin(state, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        # on CPUs, Accelerate looks for no plugin
        if fsdp_plugin is not None:
            state.fsdp_plugin = fsdp_plugin
            state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = shard


def _main(runs):
    import torch

    from sublayers.training import cli

    _shard_on_cpus()
    kills, attempt = json.loads(os.environ.get("KILLS", "[]")), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    for process, owner, name, number in kills[attempt : attempt + 1]:
        if process == int(os.environ["RANK"]):
            die_at_call(resolve_name(owner), name, number)
    for words in runs:
        cli.main(words)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
