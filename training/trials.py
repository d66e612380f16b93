"""Trials: trainings and the like, which any number of processes and machines share, as studies of Optuna."""

import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Event, Thread
from typing import Any, ClassVar, Literal

import optuna
import psutil
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from tqdm.auto import tqdm

from sublayers import __version__
from sublayers.training.flags import flag
from sublayers.training.folders import LOCK, check_settings
from sublayers.training.interrupts import kept_from_children

# of a folder whose studies are not in another storage
JOURNAL = "journal.log"
# attribute of a study: what all trials have in common
SETTINGS = "settings"
# attributes of a trial: what is to be done; which beat of its process was the last; why there is no result
TASK, BEAT, ERROR = "task", "beat", "error"
# seconds between two beats, and after which a trial without a new one is given to another process
BEATS, SILENCE = 5.0, 60.0
# seconds between two looks at what others do, and after which a lock is broken that a dead process has left
POLL, LOCKED = 1.0, 5

Do = Callable[[optuna.Trial], float]
optuna.logging.set_verbosity(optuna.logging.ERROR)


@dataclass(kw_only=True)
class TrialsArguments:
    """Flags of a command whose trials are shared. Raises a ValueError for less than one job."""

    _argument_group_name: ClassVar[str] = "trials"

    jobs: int = flag("trials at a time on this machine", 1)
    storage: str | None = flag(
        "where results are kept, a URL or a file of Optuna; default: journal.log in --output_dir. All processes that "
        "run the same command with one storage share the work"
    )

    def __post_init__(self):
        if self.jobs < 1:
            raise ValueError(f"--jobs={self.jobs} is not a positive number; give another")


def open_study(
    kind: str,
    folder: Path,
    settings: dict[str, Any],
    storage: str | None = None,
    goal: Literal["minimize", "maximize"] = "minimize",
) -> optuna.Study:
    """Open the study of new trials, or of some that others began with the same settings and version.

    Args:
        kind: what they are, for example a search.
        folder: of what they leave, which a storage in a file is in.
        settings: what they have in common.
        storage: a URL or a file of Optuna's; by default `journal.log` in the folder.
        goal: what is good, "minimize" or "maximize".

    Raises:
        FileExistsError: the folder holds something else, or the study has other settings.
        OSError: the storage cannot be reached or read.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"{folder} cannot be written to ({error.strerror}); choose another folder") from error
    if not (storage or (folder / JOURNAL).exists()) and any(path.name != LOCK for path in folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty and holds no {kind}; choose another --output_dir")
    # the values as JSON reads them back
    settings = json.loads(json.dumps(settings | {"version": __version__}))
    with _reading(place := storage or str(folder / JOURNAL)):
        study = optuna.create_study(
            storage=_open(place), study_name=_name(kind, folder, storage), direction=goal, load_if_exists=True
        )
        # Optuna would end trials early
        study.pruner = optuna.pruners.NopPruner()
        if SETTINGS not in study.user_attrs:
            study.set_user_attr(SETTINGS, settings)
        before = study.user_attrs[SETTINGS]
    check_settings(f"{storage or folder} has a {kind}", before, settings)
    return study


def read_study(kind: str, folder: Path, storage: str | None = None) -> optuna.Study:
    """Open a study that is there.

    Raises:
        FileNotFoundError: there is none.
        OSError: the storage cannot be reached or read.
    """
    place, name = storage or str(folder / JOURNAL), _name(kind, folder, storage)
    # Optuna would make a new file
    if "://" in place or Path(place).exists():
        with _reading(place):
            opened = _open(place)
            if name in optuna.get_all_study_names(opened):
                return optuna.load_study(storage=opened, study_name=name)
    raise FileNotFoundError(f"{storage or folder} holds no {kind}; give the --output_dir of one, and its --storage")


def run_trials(
    study: optuna.Study,
    do: Do,
    folder: Path,
    tasks: Sequence[dict[str, Any]],
    jobs: int = 1,
    say: Callable[[optuna.Study], str] = lambda study: "",
) -> list[tuple[dict[str, Any], str]]:
    """Do the tasks of a study that are not done, together with all others that run it, and return when all are done.

    What failed before is tried again. A trial whose process died is taken by another one.

    Args:
        study: it may have a pruner.
        do: does a trial and returns its value. It goes to other processes if there are several jobs, whose output is in
            `worker-N.log`.
        folder: of the study.
        tasks: each becomes a trial with the attribute `task`.
        jobs: processes on this machine; its processors are divided among them.
        say: the state of the study, in some words.

    Returns:
        Tasks that failed, and why.

    Raises:
        ValueError: nothing in the study came to its end.
    """
    tasks = [task for number, task in enumerate(tasks) if task not in tasks[:number]]
    _plan(study, tasks, again=True)

    def left() -> list[dict[str, Any]]:
        done = [trial.user_attrs[TASK] for trial in results(study, TrialState.COMPLETE, TrialState.PRUNED)]
        return [task for task in tasks if task not in done]

    def count() -> int:
        return len(tasks) - len(left())

    if jobs > 1:
        _run_jobs(study, do, folder, tasks, jobs, count, say)
    _work(study, do, tasks, lambda: f"({count()} of {len(tasks)} done) {say(study)}")
    failed = [trial.user_attrs for trial in results(study, TrialState.FAIL) if ERROR in trial.user_attrs]
    faults = [(task, [each[ERROR] for each in failed if each[TASK] == task][-1]) for task in left()]
    if faults and not results(study):
        raise ValueError(f"nothing came to its end: {faults[0][1]}")
    return faults


def check_done(faults: list[tuple[dict[str, Any], str]]) -> None:
    """Raise a ValueError that names the first task that failed, if one did."""
    if faults:
        raise ValueError(f"{title(faults[0][0])} failed ({faults[0][1]}); the same command tries it again")


def title(task: dict[str, Any]) -> str:
    """Name a task."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in task.items() if value is not None)


def results(study: optuna.Study, *states: TrialState) -> list[FrozenTrial]:
    """List the trials that are complete, or in one of the states, in the order of their numbers."""
    return study.get_trials(deepcopy=False, states=states or (TrialState.COMPLETE,))


def _open(place: str) -> str | BaseStorage:
    if "://" in place:
        return place
    return JournalStorage(JournalFileBackend(place, JournalFileSymlinkLock(place, LOCKED)))


def _name(kind: str, folder: Path, storage: str | None) -> str:
    # a folder that is moved has its journal in it
    return f"{folder.resolve().name}: {kind}" if storage else kind


@contextmanager
def _reading(place: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # every storage has errors of its own
        said = " ".join(str(error).split())[:200]
        raise OSError(
            f"{place} cannot be read as a storage of Optuna ({type(error).__name__}: {said}); give another --storage"
        ) from error


def _plan(study: optuna.Study, tasks: Sequence[dict[str, Any]], again: bool = False) -> None:
    """Plan a trial of each task that has none or whose process died, and `again` of what failed."""
    trials = study.get_trials(deepcopy=False)
    for task in tasks:
        own = [trial for trial in trials if trial.user_attrs.get(TASK) == task]
        if all(trial.state == TrialState.FAIL and (again or ERROR not in trial.user_attrs) for trial in own):
            # what a dead process found remains
            dead = [trial.user_attrs for trial in own if BEAT in trial.user_attrs and ERROR not in trial.user_attrs]
            kept = {name: value for name, value in dead[-1].items() if name != BEAT} if dead else {}
            study.enqueue_trial({}, user_attrs=kept | {TASK: task})


def _work(study: optuna.Study, do: Do, tasks: Sequence[dict[str, Any]], say: Callable[[], str] = str) -> None:
    """Do trials until nothing is left that is not done."""
    console = Console(stderr=True)
    while (trial := _take(study, tasks)) is not None:
        console.rule(f"{title(trial.user_attrs[TASK])} {say()}")
        try:
            with _beating(trial):
                value = do(trial)
            study.tell(trial, value, skip_if_finished=True)
        except optuna.TrialPruned:
            study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
        except UpdateFinishedTrialError:
            console.print(f"trial {trial.number} was silent for too long, and another process has taken it")
        except Exception as error:
            if not isinstance(error, (ValueError, OSError)):
                traceback.print_exc()
            # for example the loss of one order is not finite
            console.print(f"failed: {error}", soft_wrap=True, markup=False, highlight=False)
            with suppress(UpdateFinishedTrialError):
                trial.set_user_attr(ERROR, str(error))
            _fail(study, trial.number)
        except BaseException:
            # the next process need not wait until the trial has been silent for long
            _fail(study, trial.number)
            raise


def _take(study: optuna.Study, tasks: Sequence[dict[str, Any]]) -> optuna.Trial | None:
    """Take a trial that is planned; None when no trial runs any more."""
    beats: dict[int, tuple[Any, float]] = {}
    while True:
        _plan(study, tasks)
        if results(study, TrialState.WAITING):
            trial = study.ask()
            if TASK in trial.user_attrs and not _is_surplus(study, trial):
                return trial
            _fail(study, trial.number)
            continue
        running = results(study, TrialState.RUNNING)
        if not running:
            return None
        for other in running:
            beat, since = beats.get(other.number, (None, time.monotonic()))
            if beat != other.user_attrs.get(BEAT):
                beat, since = other.user_attrs[BEAT], time.monotonic()
            beats[other.number] = beat, since
            if time.monotonic() - since > SILENCE or _is_gone(beat):
                _fail(study, other.number)
        time.sleep(POLL)


def _is_surplus(study: optuna.Study, trial: optuna.Trial) -> bool:
    """Find out whether another process planned the same task at the same time; the trial of lower number is kept."""
    return any(
        other.number < trial.number and other.state != TrialState.FAIL
        for other in study.get_trials(deepcopy=False)
        if other.user_attrs.get(TASK) == trial.user_attrs[TASK]
    )


def _fail(study: optuna.Study, number: int) -> None:
    # another process may have said so already
    with suppress(UpdateFinishedTrialError, ValueError):
        study.tell(number, state=TrialState.FAIL)


def _is_gone(beat: list[Any] | None) -> bool:
    # a process of another machine is gone when it has been silent for long
    return beat is not None and beat[0] == socket.gethostname() and not psutil.pid_exists(beat[1])


@contextmanager
def _beating(trial: optuna.Trial) -> Iterator[None]:
    done = Event()

    def beat() -> None:
        number = 0
        with suppress(UpdateFinishedTrialError):
            while not done.wait(BEATS if number else 0):
                number += 1
                trial.set_user_attr(BEAT, [socket.gethostname(), os.getpid(), number])

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _run_jobs(
    study: optuna.Study,
    do: Do,
    folder: Path,
    tasks: Sequence[dict[str, Any]],
    jobs: int,
    count: Callable[[], int],
    say: Callable[[optuna.Study], str],
) -> None:
    import torch

    threads = max(1, torch.get_num_threads() // jobs)
    # a fork would share torch's threads
    start = get_context("spawn").Process
    logs = [folder / f"worker-{number}.log" for number in range(jobs)]
    workers = [start(target=_join, args=(study, do, tasks, threads, log), daemon=True) for log in logs]
    with kept_from_children():
        for worker in workers:
            worker.start()
    with tqdm(total=len(tasks), unit="trial") as bar:
        while any(worker.is_alive() for worker in workers):
            workers[0].join(POLL)
            bar.set_postfix_str(say(study), refresh=False)
            bar.update(count() - bar.n)


def _join(study: optuna.Study, do: Do, tasks: Sequence[dict[str, Any]], threads: int, log: Path) -> None:
    """Work in a process of its own, whose output goes into a file."""
    import torch

    torch.set_num_threads(threads)
    # a process that is stopped leaves its trial to others
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # when a search is killed, its processes end, too
    Thread(target=_end_with_parent, daemon=True).start()
    with log.open("ab") as printed:
        # the file descriptors are replaced, too, for libraries that write past Python
        for stream in (1, 2):
            os.dup2(printed.fileno(), stream)
    _work(study, do, tasks)


def _end_with_parent() -> None:
    parent: Any = parent_process()
    parent.join()
    os._exit(1)
