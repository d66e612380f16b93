import random
from collections import Counter

import optuna
import pytest

from sublayers import expand
from sublayers.training.lab.search.sampler import NAMES, OrderSampler, Places

PLACES = Places("sf", 8)


def search(name, number=40, allows=bool, seed=0, population=10, goals=2, places=PLACES):
    """Search for orders with many `s` in front, few sublayers in all; return the trials with their orders."""
    study = optuna.create_study(directions=["minimize"] * goals)
    study.sampler = OrderSampler(name, places, allows, seed, population)
    for _ in range(number):
        trial = study.ask()
        letters = expand(places.choose(trial))
        trial.set_user_attr("order", letters)
        loss = 1 - sum(0.5**place for place, letter in enumerate(letters) if letter == "s")
        study.tell(trial, [loss, len(letters)][:goals])
    return study.trials


def best(trials):
    return min(trial.values[0] for trial in trials)


@pytest.mark.parametrize("name", NAMES)
def test_every_order_is_new_and_allowed_and_the_same_seed_draws_the_same(name):
    def short(order):
        return bool(order) and len(expand(order)) < 6

    orders = [trial.user_attrs["order"] for trial in search(name, allows=short)]
    assert len({*orders}) == len(orders) == 40
    assert max(map(len, orders)) == 5
    again = search(name, allows=short)
    assert [trial.user_attrs["order"] for trial in again] == orders
    other = search(name, allows=short, seed=1)
    assert [trial.user_attrs["order"] for trial in other] != orders


@pytest.mark.parametrize("goals", [1, 2])
@pytest.mark.parametrize("name", ["nsga2", "tpe"])
def test_samplers_learn_from_what_was_found(name, goals):
    found = [search(name, 60, seed=seed, goals=goals) for seed in range(5)]
    chance = [search("random", 60, seed=seed, goals=goals) for seed in range(5)]
    # in the mean of the later trials they are ahead of chance
    means = [sum(trial.values[0] for run in runs for trial in run[30:]) / 150 for runs in (found, chance)]
    assert means[0] < means[1] - 0.1
    assert sum(map(best, found)) <= sum(map(best, chance))


def test_children_of_nsga2_mutate_and_tpe_has_none(monkeypatch):
    mutations = []
    mutate = Places.mutate
    monkeypatch.setattr(Places, "mutate", lambda *args: mutations.append(args) or mutate(*args))
    for name, generations in (("nsga2", True), ("tpe", False)):
        mutations.clear()
        # there are many orders, so that none is drawn twice
        trials = search(name, 30, places=Places("sf", 24))
        assert any("NSGAIISampler:generation" in trial.system_attrs for trial in trials) == generations
        assert (len(mutations) >= 20) == generations


def test_two_processes_that_ask_at_the_same_time_do_not_draw_the_same():
    study = optuna.create_study(directions=["minimize"] * 2)
    drawn = []
    for _ in range(2):
        # a sampler of its own in each process, with the same seed; neither trial has its order yet
        study.sampler = OrderSampler("random", PLACES, bool, 0, 10)
        drawn.append(study.ask())
    assert PLACES.choose(drawn[0]) != PLACES.choose(drawn[1])


def test_random_orders_have_every_length_as_often():
    draw = random.Random(0)
    lengths = Counter(sum(PLACES.kinds[kind] != "" for kind in PLACES.draw(draw)) for _ in range(4000))
    assert {*lengths} == {*range(1, 9)}
    assert max(lengths.values()) - min(lengths.values()) < 120


def test_a_mutation_swaps_neighbours_or_changes_one_place():
    draw = random.Random(0)
    kinds = Counter()
    for _ in range(500):
        before = PLACES.draw(draw)
        after = PLACES.mutate(before, draw)
        places = [place for place in range(8) if before[place] != after[place]]
        if len(places) == 2:
            first, second = places
            assert second == first + 1
            assert (after[first], after[second]) == (before[second], before[first])
            kinds["swap"] += 1
        elif places:
            was, now = (PLACES.kinds[states[places[0]]] for states in (before, after))
            kinds["drop" if not now else "turn" if was else "add"] += 1
        assert len(places) < 3
    assert min(kinds[name] for name in ("swap", "turn", "drop", "add")) > 20


def test_nothing_stands_between_what_mixes_positions_and_what_does_not():
    assert Places("swcf", 3).kinds == ["s", "w", "c", "", "f"]
    assert PLACES.order([0, 1, 2, 1, 1, 1, 0, 2]) == "(sf)2"
    assert PLACES.order([1] * 8) == ""


def test_a_space_that_is_exhausted_is_told():
    with pytest.raises(ValueError, match="no new order that is allowed was found after 2; ask for fewer"):
        search("random", 3, allows=lambda order: order in ("s", "f"))
