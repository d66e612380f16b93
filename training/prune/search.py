"""The search for subsets of sublayers that lose least for what they save."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from sublayers.training.distill.subsets import Subset
from sublayers.training.prune.log import Log

# measures the losses of subsets
Losses = Callable[[Sequence[Subset]], dict[Subset, float]]
Price = Callable[[Subset], float]
# subsets that are measured between two writes
CHUNK = 256
# up to so many groups of sublayers, all subsets are measured
MOST = 14


def search(
    groups: Sequence[Subset],
    is_model: Callable[[Subset], bool],
    losses: Losses,
    price: Price,
    least: float,
    beam: int = 8,
) -> dict[Subset, float]:
    """Measure subsets that are made by leaving groups of sublayers out, as far as a price.

    Of few groups, these are all. Of more, those that are met while one group after the other is left out, and those
    that a knapsack of the losses of single groups asks for (Bercovich et al. 2024, "Puzzle", section 3).

    Args:
        groups: single sublayers or whole layers; together they are the whole model.
        is_model: says whether a subset can be measured.
        losses: of subsets.
        price: of a subset.
        least: price below which nothing is looked for.
        beam: how many subsets are kept in each step.

    Returns:
        The losses of all that were measured.
    """
    full = tuple(sorted(place for group in groups for place in group))
    free = [group for group in groups if is_model(without(full, [group]))]
    if len(free) <= MOST:
        left_out = (chosen for number in range(len(free) + 1) for chosen in combinations(free, number))
        return losses([subset for chosen in left_out if is_model(subset := without(full, chosen))])
    found = losses([full, *(without(full, [group]) for group in free)])
    steps = np.linspace(price(full), least, 12)[1:]
    guesses = {without(full, knapsack(free, full, found, price, step)) for step in steps}
    found |= losses(sorted(filter(is_model, guesses)))
    kept = [full]
    while kept := [subset for subset in kept if price(subset) > least]:
        next_ones = {without(subset, [group]) for subset in kept for group in free if {*group} <= {*subset}}
        following = sorted(filter(is_model, next_ones))
        found |= losses(following)
        kept = sorted(following, key=lambda subset: slope(subset, full, found, price))[:beam]
    return found


def remembering(log: Log, measure: Losses, bar: Any) -> Losses:
    """Measure only subsets that a log does not have, write them there, and make room for them on a bar."""
    found = {tuple(subset): loss for event in log.events("losses") for subset, loss in event["measured"]}

    def losses(subsets: Sequence[Subset]) -> dict[Subset, float]:
        # those with a common beginning follow each other
        new = sorted({*subsets} - found.keys())
        bar.total += len(new)
        for start in range(0, len(new), CHUNK):
            measured = measure(new[start : start + CHUNK])
            log.append("losses", measured=[*measured.items()])
            found.update(measured)
        return {subset: found[subset] for subset in subsets}

    return losses


def without(full: Subset, groups: Iterable[Subset]) -> Subset:
    """Leave groups of sublayers out."""
    gone = {place for group in groups for place in group}
    return tuple(place for place in full if place not in gone)


def slope(subset: Subset, full: Subset, found: dict[Subset, float], price: Price) -> float:
    """Say what a subset loses for what it saves."""
    return (found[subset] - found[full]) / max(price(full) - price(subset), 1e-12)


def knapsack(
    groups: Sequence[Subset], full: Subset, found: dict[Subset, float], price: Price, budget: float
) -> list[Subset]:
    """Choose groups to leave out so that a budget is met and the sum of their single losses is least."""
    single = [without(full, [group]) for group in groups]
    lost = np.array([found[subset] - found[full] for subset in single])
    saved = np.array([price(full) - price(subset) for subset in single])
    # one group stays, whatever the budget
    limits = [LinearConstraint(saved, lb=min(price(full) - budget, saved.sum() - saved.max()))]
    result = milp(lost, constraints=limits, integrality=np.ones(len(groups)), bounds=Bounds(0, 1))
    return [group for group, chosen in zip(groups, result.x, strict=True) if chosen > 0.5]


def cheapest(found: Mapping[Subset, float], price: Price, budget: float) -> Subset | None:
    """Find the subset that loses least within a budget, None if nothing meets it."""
    affordable = [subset for subset in found if price(subset) <= budget]
    return min(affordable, key=lambda subset: (found[subset], price(subset)), default=None)
