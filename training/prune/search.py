"""The search for subsets of sublayers that lose least for what they save."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from math import inf, isnan
from typing import Any

import optuna

from sublayers.training.distill.subsets import Subset
from sublayers.training.trials import results

# measures the losses of subsets
Losses = Callable[[Sequence[Subset]], dict[Subset, float]]
Price = Callable[[Subset], float]
# attribute of a trial: the subset that it measured
SUBSET = "subset"
# subsets that are measured between two writes
CHUNK = 256
# groups of sublayers up to which all subsets are measured
MOST = 14


def search(
    groups: Sequence[Subset],
    losses: Losses,
    is_model: Callable[[Subset], bool],
    price: Price,
    least: float,
    beam: int = 8,
) -> dict[Subset, float]:
    """Measure subsets that are made by leaving groups of sublayers out, as far as a price.

    Of few groups, these are all. Of more, those that a beam search meets while it leaves out one group after the other.

    Args:
        groups: single sublayers or whole layers; together they are the whole model.
        losses: measures subsets.
        is_model: says whether a subset can be measured.
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
    kept, found = [full], losses([full])
    while kept := [subset for subset in kept if price(subset) > least]:
        next_ones = {without(subset, [group]) for subset in kept for group in free if {*group} <= {*subset}}
        following = sorted(filter(is_model, next_ones))
        found |= losses(following)
        kept = sorted(following, key=lambda subset: slope(subset, full, found, price))[:beam]
    return found


def remembering(study: optuna.Study, measure: Losses, bar: Any) -> Losses:
    """Measure only subsets that a study has no trial of, keep each as a trial, and make room for it on a bar."""
    found: dict[Subset, float] = {tuple(trial.user_attrs[SUBSET]): trial.values[0] for trial in results(study)}

    def losses(subsets: Sequence[Subset]) -> dict[Subset, float]:
        # those with a common beginning follow each other
        new = sorted({*subsets} - found.keys())
        bar.total += len(new)
        for start in range(0, len(new), CHUNK):
            for subset, loss in measure(new[start : start + CHUNK]).items():
                # Optuna keeps no loss that is no number
                found[subset] = inf if isnan(loss) else loss
                study.add_trial(optuna.create_trial(value=found[subset], user_attrs={SUBSET: subset}))
        return {subset: found[subset] for subset in subsets}

    return losses


def without(full: Subset, groups: Iterable[Subset]) -> Subset:
    """Leave groups of sublayers out."""
    gone = {place for group in groups for place in group}
    return tuple(place for place in full if place not in gone)


def slope(subset: Subset, full: Subset, found: dict[Subset, float], price: Price) -> float:
    """Say what a subset loses for what it saves."""
    return (found[subset] - found[full]) / max(price(full) - price(subset), 1e-12)


def cheapest(found: Mapping[Subset, float], price: Price, budget: float) -> Subset | None:
    """Find the subset that loses least within a budget, None if nothing meets it."""
    affordable = [subset for subset in found if price(subset) <= budget]
    return min(affordable, key=lambda subset: (found[subset], price(subset)), default=None)
