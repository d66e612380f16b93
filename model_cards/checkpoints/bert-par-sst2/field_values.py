"""Which values the fields of configurations can have, whatever the others have, and how fields declare it."""

import math
from collections.abc import Iterable
from dataclasses import field, fields, make_dataclass
from functools import cache, wraps
from inspect import formatannotation, get_annotations
from types import UnionType
from typing import Any, TypeVar, get_args

from huggingface_hub.dataclasses import strict as strict_dataclass
from huggingface_hub.errors import StrictDataclassClassValidationError, StrictDataclassFieldValidationError
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import RopeParameters

from .alphabet import ALPHABET
from .letters_letter import field_type, option_type
from .order import Order

Config = TypeVar("Config", bound=PreTrainedConfig)
# where a field's metadata have it
RANGE = "range"
# beyond which states overflow
LARGEST = 10**9
# norms divide by sqrt(variance + eps); with a smaller eps, that overflows 32 bits
LEAST_EPS = 1e-30
# labels, each of which gets a name
MOST_LABELS = 10**6
DTYPES = ("float16", "bfloat16", "float32", "float64")
# the kinds of scaling that are tried here
ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")
# the least and the largest values of their parameters; all others are 0 or more. Below, formulas divide by 0
ROPE_RANGES = {
    "factor": (1, LARGEST),
    "attention_factor": (0, LARGEST),
    "partial_rotary_factor": (0, 1),
    "rope_theta": (1.01, math.inf),
    "original_max_position_embeddings": (1, math.inf),
    "low_freq_factor": (0.01, math.inf),
    "high_freq_factor": (0.01, math.inf),
}


def number(default: Any, least: float = 0, most: float = LARGEST) -> Any:
    """Declare a field that holds a number, and its range; None is in range wherever the type allows it.

    A subclass that gives only another default keeps the range, which it would not keep of transformers' validators.
    """
    return field(default=default, metadata={RANGE: (least, most)})


def field_of_letter(name: str, declared: Any) -> tuple[str, Any, Any]:
    """Make a field that a letter needs; it is None where no order has the letter."""
    is_number = not isinstance(declared, tuple)
    return name, field_type(declared) | None, number(None, least=declared) if is_number else field(default=None)


# the fields that letters declare, and their options
FieldsOfLetters: Any = make_dataclass(
    "FieldsOfLetters",
    [field_of_letter(*each) for kind in ALPHABET.values() for each in kind.fields.items()]
    + [
        (name, option_type(default), number(default, least=int(default is None)))
        for kind in ALPHABET.values()
        for name, default in kind.options.items()
    ],
)


def unneeded_fields(orders: Iterable[Order]) -> dict[str, Any]:
    """Name the fields that only letters need which no order has, with their values then."""
    orders = [*orders]
    kinds = [kind for order in orders for kind in order.kinds]
    needed = {name for kind in kinds for name in (*kind.fields, *kind.options)}
    unneeded = {own.name: own.default for own in fields(FieldsOfLetters) if own.name not in needed}
    return unneeded if any(order.has_windows for order in orders) else unneeded | {"local_rope_theta": None}


@cache
def declared_range(config_class: type, name: str) -> tuple[float, float] | None:
    """Find the range of a field, which a class or the one that it is derived from declares."""
    for base in config_class.__mro__:
        own = vars(base).get("__dataclass_fields__", {}).get(name)
        if own is not None and RANGE in own.metadata:
            return own.metadata[RANGE]
    return None


def check_ranges(config_class: Any) -> None:
    """Check that a class of configurations declares a range for each number among its own fields.

    Raises:
        TypeError: it does not.
    """
    for own in fields(config_class):
        kinds = get_args(own.type) if isinstance(own.type, UnionType) else (own.type,)
        holds_number = {int, float} & {*kinds} and not own.name.endswith("_token_id")
        is_own = own.name in get_annotations(config_class)
        if is_own and holds_number and declared_range(config_class, own.name) is None:
            raise TypeError(f"{config_class.__name__} declares no range of {own.name}; use number({own.default})")


def check_value(config_class: type, name: str, value: Any) -> None:
    """Check the value of a field.

    Raises:
        ValueError: a number out of range, an unknown activation or type of weights, an empty list of end tokens, labels
            that are not numbered from 0, or parameters that rotary positions do not have.
    """
    if name == "rope_parameters":
        _check_rope(value)
    if name.endswith("_act") and value not in (None, *ACT2FN):
        raise ValueError(f"{name}={value!r} is unknown; choose from {', '.join(ACT2FN)}")
    if name == "eos_token_id" and value == []:
        raise ValueError("eos_token_id=[] names no token; give one or more, or None")
    if name == "id2label" and value is not None and {*map(str, value)} != {*map(str, range(len(value) or 1))}:
        raise ValueError(f"id2label={value} does not number its labels 0, 1, 2 and so on; do so, or leave it out")
    if name == "num_labels" and (type(value) is not int or not 1 <= value <= MOST_LABELS):
        raise ValueError(f"num_labels={value!r} does not fit; give a number from 1 to {MOST_LABELS}")
    if name == "dtype" and value is not None and str(value).removeprefix("torch.") not in DTYPES:
        raise ValueError(f"dtype={value!r} is unknown here; choose from {', '.join(DTYPES)}")
    for each in value if isinstance(value, list) else [value]:
        if not isinstance(each, int | float) or (limits := declared_range(config_class, name)) is None:
            continue
        low, high = limits
        if not low <= each <= high:
            raise ValueError(f"{name}={value} is out of range; give a number from {low} to {high}")


def _check_rope(parameters: dict[str, Any] | None) -> None:
    if (kind := (parameters or {}).get("rope_type", "default")) not in ROPE_TYPES:
        raise ValueError(f"rope_type={kind!r} is unknown here; choose from {', '.join(ROPE_TYPES)}")
    for name, value in (parameters or {}).items():
        if name not in RopeParameters.__annotations__:
            raise ValueError(f"rope_parameters={parameters} have the unknown name {name!r}; leave it out")
        low, high = ROPE_RANGES.get(name, (0, math.inf))
        is_number = isinstance(value, int | float) and low <= value <= high and value != math.inf
        if not (is_number or name == "rope_type" or (value is None and name != "factor")):
            raise ValueError(f"rope_parameters hold {name}={value!r}; give a finite number from {low} to {high}")


def strict(config_class: type[Config]) -> type[Config]:
    """Make a configuration check its fields' types and values, with a ValueError of one sentence."""
    checked: Any = strict_dataclass(config_class)
    check_ranges(checked)
    set_field, validate = checked.__setattr__, checked.validate

    def set_in_one_sentence(self, name, value):
        # the check ignores names that attribute_map maps to a field
        name = self.attribute_map.get(name, name)
        try:
            set_field(self, name, value)
        except StrictDataclassFieldValidationError as error:
            kind = formatannotation(self.__dataclass_fields__[name].type)
            raise ValueError(f"{name}={value!r} does not fit; give {kind}") from error

    # validate keeps its module and name, which subclasses look up
    @wraps(validate)
    def validate_in_one_sentence(self):
        try:
            validate(self)
        except StrictDataclassClassValidationError as error:
            raise ValueError(str(error.__cause__)) from error

    checked.__setattr__ = set_in_one_sentence
    checked.validate = validate_in_one_sentence
    return checked
