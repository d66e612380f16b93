"""Subsets of a model's sublayers: their names, the models that they make, and which models have some."""

import copy
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from transformers.initialization import no_init_weights

from sublayers.configuration.configuration_recurrent_lm import RecurrentLMConfig
from sublayers.configuration.sublayer_order import compact, expand, has_fixed_states
from sublayers.modeling.modeling_sublayers import SublayersPreTrainedModel

# the places of the order whose sublayers are kept, rising
Subset: TypeAlias = tuple[int, ...]


def name_sublayers(order: str) -> list[str]:
    """Name the sublayers of an order by their letters and numbers: `s0 f0 s1 f1` are those of `sfsf`."""
    order = expand(order)
    return [f"{letter}{order[:place].count(letter)}" for place, letter in enumerate(order)]


def find_sublayers(names: Sequence[str], order: str) -> Subset:
    """Find the places of sublayers by their names, see `name_sublayers`.

    Raises:
        ValueError: one that the order does not have, or some that do not rise.
    """
    known = name_sublayers(order)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"there is no sublayer {unknown[0]} among {' '.join(known)}; choose some of these")
    places = tuple(known.index(name) for name in names)
    if not places or [*places] != sorted({*places}):
        given = " ".join(names) or "nothing"
        raise ValueError(f"{given} is no rising list of sublayers; give some of {' '.join(known)}")
    return places


def order_of(subset: Subset, order: str) -> str:
    """Write the order of a subset of an order's sublayers."""
    return "".join(expand(order)[place] for place in subset)


def layers_of(order: str) -> list[Subset]:
    """Cut an order into layers, each of which begins with attention and ends in front of the next one."""
    starts = [place for place, letter in enumerate(expand(order)) if letter != "f"]
    starts = [0, *starts[1:]] if starts else [0]
    return [tuple(range(start, end)) for start, end in zip(starts, [*starts[1:], len(expand(order))], strict=True)]


def check_prunable(config: Any, source: str) -> None:
    """Check that any sublayers of a model make another one.

    Raises:
        ValueError: they do not, and why.
    """
    reasons = {
        "two stacks": config.is_encoder_decoder,
        "a memory": isinstance(config, RecurrentLMConfig),
        "sublayers m, which see the states in front of the first of them": any(
            map(has_fixed_states, config.orders.values())
        ),
        "another activation before attention": config.pre_attention_act not in (None, config.hidden_act),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"{source} has {reason}, so its sublayers cannot be taken out; give another model")


def fixed_places(config: Any) -> set[int]:
    """Find the places that stay: a first sublayer without a norm would leave one with a norm in its place."""
    return set() if config.first_norm else {0}


@torch.no_grad()
def take_subset(model: SublayersPreTrainedModel, subset: Subset) -> SublayersPreTrainedModel:
    """Make a model of some of another one's sublayers, with the same head and copies of the weights.

    The configuration names them as `kept_sublayers`: those of the first model, where that one is itself of some.
    """
    config: Any = copy.deepcopy(model.config)
    order = expand(config.sublayer_order)
    names = getattr(config, "kept_sublayers", None) or name_sublayers(order)
    config.kept_sublayers = [names[place] for place in subset]
    config.sublayer_order = order_of(subset, order)
    if "w" not in expand(config.sublayer_order):
        config.attention_window = config.local_rope_theta = None
    new_places = {str(old): str(new) for new, old in enumerate(subset)}
    weights = {}
    for name, tensor in model.state_dict().items():
        found = re.match(r"((?:.*\.)?layers\.)(\d+)(\..*)", name)
        if found is None:
            weights[name] = tensor
        elif found[2] in new_places:
            weights[f"{found[1]}{new_places[found[2]]}{found[3]}"] = tensor
    with no_init_weights():
        smaller: Any = type(model)(config)
    smaller.load_state_dict(weights)
    if model.can_generate():
        smaller.generation_config = copy.deepcopy(model.generation_config)
    return smaller.eval()


def tell(subset: Subset, order: str) -> str:
    """Write a subset as people read it: its order, and the names of its sublayers."""
    names = name_sublayers(order)
    return f"{compact(order_of(subset, order))} ({' '.join(names[place] for place in subset)})"
