"""What every training command refuses of its flags, whatever else they are: always in a ValueError."""

import math

import pytest
from hypothesis import given, settings, strategies as st

from sublayers import PARBertConfig
from sublayers.training.commands.pretrain_arguments import RunArguments
from sublayers.training.flags import config_flags, parse_flags
from sublayers.training.trainers.arguments import TrainerArguments

FLAGS = [TrainerArguments, RunArguments, config_flags(PARBertConfig, RunArguments)]


def read(**flags):
    argv = [f"--{name}={value}" for name, value in flags.items()]
    return parse_flags(["--output_dir=unused", "--use_cpu", *argv], FLAGS, "usage")


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "max_steps": (0, -2),
        "label_smoothing_factor": (-0.1, 1.1),
        **dict.fromkeys(("gradient_accumulation_steps", "eval_accumulation_steps"), (0, -1)),
        **dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), (0, -1)),
        **dict.fromkeys(("logging_steps", "eval_steps", "save_steps", "save_total_limit"), (-1,)),
        **dict.fromkeys(("num_train_epochs", "max_grad_norm", "weight_decay", "warmup_steps"), (-1,)),
    }.items(),
)
def test_numbers_that_train_nothing_are_one_sentence(name, values):
    for value in values:
        with pytest.raises(ValueError, match=f"^--{name}={value}(.0)? [^.]*; give (a number from|1 or more)[^\n]*$"):
            read(**{name: value})


def test_numbers_are_finite():
    for name in (
        "learning_rate",
        "warmup_steps",
        "num_train_epochs",
        "adam_epsilon",
        "max_tensor_grad_norm",
        "dropout",
    ):
        for value in ("nan", "inf", "-inf", "1e999", "many"):
            with pytest.raises(ValueError, match=f"^argument --{name}[^:]*: '{value}' is not a finite number$"):
                read(**{name: value})
    assert read(learning_rate="1e-3", dropout=".5")[0].learning_rate == 1e-3


NAMES = [name for kind in FLAGS for name in kind.__dataclass_fields__ if not name.startswith(("_", "output_dir"))]
NUMBERS = st.integers() | st.floats()
VALUES = (
    NUMBERS.map(str) | st.text(max_size=5) | st.sampled_from(["true", "no", "steps", "sf", "{}", '{"a": NaN}', "[1]"])
)


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, min_size=1, max_size=2))
def test_any_flag_is_taken_or_refused_in_a_value_error(flags):
    try:
        args, run, config = read(**flags)
    except (ImportError, OSError, ValueError):
        # some flags name files, or packages that need not be there
        return
    numbers = [value for part in (args, run, config) for value in vars(part).values() if isinstance(value, float)]
    assert all(math.isfinite(number) for number in numbers)
