"""How many threads train a model while other programs run, too."""

import os

import psutil
import torch

# for which the load is watched
SECONDS = 1.0


def use_free_processors() -> int:
    """Let torch use as many threads as processors are free now, unless OMP_NUM_THREADS says how many.

    Threads wait for each other at each step, so one that shares its processor slows all of them down.

    Returns:
        How many threads torch uses now.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        busy = psutil.cpu_percent(SECONDS, percpu=True)
        # macOS ties no process to some of its processors
        allowed = psutil.Process().cpu_affinity() if psutil.LINUX or psutil.WINDOWS else range(len(busy))
        free = sum(1 - busy[number] / 100 for number in allowed)
        torch.set_num_threads(max(1, min(torch.get_num_threads(), round(free))))
    return torch.get_num_threads()
