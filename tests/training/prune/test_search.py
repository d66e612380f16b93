from itertools import combinations

import numpy as np
import pytest

from sublayers.training.prune.calibration import measuring
from sublayers.training.prune.log import Log
from sublayers.training.prune.search import cheapest, knapsack, remembering, search, without


class Landscape:
    """Losses of subsets, with terms of pairs so that they are no sums."""

    def __init__(self, number, seed=0, pairs=0.3):
        generator = np.random.default_rng(seed)
        self.single, self.asked = generator.exponential(size=number), []
        self.pairs = pairs * generator.normal(size=(number, number))
        self.prices = generator.choice([1.0, 2.0], number)

    def losses(self, subsets):
        self.asked += subsets
        return {subset: self.loss(subset) for subset in subsets}

    def loss(self, subset):
        gone = [place for place in range(len(self.single)) if place not in subset]
        return float(self.single[gone].sum() + self.pairs[np.ix_(gone, gone)].sum())

    def price(self, subset):
        return float(self.prices[[*subset]].sum())


def subsets_of(number):
    return [subset for size in range(1, number + 1) for subset in combinations(range(number), size)]


def keeps_first(subset):
    return subset[:1] == (0,)


@pytest.mark.parametrize("seed", range(3))
def test_few_sublayers_are_searched_exactly(seed):
    landscape = Landscape(8, seed)
    found = search([(place,) for place in range(8)], bool, landscape.losses, landscape.price, 0)
    assert found.keys() == {*subsets_of(8)}
    for budget in (2, 5, 8):
        affordable = [subset for subset in subsets_of(8) if landscape.price(subset) <= budget]
        best = min(map(landscape.loss, affordable))
        assert found[cheapest(found, landscape.price, budget)] == best


@pytest.mark.parametrize("seed", range(4))
def test_many_sublayers_are_searched_nearly_exactly(seed, monkeypatch):
    landscape, full = Landscape(12, seed, pairs=0.05), tuple(range(12))
    exact = {subset: landscape.loss(subset) for subset in subsets_of(12)}
    monkeypatch.setattr("sublayers.training.prune.search.MOST", 4)
    found = search([(place,) for place in full], bool, landscape.losses, landscape.price, landscape.price(full) / 3)
    assert len(found) < 500
    worst = max(exact.values())
    for share in (0.9, 0.7, 0.5, 0.35):
        budget = share * landscape.price(full)
        best, reached = (each[cheapest(each, landscape.price, budget)] for each in (exact, found))
        assert reached - best <= 0.02 * (worst - exact[full])


def test_what_stays_stays_and_layers_go_whole(monkeypatch):
    landscape = Landscape(6)
    found = search([(place,) for place in range(6)], keeps_first, landscape.losses, landscape.price, 0)
    assert all(subset[0] == 0 for subset in found)
    found = search([(0, 1), (2, 3), (4, 5)], keeps_first, landscape.losses, landscape.price, 0)
    assert found.keys() == {(0, 1), (0, 1, 2, 3), (0, 1, 4, 5), (0, 1, 2, 3, 4, 5)}
    monkeypatch.setattr("sublayers.training.prune.search.MOST", 0)
    found = search([(0, 1), (2, 3), (4, 5)], keeps_first, landscape.losses, landscape.price, 0)
    assert all({0, 1} <= {*subset} for subset in found)


def test_only_models_are_measured(monkeypatch):
    monkeypatch.setattr("sublayers.training.prune.search.MOST", 0)
    for seed in range(4):
        landscape = Landscape(8, seed)

        def is_model(subset):
            return bool({0, 1, 2} & {*subset}) and bool({3, 4, 5, 6, 7} & {*subset})

        search([(place,) for place in range(8)], is_model, landscape.losses, landscape.price, 0)
        assert all(map(is_model, landscape.asked))
        assert min(map(len, landscape.asked)) == 2


@pytest.mark.parametrize("budget", [3, 6, 9])
def test_a_knapsack_is_the_least_sum_of_single_losses(budget):
    landscape, full = Landscape(8, 1, pairs=0), tuple(range(8))
    groups = [(place,) for place in full]
    found = landscape.losses([full, *(without(full, [group]) for group in groups)])
    chosen = without(full, knapsack(groups, full, found, landscape.price, budget))
    affordable = [subset for subset in subsets_of(8) if landscape.price(subset) <= budget]
    assert landscape.loss(chosen) == pytest.approx(min(map(landscape.loss, affordable)))


def test_nothing_meets_a_budget_of_nothing():
    landscape = Landscape(4)
    found = search([(place,) for place in range(4)], bool, landscape.losses, landscape.price, 0)
    assert cheapest(found, landscape.price, 0.5) is None


def test_subsets_are_measured_once_whatever_was_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr("sublayers.training.prune.search.CHUNK", 5)
    landscape, log = Landscape(6), Log(tmp_path)
    subsets = subsets_of(6)[:40]
    first = remembering(log, landscape.losses, bar := measuring())(subsets)
    assert bar.total == 40
    for cut in (1, 9, 1000):
        log.file.write_bytes(log.file.read_bytes()[:-cut])
        landscape.asked.clear()
        losses = remembering(log, landscape.losses, bar := measuring())
        assert losses(subsets) == losses(subsets) == first
        assert 0 < bar.total == len(landscape.asked) < 40
    landscape.asked.clear()
    assert remembering(log, landscape.losses, measuring())(subsets[::-1]) == first
    assert not landscape.asked
