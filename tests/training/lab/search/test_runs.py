"""Searches whose trainings are made up, so that they can be killed often."""

import os
import random
import signal
import time
from multiprocessing import get_context

import pytest
from search_worker import ORDERS, Fake, fail, note

from sublayers.training.lab.search import runs
from sublayers.training.lab.search.draw import Candidate
from sublayers.training.lab.search.runs import Work, run_all, train_orders
from sublayers.training.log import Log, open_log

pytestmark = pytest.mark.slow


def begin_search(folder):
    """Search in a process of its own; neither it nor its children have to import anything."""
    if child := os.fork():
        return child
    runs.get_context = lambda _: get_context("fork")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    log = open_log(folder, "search", {"training": "made up"})
    candidates = [Candidate(order, order) for order in ORDERS]
    train_orders(log, Fake("pretrain", [], "sublayer_order"), candidates, [0, 1], jobs=2)
    os._exit(0)


@pytest.mark.full
def test_a_search_that_is_killed_ten_times_loses_only_the_runs_in_progress(tmp_path):
    draw = random.Random(0)
    log = Log(tmp_path / "search")
    for _ in range(10):
        finished = len(log.events("run"))
        search = begin_search(tmp_path / "search")
        time.sleep(draw.uniform(0, 1.2))
        os.kill(search, signal.SIGKILL)
        os.waitpid(search, 0)
        found = [(event["order"], event["seed"]) for event in log.events("run")]
        # what was finished stays, and nothing is there twice
        assert len(found) == len({*found}) >= finished
    assert log.events("run")
    _, status = os.waitpid(begin_search(tmp_path / "search"), 0)
    assert status == 0
    found = [(event["order"], event["seed"]) for event in log.events("run")]
    assert sorted(found) == sorted((order, seed) for order in ORDERS for seed in (0, 1))
    started = (tmp_path / "started").read_text().splitlines()
    # at most the two at a time are begun again for every kill
    assert len(found) < len(started) <= len(found) + 20
    # no process goes on without the search
    time.sleep(1)
    assert (tmp_path / "started").read_text().splitlines() == started


@pytest.mark.full
def test_what_fails_is_told_and_what_succeeds_is_kept_once(tmp_path, capfd):
    log = Log(tmp_path)
    work = {tmp_path / name: Work({"name": name}, call) for name, call in (("good", note), ("bad", fail))}
    # a killed run left this
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "half").write_text("written")
    for _ in range(2):
        run_all("runs", log, "run", work, lambda found: f"{len(found)} in all", jobs=1)
        assert log.events("run") == [{"kind": "run", "name": "good", "files": []}]
        shown = capfd.readouterr().err
        assert "bad failed (the loss is nan); " in shown
        assert f"{tmp_path / 'bad'}.log has all that it printed" in shown
    assert "ValueError: the loss is nan" in (tmp_path / "bad.log").read_text()
    assert (tmp_path / "good.log").read_text() == "training in good\n"
    del work[tmp_path / "good"]
    with pytest.raises(ValueError, match="no run of runs came to its end: bad failed"):
        run_all("runs", log, "run", work, str, jobs=1)
