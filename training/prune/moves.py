"""Moves of single sublayers, by which a subset loses less for its price."""

import copy
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

from sublayers.configuration.sublayer_order import expand
from sublayers.modeling.modeling_sublayers import SublayersPreTrainedModel
from sublayers.training.distill.subsets import Subset, copy_sublayers, is_model, name_sublayers, names_of, number_places
from sublayers.training.prune.search import Losses, Price, cheapest, slope

# finds the subsets that are one move away
Moves = Callable[[Subset], set[Subset]]


def add_windows(model: SublayersPreTrainedModel, window: int) -> SublayersPreTrainedModel:
    """Make a model with all sublayers of another one and, at the end of each stack, each `s` once more as a `w`.

    Raises:
        ValueError: the model has `w` already, or a first sublayer without a norm, of which there is no such copy.
    """
    config: Any = copy.deepcopy(model.config)
    orders = [expand(order) for order in config.orders.values()]
    if any("w" in order for order in orders) or not config.first_norm:
        raise ValueError("the model has local attention, or no first norm; leave --attention_window out")
    parts = [(*range(len(order)), *(i for i, letter in enumerate(order) if letter == "s")) for order in orders]
    names, stacks = names_of(config), zip(number_places(*orders), orders, parts, strict=True)
    config.kept_sublayers = [
        names[places[i]] if n < len(order) else names[places[i]].replace("s", "w")
        for places, order, part in stacks
        for n, i in enumerate(part)
    ]
    for name, order in zip(config.orders, orders, strict=True):
        setattr(config, name, order + "w" * order.count("s"))
    config.attention_window = window
    return copy_sublayers(model, config, parts)


def originals(orders: Iterable[str]) -> dict[int, int]:
    """Say for the places of a model with added windows where the same sublayer is without one."""
    names = name_sublayers(*orders)
    return {place: names.index(name.replace("w", "s")) for place, name in enumerate(names)}


def moves_of(config: Any, original: Mapping[int, int]) -> Moves:
    """Make the moves of subsets of a model's sublayers, whose places are in the order in which they run.

    Neighbours trade places, a sublayer goes, another one comes to where it was, or one takes the place of the same one
    with a window or without.
    """
    orders = config.orders.values()
    stack = {place: number for number, places in enumerate(number_places(*orders)) for place in places}

    def moves(subset: Subset) -> set[Subset]:
        kept = [original[place] for place in subset]
        found = set()
        for i, (first, second) in enumerate(pairwise(subset)):
            if stack[first] == stack[second]:
                found.add((*subset[:i], second, first, *subset[i + 2 :]))
        for place, own in original.items():
            if place in subset:
                found.add(tuple(other for other in subset if other != place))
            elif own in kept:
                found.add(tuple(place if original[other] == own else other for other in subset))
            else:
                i = next((i for i, other in enumerate(kept) if other > own), len(kept))
                found.add((*subset[:i], place, *subset[i:]))
        return {each for each in found if is_model(each, config)}

    return moves


def improve(
    start: Subset, moves: Moves, losses: Losses, price: Price, budget: float, beam: int = 8
) -> dict[Subset, float]:
    """Improve a subset within a budget by a move or two, as long as it loses less.

    The first of two moves is one of those that save most for what they lose, and makes room for the other one.

    Returns:
        The losses of all that were measured.
    """
    best, found = start, losses([start])
    while True:
        ones = sorted(one for one in moves(best) if price(one) <= budget)
        found |= losses(ones)
        kept = sorted(ones, key=lambda one: slope(one, best, found, price))[:beam]
        found |= losses(sorted({two for one in kept for two in moves(one) if price(two) <= budget}))
        better = cheapest(found, price, budget)
        if better in (best, None):
            return found
        best = better
