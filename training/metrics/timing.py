"""Times, memory and ratios of several implementations that run in turn in one process."""

import ctypes
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import accumulate
from math import comb, inf
from statistics import mean, median
from typing import Any, NamedTuple

import torch
from rich.table import Table
from tqdm.auto import tqdm

from sublayers.training.results import Row

Call = Callable[[], Any]

# a median of fewer rounds than these says little
FEWEST = 3
# of glibc's mallopt: how much free memory is kept, and how many blocks are asked of the system one by one
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
# a ratio is one number where its bounds are no further apart than by this factor
AGREED = 1.25

CAPTION = (
    "Times are medians; in brackets the medians of the ratios within a round, where less than 1 is faster. GFLOP/s "
    "counts what a model computes, a train step as three forward passes; GB/s counts its parameters once per generated "
    "token. Peak memory is what a call needs beside weights and optimizer. User and system time are means."
)


class Task(NamedTuple):
    """What each model has to call, and how much work (in units such as GFLOP) the call does.

    Models at the end may be missing.
    """

    name: str
    unit: str
    calls: dict[str, Call]
    work: dict[str, float]


class Comparison(NamedTuple):
    """What a family has to compare: tasks, the peers of each model, numbers that need no measuring, and a remark.

    A model that has no peers, is its own or is alone in a task has no ratios there.
    """

    tasks: Iterable[Task]
    peers: dict[str, list[str]]
    totals: dict[str, dict[str, int]]
    remark: str


def keep_memory() -> bool:
    """Let this process keep the memory that it frees, for whatever runs in it, and say whether it does.

    For large blocks, glibc asks the system for new pages and gives them back, which takes time in every layer. An
    environment variable ends that for any program, so comparisons should not count it. Other libraries stay as they
    are.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all([mallopt(M_MMAP_MAX, 0), mallopt(M_TRIM_THRESHOLD, 2**31 - 1)])


def spent() -> dict[str, float]:
    """Tell what all threads of this process have had of the processor, and the pages of memory that they asked for.

    Windows does not tell.
    """
    if os.name == "nt":
        return {}
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"user ms": used.ru_utime * 1e3, "system ms": used.ru_stime * 1e3, "page faults": used.ru_minflt}


def watch(call: Call, spending: list[dict[str, float]]) -> None:
    """Call, and add what that has `spent`."""
    before = spent()
    call()
    spending.append({name: value - before[name] for name, value in spent().items()})


def time_in_turn(
    name: str,
    calls: dict[Any, Call],
    repeats: int,
    device: torch.device,
    seconds: float = inf,
    fewest: int = FEWEST,
) -> dict[Any, list[float]]:
    """Time calls in turn, in rounds, the first to warm up: all times of each, in ms.

    Where rounds disagree on how long a call takes beside the first one, standard error says so.

    Args:
        name: of what is timed.
        calls: what is timed.
        repeats: how many rounds count at most.
        device: that the calls run on.
        seconds: after which no new round begins.
        fewest: how many rounds count in any case.
    """
    end = time.perf_counter() + seconds
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    times: dict[Any, list[float]] = {key: [] for key in calls}
    # the bar is drawn between rounds, outside of what is timed
    for number in tqdm(range(repeats + 1), name, leave=False, unit="round"):
        if number > fewest and time.perf_counter() > end:
            break
        for key, call in calls.items():
            synchronize()
            start = time.perf_counter()
            call()
            synchronize()
            times[key].append((time.perf_counter() - start) * 1e3)
    counted = {key: measured[1:] for key, measured in times.items()}
    if doubt := disagreement(counted):
        print(f"{name}: {doubt}", file=sys.stderr)
    return counted


def measure(comparison: Comparison, repeats: int, device: torch.device) -> dict[str, dict[str, Any]]:
    """Time the models' calls in turn, in rounds, the first to warm up, then find the memory of one more call.

    Returns:
        For each task its unit and, for each model, all times in ms, their median, the ratios to its peers, what a call
        has `spent` on average, the work done per second, and the peak of memory in bytes.
    """
    results = {}
    for task in comparison.tasks:
        spending: dict[str, list[dict[str, float]]] = {name: [] for name in task.calls}
        watched: dict[Any, Call] = {name: partial(watch, call, spending[name]) for name, call in task.calls.items()}
        samples = time_in_turn(task.name, watched, repeats, device)
        models = {}
        for name, call in task.calls.items():
            middle = median(samples[name])
            peers = [peer for peer in comparison.peers.get(name, []) if peer in samples and peer != name]
            models[name] = {
                "samples_ms": samples[name],
                "median_ms": middle,
                "ratios": {peer: ratio(samples[name], samples[peer]) for peer in peers},
                # the first call warms up
                "spent": {kind: mean(each[kind] for each in spending[name][1:]) for kind in spending[name][0]},
                "rate": task.work[name] / middle * 1e3,
                "peak_bytes": peak_memory(call, device),
            }
        results[task.name] = {"unit": task.unit, "models": models}
    return results


def read_shape(shape: str) -> list[int]:
    """Turn `8x128` into the lengths of 8 rows.

    Raises:
        ValueError: another text.
    """
    rows, _, length = shape.partition("x")
    if not (rows.isdigit() and length.isdigit() and int(rows) * int(length)):
        raise ValueError(f"{shape!r} is no shape; give rows and tokens such as 8x128, or mixed")
    return [int(length)] * int(rows)


def peak_memory(call: Call, device: torch.device) -> int:
    """Find the most bytes that torch holds during a call beyond those that it holds before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    # the profiler would announce its start and stop on standard error
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    with torch.autograd.profiler.profile(profile_memory=True) as profiler:
        call()
    events = profiler.kineto_results.events()
    changes = sorted((event for event in events if event.name() == "[memory]"), key=lambda event: event.start_ns())
    # a free counts as negative bytes
    return max(accumulate((event.nbytes() for event in changes), initial=0))


def ratio(times: list[float], others: list[float]) -> float:
    """Median of the ratios within a round, so that what slows a whole round down cancels."""
    return median(a / b for a, b in zip(times, others, strict=True))


def bounds(times: list[float], others: list[float]) -> tuple[float, float]:
    """Find the bounds of a ratio, with a confidence of 90 % or what the number of rounds allows.

    These are the two ratios within a round that have the median between them with that probability, whatever the ratios
    are distributed like (Conover, "Practical Nonparametric Statistics", section 3.2).
    """
    ratios = sorted(a / b for a, b in zip(times, others, strict=True))
    number = len(ratios)
    # the chance that the median lies beyond this number of ratios
    beyond = [sum(comb(number, i) for i in range(cut + 1)) / 2**number for cut in range((number + 1) // 2)]
    cut = max((cut for cut, share in enumerate(beyond) if 2 * share <= 0.1), default=0)
    return ratios[cut], ratios[-1 - cut]


def agree(low: float, high: float) -> bool:
    """Say whether the bounds of a ratio are near enough to each other for one number."""
    return high <= AGREED * low


def disagreement(times: Mapping[Any, list[float]]) -> str:
    """Say in a sentence on which call the rounds disagree most, beside the first one; nothing where they agree."""
    first, *others = times
    found = {key: bounds(times[key], times[first]) for key in others}
    worst = max(found, key=lambda key: found[key][1] / found[key][0], default=None)
    if worst is None or agree(*found[worst]):
        return ""
    low, high = found[worst]
    names = [" ".join(key) if isinstance(key, tuple) else key for key in (worst, first)]
    return (
        f"rounds disagree, {names[0]} took {low:.2f} to {high:.2f} of {names[1]}; "
        "measure again while nothing else runs here, or with OMP_NUM_THREADS=1"
    )


def rows_of(results: dict[str, dict[str, Any]], totals: dict[str, dict[str, int]], orders: list[str]) -> list[Row]:
    """Make a row of figures for each model: its order, the totals and times, ratios, memory and what is `spent`."""
    rows = {}
    for name in next(iter(totals.values())):
        order = next((order for order in orders if order in name.split()), "")
        counted = {label: f"{values[name]}" for label, values in totals.items()}
        rows[name] = {"model": name, "order": order, "parameters": ""} | counted
    for title, task in results.items():
        # a document has commas between the columns that it names
        own = title.replace(",", "")
        for name, found in task["models"].items():
            rows[name][f"{own} (ms)"] = f"{found['median_ms']:.1f}"
            rows[name] |= {f"{own} (ms) ratio to {peer}": f"{value:.2f}" for peer, value in found["ratios"].items()}
            rows[name][f"{own} peak memory (MiB)"] = f"{found['peak_bytes'] / 2**20:.1f}"
            # these begin otherwise, so that a document that names the columns of a task has none of them
            rows[name] |= {f"{kind} of {own}": f"{value:.1f}" for kind, value in found["spent"].items()}
    return [*rows.values()]


def report(results: dict[str, dict[str, Any]], totals: dict[str, dict[str, int]], shows_spent: bool = False) -> Table:
    """Draw times and ratios, what is `spent` if wanted, rates, peak memory and totals: a column for each model."""
    table = Table(caption=CAPTION, caption_justify="left")
    table.add_column("", no_wrap=True)
    for name in next(iter(totals.values())):
        table.add_column(name, justify="right", overflow="fold")

    def add(unit: str, cell: Callable[[dict[str, Any]], str]) -> None:
        for name, task in results.items():
            table.add_row(f"{name}, {unit or task['unit'] + '/s'}", *map(cell, task["models"].values()))
        table.add_section()

    def times(result: dict[str, Any]) -> str:
        ratios = ", ".join(f"{value:.2f}" for value in result["ratios"].values())
        return f"{result['median_ms']:,.1f}" + (f" ({ratios})" if ratios else "")

    add("ms", times)
    for kind in spent() if shows_spent else ():
        add(kind, lambda result, kind=kind: f"{result['spent'][kind]:,.1f}")  # type: ignore[misc]
    add("", lambda result: f"{result['rate']:,.1f}")
    add("peak MiB", lambda result: f"{result['peak_bytes'] / 2**20:,.1f}")
    for label, values in totals.items():
        table.add_row(label, *(f"{value:,}" for value in values.values()))
    return table
