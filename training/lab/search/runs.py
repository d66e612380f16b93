"""The trainings of a search, each in a process of its own, some at a time, which go on where they were killed."""

import argparse
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import torch
from tqdm.auto import tqdm

from sublayers.configuration.sublayer_order import expand
from sublayers.hub.model_card import num_parameters
from sublayers.training import cli
from sublayers.training.lab.search.draw import Candidate
from sublayers.training.log import Log

# fields of a configuration whose order has local attention
OF_WINDOWS = ("attention_window", "local_rope_theta")


class Training(NamedTuple):
    """How orders are trained: the command, its flags without order and seed, and the name of the order's flag."""

    command: str
    flags: list[str]
    field: str

    def run(self, order: str, seed: int, folder: Path) -> dict[str, Any]:
        """Train and evaluate an order, and return the number of its parameters and the metrics."""
        own = [f"--{self.field}={order}", f"--seed={seed}", f"--output_dir={folder}"]
        flags = self.flags if "w" in expand(order) else without_windows(self.flags)
        metrics = cli.run([self.command, *flags, *own])
        return {"parameters": num_parameters(folder), "metrics": metrics}


class Work(NamedTuple):
    """A run: what its event in the log is known by, and a call that does it in a folder and returns the rest to log."""

    about: dict[str, Any]
    call: Callable[[Path], dict[str, Any]]


def without_windows(flags: list[str]) -> list[str]:
    """Leave out the flags that only orders with local attention may have."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in OF_WINDOWS:
        parser.add_argument(f"--{name}")
    return parser.parse_known_args(flags)[1]


def train_orders(log: Log, training: Training, candidates: list[Candidate], seeds: list[int], jobs: int) -> None:
    """Train every order with every seed, if the log does not have it yet, and log what came of it.

    Raises:
        ValueError: no training came to its end.
    """
    known = [(event["order"], event["name"]) for event in log.events("order")]
    for candidate in candidates:
        if candidate[:2] not in known:
            log.append("order", **candidate._asdict())
    work = {}
    for seed in seeds:
        for order, *_ in candidates:
            call = partial(training.run, order, seed)
            work[log.file.parent / "runs" / f"{order}-{seed}"] = Work({"order": order, "seed": seed}, call)

    def say(runs: list[dict[str, Any]]) -> str:
        best = min(runs, key=lambda event: event["metrics"]["eval_loss"])
        return f"best so far {best['order']}, loss {best['metrics']['eval_loss']:.4f}"

    run_all("orders", log, "run", work, say, jobs)


def run_all(
    name: str, log: Log, kind: str, work: dict[Path, Work], say: Callable[[list[dict[str, Any]]], str], jobs: int
) -> None:
    """Do the work that the log does not have yet in processes of its own, with a progress bar, and log it.

    Args:
        name: of the work.
        log: of the search.
        kind: of the events.
        work: by folder. What a killed process left there is removed before, and what it prints goes into `FOLDER.log`.
        say: from all events of the kind, the new one last, to a line on how matters stand.
        jobs: how many processes there are at a time. The processors are divided among them.

    Raises:
        ValueError: nothing was finished, now or before.
    """
    events, faults = log.events(kind), []
    left = {
        folder: each
        for folder, each in work.items()
        if not any(each.about.items() <= event.items() for event in events)
    }
    bar = tqdm(total=len(work), initial=len(work) - len(left), desc=name, unit="run")
    # a fork would share torch's threads
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (max(1, torch.get_num_threads() // jobs),))
    with bar, pool:
        futures = {pool.submit(_do, folder, each.call): folder for folder, each in left.items()}
        for future in as_completed(futures):
            folder = futures[future]
            if error := future.exception():
                faults.append(f"{folder.name} failed ({error}); {folder}.log has all that it printed")
                bar.write(faults[-1], file=sys.stderr)
                continue
            log.append(kind, **left[folder].about, **future.result())
            bar.set_postfix_str(say(log.events(kind)))
            bar.update()
    if faults and len(faults) == len(work):
        raise ValueError(f"no run of {name} came to its end: {faults[0]}")


def _begin(threads: int) -> None:
    torch.set_num_threads(threads)
    # a search that is killed ends its trainings, too
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent: Any = parent_process()
    parent.join()
    os._exit(1)


def _do(folder: Path, call: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.log", "wb") as printed:
        # the file descriptors are replaced, too, for libraries that write past Python
        for stream in (1, 2):
            os.dup2(printed.fileno(), stream)
    try:
        return call(folder)
    except Exception:
        traceback.print_exc()
        raise
