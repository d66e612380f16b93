"""Subsets of a model's sublayers: their names, the models that they make, and which models have some."""

import copy
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

from sublayers.configuration.configuration_iot_seq2seq import IOTSeq2SeqConfig
from sublayers.configuration.configuration_recurrent_lm import RecurrentLMConfig
from sublayers.configuration.order import Order
from sublayers.convert.weights import Piece, fill
from sublayers.modeling.modeling_sublayers import SublayersPreTrainedModel
from sublayers.modeling.stack import SublayerStack

# the places of the sublayers that are kept, in the order in which they run; a decoder's come after its encoder's
Subset: TypeAlias = tuple[int, ...]


def number_places(*orders: str | Order) -> list[range]:
    """Number the places of orders, one after the other."""
    return [range(*ends) for ends in pairwise(accumulate((len(Order(order)) for order in orders), initial=0))]


def split(subset: Subset, *orders: str | Order) -> list[Subset]:
    """Say which places of each of the orders a subset has."""
    return [tuple(place - places[0] for place in subset if place in places) for places in number_places(*orders)]


def name_sublayers(*orders: str | Order) -> list[str]:
    """Name the sublayers of orders by their letters and numbers: `s0 f0 s1 f1` are those of `sfsf`.

    The names of a second order, that of a decoder, begin with `decoder.`
    """
    return [
        f"{stack}{letter}{order.letters[:place].count(letter)}"
        for stack, order in zip(("", "decoder."), map(Order, orders), strict=False)
        for place, letter in enumerate(order)
    ]


def names_of(config: Any) -> list[str]:
    """Name the sublayers of a model, as those of the first model where this one is itself of some."""
    return config.kept_sublayers or name_sublayers(*config.orders.values())


def find_sublayers(names: Sequence[str], *orders: str | Order) -> Subset:
    """Find the places of sublayers by their names, see `name_sublayers`.

    Raises:
        ValueError: one that the orders do not have, or some that do not rise.
    """
    known = name_sublayers(*orders)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"there is no sublayer {unknown[0]} among {' '.join(known)}; choose some of these")
    places = tuple(known.index(name) for name in names)
    if not places or [*places] != sorted({*places}):
        given = " ".join(names) or "nothing"
        raise ValueError(f"{given} is no rising list of sublayers; give some of {' '.join(known)}")
    return places


def orders_of(subset: Subset, *orders: str | Order) -> tuple[str, ...]:
    """Write the orders of a subset of orders' sublayers."""
    parts = zip(split(subset, *orders), map(Order, orders), strict=True)
    return tuple("".join(order.letters[place] for place in part) for part, order in parts)


def layers_of(*orders: str | Order) -> list[Subset]:
    """Cut orders into layers, each of which begins with self-attention or the like and ends before the next one."""
    layers: list[Subset] = []
    for places, order in zip(number_places(*orders), map(Order, orders), strict=True):
        starts = [places[place] for place in order.slots("self")]
        ends = pairwise([places.start, *starts[1:], places.stop])
        layers += [tuple(range(*each)) for each in ends]
    return layers


def widths_of(config: Any, subset: Sequence[int]) -> int | list[int]:
    """Take the widths of some sublayers from those of the single stack that has more than one."""
    if isinstance(given := config.intermediate_size, int):
        return given
    widths = config.order.widths(given)
    # without f, any number will do
    return [widths[place] for place in subset if place in widths] or given[0]


def check_prunable(config: Any, source: str) -> None:
    """Check that any sublayers of a model make another one.

    Raises:
        ValueError: they do not, and why.
    """
    reasons = {
        f"sublayers that run at several places, here {[*map(str, config.orders.values())]}": any(
            order.shares_sublayers for order in config.orders.values()
        ),
        "feed-forwards of several widths in two stacks": len(config.orders) > 1
        and isinstance(config.intermediate_size, list),
        "orders that it chooses from": isinstance(config, IOTSeq2SeqConfig),
        "a memory": isinstance(config, RecurrentLMConfig),
        "sublayers m, which see the states before the first of them": any(
            order.has_fixed_states for order in config.orders.values()
        ),
        "another activation before attention": config.pre_attention_act not in (None, config.hidden_act),
        "convolutions of several widths": len({*getattr(config, "kernel_sizes", ())}) > 1
        and any(kind.group == "convolution" for order in config.orders.values() for kind in order.kinds),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"{source} has {reason}, so its sublayers cannot be taken out; give another model")


def is_model(subset: Subset, config: Any) -> bool:
    """Say whether some sublayers of a model make another one.

    No stack is empty, and a first sublayer without a norm stays, as it would leave one with a norm in its place.
    """
    parts = split(subset, *config.orders.values())
    return all(part and (config.first_norm or part[0] == 0) for part in parts)


def stacks_of(model: SublayersPreTrainedModel) -> list[SublayerStack]:
    """Find the stacks of a model, an encoder's before its decoder's."""
    return [module for module in model.modules() if isinstance(module, SublayerStack)]


def take_subset(model: SublayersPreTrainedModel, subset: Subset) -> SublayersPreTrainedModel:
    """Make a model of some of another one's sublayers, with the same head and copies of the weights.

    The configuration names them as `kept_sublayers`: those of the first model, where that one is itself of some.
    """
    orders, names = model.config.orders, names_of(model.config)
    config = model.config.with_orders(dict(zip(orders, orders_of(subset, *orders.values()), strict=True)))
    config.intermediate_size = widths_of(model.config, subset)
    config.kept_sublayers = [names[place] for place in subset]
    return copy_sublayers(model, config, split(subset, *orders.values()))


def copy_sublayers(
    model: SublayersPreTrainedModel, config: Any, parts: Sequence[Sequence[int | None]]
) -> SublayersPreTrainedModel:
    """Make a model of another one's sublayers, with copies of their weights and of all others.

    Args:
        model: whose weights are copied.
        config: of the new model.
        parts: for each stack, the place in the old stack that each of its sublayers comes from; None: random weights.
    """
    weights = {name: tensor for name, tensor in model.state_dict().items() if "layers." not in name}
    stacks = [(name, module) for name, module in model.named_modules() if isinstance(module, SublayerStack)]
    for (name, stack), places in zip(stacks, parts, strict=True):
        for number, place in enumerate(places):
            if place is not None:
                weights |= stack[place].state_dict(prefix=f"{name}.{number}.")
    copied, _ = fill(type(model), config, {name: Piece(tensor.clone(), (name,)) for name, tensor in weights.items()})
    if model.can_generate():
        copied.generation_config = copy.deepcopy(model.generation_config)
    return copied
