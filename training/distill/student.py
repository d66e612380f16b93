"""The model that learns: another order of the teacher's own sublayers, or a smaller model that starts from nothing."""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel

from sublayers.configuration.configuration_par_bert import PARBertConfig
from sublayers.configuration.order import Order, compact, expand
from sublayers.hub.loading import load
from sublayers.modeling.modeling_reordered_bert import ReorderedBertPreTrainedModel
from sublayers.modeling.modeling_sublayers import SublayersPreTrainedModel
from sublayers.training.distill.subsets import check_prunable, copy_sublayers, find_sublayers, take_subset, widths_of
from sublayers.training.distill.teacher import Teacher, hash_vocabulary


class Student(NamedTuple):
    """A model, and the order of its sublayers in which its answers are nearest to the teacher's."""

    model: PreTrainedModel
    start: str


def choose_sublayers(order: str, teacher_order: str, layers: Sequence[int] | None = None) -> list[int | None]:
    """Say with which of the teacher's sublayers each one of an order starts; None stands for those that are new.

    The n-th `s` or `m` comes from the n-th `s` or `m`, the n-th `f` from the n-th `f`. Of more than there is room for,
    the first, the last and some at equal distances between them are taken, or those of the `layers`, which are numbered
    from 0. New are only `f`, the last ones.

    Raises:
        ValueError: more attention than the teacher has, layers that the teacher does not have or the order has no room
            for, or an order that shares sublayers or has others than `s`, `m` and `f`.
    """
    for each in (order, teacher_order):
        if Order(each).shares_sublayers:
            raise ValueError(
                f"{compact(each)} has sublayers that run at several places, which are not taken over one by one; give "
                "a student of another size, or an order without names"
            )
        if foreign := "".join(sorted({*Order(each).by_weights} - {*"sf"})):
            raise ValueError(
                f"{compact(each)} has sublayers {foreign}, and a student in another order takes over s, m and f alone; "
                "give one in the teacher's order, of fewer layers"
            )
    order, teacher_order = Order(order).by_weights, Order(teacher_order).by_weights
    own = {kind: [i for i, letter in enumerate(teacher_order) if letter == kind] for kind in "sf"}
    wanted = {kind: order.count(kind) for kind in own}
    if wanted["s"] > len(own["s"]):
        raise ValueError(
            f"the order {compact(order)} has {wanted['s']} s, more than the {len(own['s'])} of the teacher; give one "
            "with fewer"
        )
    if layers is not None:
        numbers, named = len(own["s"]), " ".join(map(str, layers))
        if [*layers] != sorted({*layers} & {*range(min(map(len, own.values())))}):
            raise ValueError(f"--layers {named} is no rising list of the teacher's layers 0 to {numbers - 1}")
        if len(layers) != wanted["s"] or len(layers) > wanted["f"]:
            raise ValueError(
                f"--layers {named} is for an order with {len(layers)} s and as many f or more, not {compact(order)}; "
                "choose other layers"
            )
    chosen = {}
    for kind, places in own.items():
        if layers is not None:
            taken = [places[layer] for layer in layers]
        elif len(places) > wanted[kind]:
            taken = [places[i * (len(places) - 1) // max(wanted[kind] - 1, 1)] for i in range(wanted[kind])]
        else:
            taken = places
        chosen[kind] = iter([*taken, *[None] * (wanted[kind] - len(taken))])
    return [next(chosen[letter]) for letter in order]


def nearest_order(places: Sequence[int | None], teacher_order: str) -> str:
    """Order sublayers as their origins are ordered in the teacher; new ones come last."""
    taken = sorted(place for place in places if place is not None)
    return "".join(Order(teacher_order).letters[place] for place in taken) + "f" * places.count(None)


@torch.no_grad()
def take_over(teacher: ReorderedBertPreTrainedModel, order: str, layers: Sequence[int] | None = None) -> Student:
    """Make a student of the teacher's own sublayers, see `choose_sublayers`.

    In the order that it starts in, new sublayers change nothing: their output map is zero. With post-norm, the last of
    them takes over the gain and bias of the norm before them, since a norm without these leaves normalised states as
    they are.

    Raises:
        ValueError: what `choose_sublayers` refuses, or a teacher whose sublayers depend on their neighbours.
    """
    old = teacher.config
    places = choose_sublayers(order, old.sublayer_order, layers)
    if old.pre_attention_act not in (None, old.hidden_act) and compact(order) != old.sublayer_order:
        raise ValueError(
            f"before attention the teacher has the activation {old.pre_attention_act!r}, elsewhere {old.hidden_act!r}, "
            f"so its sublayers run in no other order than {old.sublayer_order}"
        )
    config = copy.deepcopy(old)
    config.sublayer_order = order
    config.intermediate_size = widths_of(old, [place for place in places if place is not None])
    model: Any = copy_sublayers(teacher, config, [places])
    stack = model.base_model.layers
    new = [layer for layer, place in zip(stack, places, strict=True) if place is None]
    for layer in new:
        for parameter in layer.mixer.output_map.parameters():
            nn.init.zeros_(parameter)
    if new and config.norm_position == "post" and config.norm_affine:
        last = stack[places.index(max(place for place in places if place is not None))]
        new[-1].norm.load_state_dict(last.norm.state_dict())
        for layer in (last, *new[:-1]):
            layer.norm.reset_parameters()
    return Student(model, nearest_order(places, old.sublayer_order))


def keep_sublayers(teacher: Teacher, names: Sequence[str], order: str | None = None) -> Student:
    """Make a student of some of the teacher's sublayers, by their names, see `name_sublayers`.

    Raises:
        ValueError: names that the teacher does not have, sublayers that cannot be taken out, or of another order.
    """
    model: Any = teacher.model
    if not isinstance(model, SublayersPreTrainedModel):
        raise ValueError(f"{teacher.source} has layers of its own; give what sublayers convert makes of it")
    check_prunable(model.config, teacher.source)
    subset = find_sublayers(names, model.config.sublayer_order)
    smaller = take_subset(model, subset)
    own = smaller.config.sublayer_order
    if order is not None and compact(order) != own:
        raise ValueError(f"--sublayers {' '.join(names)} run in the order {own}, not {compact(order)}; leave that out")
    return Student(smaller, Order(own).letters)


def open_student(source: str, teacher: Teacher) -> Student:
    """Open a student that goes on learning, such as one that `sublayers prune` left.

    Raises:
        OSError: there is no such folder or repository.
        ValueError: it has another vocabulary or head than the teacher, or is no model of this package.
    """
    if hash_vocabulary(load(AutoTokenizer, source)) != hash_vocabulary(teacher.tokenizer):
        raise ValueError(f"{source} has other tokens than {teacher.source}; give another student")
    model = load(teacher.head.auto_class, source, dtype=torch.float32)
    if not isinstance(model, SublayersPreTrainedModel):
        raise ValueError(f"{source} has layers of its own; give what sublayers convert makes of it")
    return Student(model, expand(model.config.order))


def make_student(
    teacher: Teacher, order: str, layers: Sequence[int] | None, sizes: dict[str, int], max_length: int
) -> Student:
    """Make a student: of the teacher's own sublayers where it has a BERT's and the sizes agree, else a random PAR BERT.

    Args:
        teacher: whose head the student has, too.
        order: of its sublayers.
        layers: of the teacher, that are kept.
        sizes: fields of its configuration, such as `hidden_size`, as far as they are given.
        max_length: tokens that a random one reads at most.

    Raises:
        ValueError: what `take_over` refuses, or layers of a teacher that cannot be taken over.
    """
    model: Any = teacher.model
    old = model.config
    is_ours = isinstance(model, ReorderedBertPreTrainedModel)
    if is_ours and all(getattr(old, name) == size for name, size in sizes.items()):
        return take_over(model, order, layers)
    if layers is not None:
        why = "sizes are other ones" if is_ours else f"{old.model_type} is no BERT"
        raise ValueError(f"--layers cannot be taken from {teacher.source}, whose {why}; leave them out")
    hidden_size = sizes.get("hidden_size", old.hidden_size)
    config = PARBertConfig(
        **{
            "vocab_size": old.vocab_size,
            "sublayer_order": order,
            "hidden_size": hidden_size,
            "intermediate_size": 4 * hidden_size,
            "num_attention_heads": old.num_attention_heads,
            "max_position_embeddings": max_length,
            **{f"{name}_token_id": getattr(teacher.tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")},
            "id2label": old.id2label,
            "label2id": old.label2id,
            "problem_type": old.problem_type,
            **sizes,
        }
    )
    return Student(teacher.head.auto_class.from_config(config), expand(order))


def set_dropout(model: PreTrainedModel, rate: float) -> None:
    """Give all dropout of a model one rate, in its configuration too, which attention reads."""
    for name, value in model.config.to_dict().items():
        if name.endswith("dropout") and value is not None:
            setattr(model.config, name, rate)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
