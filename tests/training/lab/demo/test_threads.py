import pytest
import torch

from sublayers.training.lab.demo import threads


@pytest.fixture
def machine(monkeypatch):
    """A machine whose processors are busy to so many percent, of which this process may use some."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()

    class Process:
        def cpu_affinity(self):
            return allowed

    allowed = []

    def set_up(busy, own, most):
        allowed[:] = own
        monkeypatch.setattr(threads.psutil, "Process", Process)
        monkeypatch.setattr(threads.psutil, "cpu_percent", lambda seconds, percpu: busy)
        torch.set_num_threads(most)

    yield set_up
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("busy", "own", "most", "used"),
    [
        ([0.0, 3.0], [0, 1], 2, 2),
        # one and a half processors are busy
        ([100.0, 55.0], [0, 1], 2, 1),
        ([100.0, 100.0], [0, 1], 2, 1),
        # the free ones are not ours
        ([0.0, 100.0, 0.0, 10.0], [1, 3], 2, 1),
        # two threads of a core are one of torch's
        ([0.0] * 8, [*range(8)], 4, 4),
        ([20.0] * 8, [*range(8)], 8, 6),
    ],
)
def test_as_many_threads_run_as_processors_are_free(busy, own, most, used, machine):
    machine(busy, own, most)
    assert threads.use_free_processors() == torch.get_num_threads() == used


def test_a_number_that_is_given_is_used(machine, monkeypatch):
    machine([100.0, 100.0], [0, 1], 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads.use_free_processors() == torch.get_num_threads() == 2
