import platform

import pytest
import torch
from launched import python
from scipy.stats import binom

from sublayers.training.metrics import timing


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(
    ("seconds", "fewest", "rounds"),
    [(1000, 20, 200), (20, 20, 66), (10, 20, 33), (1, 20, 20), (1, 3, 3), (0.95, 3, 3), (float("inf"), 3, 200)],
)
def test_rounds_end_with_the_time_that_is_given(seconds, fewest, rounds, monkeypatch):
    monkeypatch.setattr(timing.time, "perf_counter", clock := Clock())
    calls = []

    def call(name, seconds):
        calls.append(name)
        clock.now += seconds

    both = {"a": lambda: call("a", 0.1), "b": lambda: call("b", 0.2)}
    times = timing.time_in_turn("both", both, 200, torch.device("cpu"), seconds, fewest)
    assert times == {"a": pytest.approx([100] * rounds), "b": pytest.approx([200] * rounds)}
    # behind a round that does not count
    assert calls == ["a", "b"] * (rounds + 1)


def test_rounds_that_disagree_are_told(monkeypatch, capsys):
    monkeypatch.setattr(timing.time, "perf_counter", clock := Clock())
    # the first round does not count
    seconds = {"plain": [9, 1, 1, 1], "steady": [1, 0.5, 0.6, 0.55], "other": [1, 0.55, 1.05, 0.8]}

    def take(name, times):
        return lambda: setattr(clock, "now", clock.now + next(times))

    def measure(*names):
        timing.time_in_turn("both", {name: take(name, iter(seconds[name])) for name in names}, 3, torch.device("cpu"))
        return [line for line in capsys.readouterr().err.splitlines() if "rounds" in line]

    assert measure("plain", "steady") == measure("plain") == []
    assert measure("plain", "steady", "other") == [
        "both: rounds disagree, other took 0.55 to 1.05 of plain; "
        "measure again while nothing else runs here, or with OMP_NUM_THREADS=1"
    ]


@pytest.mark.parametrize(("rounds", "left_out"), [(1, 0), (3, 0), (7, 0), (8, 1), (13, 3), (20, 5)])
def test_the_bounds_of_a_ratio_leave_out_as_many_rounds_as_a_sign_test_allows(rounds, left_out):
    times = [float(number + 1) for number in range(rounds)]
    assert timing.bounds(times[::-1], [2.0] * rounds) == ((left_out + 1) / 2, (rounds - left_out) / 2)
    within = binom.cdf(rounds - left_out - 1, rounds, 0.5) - binom.cdf(left_out, rounds, 0.5)
    nearer = binom.cdf(rounds - left_out - 2, rounds, 0.5) - binom.cdf(left_out + 1, rounds, 0.5)
    assert left_out == 0 or within >= 0.9
    assert nearer < 0.9


def test_ratio_is_the_median_within_rounds():
    # the medians themselves, 20 and 10, would give 2
    assert timing.ratio([10, 20, 300], [10, 40, 5]) == 1
    assert timing.ratio([1, 4], [2, 2]) == 1.25


# the new pages for 32 MiB, where the same memory was used and freed before
PAGES_OF_A_CALL = """
import numpy, sys
from sublayers.training.metrics import timing
spending = []
assert sys.argv[1] == "released" or timing.keep_memory()
for _ in range(3):
    timing.watch(lambda: numpy.ones(4 * 2**20), spending)
print(spending[-1]["page faults"])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries stay as they are")
def test_a_process_can_keep_what_it_frees():
    released, kept = (int(python("-c", PAGES_OF_A_CALL, memory).split()[-1]) for memory in ("released", "kept"))
    # each of the pages of 4 KiB, or of those of 2 MiB that the system may give
    assert released >= 16 > kept


def test_other_libraries_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(timing.platform, "libc_ver", lambda: ("", ""))
    assert not timing.keep_memory()


def test_what_a_call_spends_is_its_own():
    spending = []
    timing.watch(lambda: None, spending)
    timing.watch(lambda: sum(range(10**6)), spending)
    idle, busy = spending
    assert busy["user ms"] > idle["user ms"] >= 0


def test_peak_memory_counts_what_lives_at_once():
    def call():
        first = torch.empty(1000, dtype=torch.uint8)
        del first
        second = torch.empty(3000, dtype=torch.uint8)
        third = torch.empty(500, dtype=torch.uint8)
        return second, third

    assert timing.peak_memory(call, torch.device("cpu")) == 3500
    assert timing.peak_memory(lambda: None, torch.device("cpu")) == 0
