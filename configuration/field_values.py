"""Which values the fields of configurations can have, whatever the others have."""

import math
from typing import Any

from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import RopeParameters

# how the names of numbers end that are 1 or more, and of those that are 0 to 1; all others are 0 or more. None is
# larger than LARGEST, beyond which states overflow
COUNTS = (
    "_size",
    "_heads",
    "_dim",
    "_softcapping",
    "_position_embeddings",
    "_blocks",
    "_factor",
    "_span",
    "_window",
    "_theta",
)
SHARES = ("dropout", "layerdrop", "_smoothing", "_probability", "_share", "initializer_range")
LARGEST = 10**9
# of a division by the root of a number and this, which 32 bits can hold
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


def check_value(name: str, value: Any) -> None:
    """Check the value of a field by the field's name.

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
    # transformers only warns of special tokens that are out of range
    if isinstance(value, int | float) and not isinstance(value, bool) and not name.endswith("_token_id"):
        least = LEAST_EPS if name.endswith("_eps") else int(name.endswith(COUNTS))
        low, high = (0, 1) if name.endswith(SHARES) else (least, LARGEST)
        if not low <= value <= high:
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
