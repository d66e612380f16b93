"""Studies whose trials do nothing but wait, so that their processes can be killed often."""

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
import trial_worker
from optuna.trial import TrialState

from sublayers import __version__
from sublayers.training import trials
from sublayers.training.trials import open_study, read_study, results, run_trials

SETTINGS = {"flags": ["--max_steps=3"], "letters": "sf"}
TASKS = [{"number": number} for number in range(4)]


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Let silence be told after a short time."""
    for name in ("SILENCE", "BEATS", "POLL"):
        monkeypatch.setattr(trials, name, {"SILENCE": 1.0, "BEATS": 0.1, "POLL": 0.05}[name])


def number_of(trial):
    return float(trial.user_attrs["task"]["number"])


def begin(folder, jobs=1, numbers=100):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(Path(trial_worker.__file__)), *map(str, (folder, jobs, numbers))]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def busy(folder):
    """The processes that do trials, or did when they died."""
    # who begins has no study yet
    with contextlib.suppress(FileNotFoundError):
        running = results(read_study("squaring", folder), TrialState.RUNNING)
        return [trial.user_attrs["beat"][1] for trial in running if "beat" in trial.user_attrs]
    return []


@pytest.mark.full
@pytest.mark.slow
def test_four_workers_of_which_ten_are_killed_do_all_once_and_lose_nothing(tmp_path, monkeypatch):
    draw, workers = random.Random(0), []
    kept = {}
    for _ in range(10):
        workers = [worker for worker in workers if worker.poll() is None]
        workers += [begin(tmp_path / "many") for _ in range(4 - len(workers))]
        while not (working := [worker for worker in workers if worker.pid in busy(tmp_path / "many")]):
            assert any(worker.poll() is None for worker in workers)
            time.sleep(0.05)
        time.sleep(draw.uniform(0, 0.3))
        victim = draw.choice(working)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        if (tmp_path / "many" / trials.JOURNAL).exists():
            found = results(read_study("squaring", tmp_path / "many"))
            now = {trial.number: trial.values for trial in found}
            # what was finished stays as it was
            assert kept.items() <= now.items()
            kept = now
    for worker in workers:
        worker.wait()
    study = trial_worker.run(tmp_path / "many")
    # most of them died while they did something
    assert len(results(study, TrialState.FAIL)) > 4
    monkeypatch.setattr(trial_worker, "PAUSE", 0.0)
    one = trial_worker.run(tmp_path / "one")

    def table(study):
        return sorted((trial.user_attrs["task"]["number"], *trial.values) for trial in results(study))

    assert table(study) == table(one) == [(number, number**2) for number in trial_worker.NUMBERS]
    assert not results(study, TrialState.RUNNING, TrialState.WAITING)
    assert kept.items() <= {trial.number: trial.values for trial in results(study)}.items()


@pytest.mark.slow
def test_a_pool_ends_with_its_parent_and_leaves_what_it_printed(tmp_path, monkeypatch):
    numbers = range(40)
    pool = begin(tmp_path, jobs=2, numbers=len(numbers))
    deadline = time.monotonic() + 60

    def printed():
        return sum("squaring" in log.read_text() for log in tmp_path.glob("worker-?.log"))

    # the first may do many trials before the second has begun
    while printed() < 2 or len(results(read_study("squaring", tmp_path))) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    pool.kill()
    pool.wait()
    time.sleep(1)
    assert printed() == 2
    before = len(results(read_study("squaring", tmp_path)))
    time.sleep(1)
    assert len(results(read_study("squaring", tmp_path))) == before < len(numbers)
    monkeypatch.setattr(trial_worker, "PAUSE", 0.0)
    assert len(results(trial_worker.run(tmp_path, numbers=numbers))) == len(numbers)


def test_what_is_done_is_not_done_again_and_more_can_be_asked_for(tmp_path):
    done = []
    study = open_study("search", tmp_path, SETTINGS)
    run_trials(study, lambda trial: done.append(number_of(trial)) or 1.0, tmp_path, TASKS[:2])
    again = open_study("search", tmp_path, SETTINGS)
    run_trials(again, lambda trial: done.append(number_of(trial)) or 1.0, tmp_path, TASKS)
    assert done == [0, 1, 2, 3]


def test_what_fails_is_told_and_tried_again_by_the_next_command(tmp_path, capsys):
    def fail(trial):
        if trial.user_attrs["task"]["number"] == 1:
            raise ValueError("the loss is nan")
        return 1.0

    study = open_study("search", tmp_path, SETTINGS)
    run_trials(study, fail, tmp_path, TASKS)
    assert "failed: the loss is nan" in capsys.readouterr().err
    assert len(results(study)) == 3
    run_trials(study, number_of, tmp_path, TASKS)
    assert "failed" not in capsys.readouterr().err
    assert sorted(trial.values for trial in results(study)) == [[1.0]] * 4
    with pytest.raises(ValueError, match="nothing came to its end: the loss is nan"):
        run_trials(open_study("search", tmp_path / "other", SETTINGS), fail, tmp_path, TASKS[1:2])


def test_the_trial_of_a_dead_process_keeps_what_was_found(tmp_path):
    study = open_study("search", tmp_path, SETTINGS)
    study.enqueue_trial({}, user_attrs={"task": TASKS[0]})
    dead = study.ask()
    dead.set_user_attr("beat", ["elsewhere", 1, 1])
    dead.set_user_attr("half", "done")
    # what another process planned at the same time, and gave up, has found nothing
    study.enqueue_trial({}, user_attrs={"task": TASKS[0]})
    study.tell(study.ask(), state=TrialState.FAIL)
    seen = []
    run_trials(study, lambda trial: seen.append(trial.user_attrs.get("half")) or 1.0, tmp_path, TASKS[:3])
    # the others are not kept from their work by it
    assert seen == [None, None, "done"]
    assert len(results(study)) == 3


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_dead_process_of_this_machine_is_not_waited_for(is_ours, tmp_path, monkeypatch):
    monkeypatch.setattr(trials, "SILENCE", 1e9 if is_ours else 0.5)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    study = open_study("search", tmp_path, SETTINGS)
    study.enqueue_trial({}, user_attrs={"task": TASKS[0]})
    study.ask().set_user_attr("beat", [socket.gethostname() if is_ours else "elsewhere", ended.pid, 1])
    run_trials(study, number_of, tmp_path, TASKS[:1])
    assert [trial.number for trial in results(study)] == [1]


def test_who_is_interrupted_gives_the_trial_back_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(trials, "SILENCE", 1e9)

    def stop(trial):
        raise KeyboardInterrupt

    study = open_study("search", tmp_path, SETTINGS)
    with pytest.raises(KeyboardInterrupt):
        run_trials(study, stop, tmp_path, TASKS)
    run_trials(study, number_of, tmp_path, TASKS)
    assert len(results(study)) == 4


def test_of_two_trials_of_a_task_the_first_is_done(tmp_path):
    study = open_study("search", tmp_path, SETTINGS)
    for task in TASKS:
        # two processes that begin at the same time both plan
        study.enqueue_trial({}, user_attrs={"task": task})
        study.enqueue_trial({}, user_attrs={"task": task})
    # a task that is given twice is one
    run_trials(study, number_of, tmp_path, TASKS * 2)
    assert [trial.number for trial in results(study)] == [0, 2, 4, 6]


@pytest.mark.parametrize("tells", [True, False])
def test_who_was_silent_for_too_long_is_not_heard(tells, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(trials, "BEATS", 1e9)
    study = open_study("search", tmp_path, SETTINGS)

    def sleep(trial):
        # meanwhile another process takes the trial
        other = open_study("search", tmp_path, SETTINGS)
        if trial.number == 0:
            run_trials(other, number_of, tmp_path, TASKS[:1])
            if tells:
                trial.set_user_attr("found", "too late")
        return 9.0

    run_trials(study, sleep, tmp_path, TASKS[:1])
    assert [trial.values for trial in results(study)] == [[0.0]]
    said = capsys.readouterr().err
    assert ("silent for too long" in said) == tells
    assert "failed" not in said


def test_a_study_goes_on_with_its_own_settings_only(tmp_path):
    folder = tmp_path / "search"
    open_study("search", folder, SETTINGS)
    open_study("search", folder, {**SETTINGS, "budget": None})
    told = r"has a search with letters 'sf', not 'scf'; choose another --output_dir, or go on with the same"
    with pytest.raises(FileExistsError, match=told):
        open_study("search", folder, {**SETTINGS, "letters": "scf"})
    with pytest.raises(FileExistsError, match=r"has a search with budget None, not 0\.5"):
        open_study("search", folder, {**SETTINGS, "budget": 0.5})
    study = read_study("search", folder)
    study.set_user_attr("settings", study.user_attrs["settings"] | {"version": "0.0.1"})
    with pytest.raises(FileExistsError, match=rf"has a search with version '0\.0\.1', not '{re.escape(__version__)}'"):
        open_study("search", folder, SETTINGS)


def test_no_trial_ends_early_unless_it_is_asked_for(tmp_path):
    def do(trial):
        for step in range(3):
            trial.report(number_of(trial), step)
            assert not trial.should_prune()
        return number_of(trial)

    study = open_study("search", tmp_path, SETTINGS)
    assert not run_trials(study, do, tmp_path, [{"number": number} for number in range(9)])


def test_other_folders_are_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is not empty and holds no search"):
        open_study("search", tmp_path, SETTINGS)
    with pytest.raises(FileNotFoundError, match="holds no search; give the --output_dir of one"):
        read_study("search", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_database_holds_the_studies_of_several_folders(tmp_path):
    storage = f"sqlite:///{tmp_path}/studies.db"
    for number, name in enumerate(("first", "second")):
        study = open_study("search", tmp_path / name, {"letters": name}, storage)
        run_trials(study, number_of, tmp_path / name, TASKS[number : number + 2])
    for number, name in enumerate(("first", "second")):
        found = results(read_study("search", tmp_path / name, storage))
        assert [trial.values for trial in found] == [[number], [number + 1.0]]
    assert sorted(optuna.get_all_study_names(storage)) == ["first: search", "second: search"]
    with pytest.raises(FileNotFoundError, match="holds no search"):
        read_study("search", tmp_path / "third", storage)


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        ("sqlite:////nowhere/at/all.db", "cannot be read as a storage of Optuna .OperationalError"),
        ("postgresql://nobody@127.0.0.1:9/none", "cannot be read as a storage of Optuna"),
        ("gopher://place", "cannot be read as a storage of Optuna"),
        ("{folder}/poem.txt", "cannot be read as a storage of Optuna .JSONDecodeError"),
        ("{folder}/other.jsonl", "cannot be read as a storage of Optuna .KeyError"),
        ("{folder}", "cannot be read as a storage of Optuna .IsADirectoryError"),
    ],
)
def test_what_is_no_storage_is_told_in_one_sentence(tmp_path, storage, message):
    (tmp_path / "poem.txt").write_text("roses are red\n" * 9)
    (tmp_path / "other.jsonl").write_text('{"kind": "run"}\n' * 9)
    with pytest.raises(OSError, match=message) as raised:
        open_study("search", tmp_path / "search", SETTINGS, storage.format(folder=tmp_path))
    assert "\n" not in str(raised.value)
    assert "give another --storage" in str(raised.value)
