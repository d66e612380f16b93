from itertools import combinations

import numpy as np
import pytest

from sublayers.training.prune.calibration import measuring
from sublayers.training.prune.search import SUBSET, cheapest, remembering, search
from sublayers.training.trials import open_study, results


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
    found = search([(place,) for place in range(8)], landscape.losses, bool, landscape.price, 0)
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
    found = search([(place,) for place in full], landscape.losses, bool, landscape.price, landscape.price(full) / 3)
    assert len(found) < 500
    worst = max(exact.values())
    for share in (0.9, 0.7, 0.5, 0.35):
        budget = share * landscape.price(full)
        best, reached = (each[cheapest(each, landscape.price, budget)] for each in (exact, found))
        assert reached - best <= 0.02 * (worst - exact[full])


def test_what_stays_stays_and_layers_go_whole(monkeypatch):
    landscape = Landscape(6)
    found = search([(place,) for place in range(6)], landscape.losses, keeps_first, landscape.price, 0)
    assert all(subset[0] == 0 for subset in found)
    found = search([(0, 1), (2, 3), (4, 5)], landscape.losses, keeps_first, landscape.price, 0)
    assert found.keys() == {(0, 1), (0, 1, 2, 3), (0, 1, 4, 5), (0, 1, 2, 3, 4, 5)}
    monkeypatch.setattr("sublayers.training.prune.search.MOST", 0)
    found = search([(0, 1), (2, 3), (4, 5)], landscape.losses, keeps_first, landscape.price, 0)
    assert all({0, 1} <= {*subset} for subset in found)


def test_only_models_are_measured(monkeypatch):
    monkeypatch.setattr("sublayers.training.prune.search.MOST", 0)
    for seed in range(4):
        landscape = Landscape(8, seed)

        def is_model(subset):
            return bool({0, 1, 2} & {*subset}) and bool({3, 4, 5, 6, 7} & {*subset})

        search([(place,) for place in range(8)], landscape.losses, is_model, landscape.price, 0)
        assert all(map(is_model, landscape.asked))
        assert min(map(len, landscape.asked)) == 2


def test_nothing_meets_a_budget_of_nothing():
    landscape = Landscape(4)
    found = search([(place,) for place in range(4)], landscape.losses, bool, landscape.price, 0)
    assert cheapest(found, landscape.price, 0.5) is None


@pytest.mark.parametrize("cut", [3, 17])
def test_subsets_are_measured_once_whenever_the_search_is_stopped(cut, tmp_path, monkeypatch):
    monkeypatch.setattr("sublayers.training.prune.search.CHUNK", 5)
    landscape, subsets = Landscape(6), subsets_of(6)[:40]

    def stopped(some):
        if len(landscape.asked) + len(some) > cut:
            raise KeyboardInterrupt
        return landscape.losses(some)

    with pytest.raises(KeyboardInterrupt):
        remembering(open_study("pruning", tmp_path, {}), stopped, measuring())(subsets)
    # a process that is killed while it writes has kept some of a chunk
    study, kept = open_study("pruning", tmp_path, {}), cut // 5 * 5
    add_trial = study.add_trial
    monkeypatch.setattr(study, "add_trial", lambda trial: add_trial(trial) or next(left))
    left = iter([None, None])
    with pytest.raises(StopIteration):
        remembering(study, landscape.losses, measuring())(subsets)
    landscape.asked.clear()
    study = open_study("pruning", tmp_path, {})
    losses = remembering(study, landscape.losses, bar := measuring())
    assert losses(subsets) == losses(subsets[::-1]) == {subset: landscape.loss(subset) for subset in subsets}
    assert bar.total == len(landscape.asked) == 40 - kept - 3
    assert sorted(tuple(trial.user_attrs[SUBSET]) for trial in results(study)) == sorted(subsets)


def test_a_loss_that_is_no_number_is_the_worst(tmp_path):
    measure = {(0,): float("nan"), (1,): 2.0}
    losses = remembering(open_study("pruning", tmp_path, {}), lambda subsets: measure, measuring())
    assert cheapest(losses([(0,), (1,)]), len, 1) == (1,)
    again = remembering(open_study("pruning", tmp_path, {}), None, measuring())
    assert again([(0,)]) == {(0,): float("inf")}
