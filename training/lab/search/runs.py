"""The trainings of a search, each in a process of its own, some at a time, which go on where they were killed."""

import argparse
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping
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


def without_windows(flags: list[str]) -> list[str]:
    """Leave out the flags that only orders with local attention may have."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in OF_WINDOWS:
        parser.add_argument(f"--{name}")
    return parser.parse_known_args(flags)[1]


def train_orders(log: Log, training: Training, candidates: list[Candidate], seeds: list[int], jobs: int) -> None:
    """Train every order with every seed, if the log does not have it yet, and log what came of it.

    Args:
        log: of the search.
        training: the recipe.
        candidates: the orders.
        seeds: of the trainings.
        jobs: how many are trained at a time.

    Raises:
        ValueError: no training came to its end.
    """
    known = [(event["order"], event["name"]) for event in log.events("order")]
    for candidate in candidates:
        if (candidate.order, candidate.name) not in known:
            log.append("order", **candidate._asdict())
    losses = {(event["order"], event["seed"]): event["metrics"]["eval_loss"] for event in log.events("run")}
    wanted = [(candidate.order, seed) for seed in seeds for candidate in candidates]
    places = {log.file.parent / "runs" / f"{order}-{seed}": (order, seed) for order, seed in wanted}
    work = {folder: partial(training.run, *run, folder) for folder, run in places.items() if run not in losses}

    def finish(folder: Path, result: dict[str, Any]) -> str:
        order, seed = places[folder]
        log.append("run", order=order, seed=seed, **result)
        losses[order, seed] = result["metrics"]["eval_loss"]
        best = min(losses, key=lambda run: losses[run])
        return f"best so far {best[0]}, loss {losses[best]:.4f}"

    run_all("orders", work, finish, jobs, len(places) - len(work))


def find_orders(log: Log, search: Callable[[int, Path], dict[str, Any]], seeds: list[int], jobs: int) -> None:
    """Train a super-network with every seed that the log does not have yet, and log what it found.

    Args:
        log: of the search.
        search: from a seed and a folder to the order and how it was found.
        seeds: of the super-networks.
        jobs: how many are trained at a time.

    Raises:
        ValueError: none came to its end.
    """
    known = {event["seed"] for event in log.events("supernet")}
    places = {log.file.parent / "supernets" / f"seed-{seed}": seed for seed in seeds if seed not in known}
    work = {folder: partial(search, seed, folder) for folder, seed in places.items()}

    def finish(folder: Path, result: dict[str, Any]) -> str:
        log.append("supernet", seed=places[folder], **result)
        return f"seed {places[folder]} found {result['order']}"

    run_all("super-networks", work, finish, jobs, len(known))


def run_all(
    name: str,
    work: Mapping[Path, Callable[[], dict[str, Any]]],
    finish: Callable[[Path, dict[str, Any]], str],
    jobs: int,
    finished: int = 0,
) -> None:
    """Do work in processes of its own, with a progress bar.

    Args:
        name: of the work.
        work: by folder; what a killed process left there is removed before, and what it prints goes into `FOLDER.log`.
        finish: is told each folder and its result, and says in a line how matters stand.
        jobs: how many processes there are at a time. The processors are divided among them.
        finished: how much of the work was done before.

    Raises:
        ValueError: nothing was finished, now or before.
    """
    threads = max(1, torch.get_num_threads() // jobs)
    faults = []
    bar = tqdm(total=finished + len(work), initial=finished, desc=name, unit="run")
    # a fork would share torch's threads
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (threads,))
    with bar, pool:
        futures = {pool.submit(_do, folder, call): folder for folder, call in work.items()}
        for future in as_completed(futures):
            folder = futures[future]
            if error := future.exception():
                faults.append(f"{folder.name} failed ({error}); {folder}.log has all that it printed")
                bar.write(faults[-1], file=sys.stderr)
                continue
            bar.set_postfix_str(finish(folder, future.result()))
            bar.update()
    if faults and not finished and len(faults) == len(work):
        raise ValueError(f"no run of {name} came to its end: {faults[0]}")


def _begin(threads: int) -> None:
    torch.set_num_threads(threads)
    # a search that is killed ends its trainings, too
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent: Any = parent_process()
    parent.join()
    os._exit(1)


def _do(folder: Path, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.log", "wb") as printed:
        # the file descriptors are replaced, too, for libraries that write past Python
        for stream in (1, 2):
            os.dup2(printed.fileno(), stream)
    try:
        return call()
    except Exception:
        traceback.print_exc()
        raise
