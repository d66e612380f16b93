"""What every training command refuses of its flags, whatever else they are: always in a ValueError."""

import dataclasses
import math
from argparse import ArgumentTypeError

import pytest
import torch
from hypothesis import given, settings, strategies as st
from transformers import PreTrainedConfig

from sublayers import PARBertConfig
from sublayers.training.commands.pretrain import RunArguments
from sublayers.training.flags import config_flags, deciding_flags, parse_flags
from sublayers.training.trainers.arguments import TrainerArguments
from sublayers.training.trainers.machine import device
from sublayers.training.trainers.resumable_trainer import ResumableTrainer

FLAGS = [TrainerArguments, RunArguments, config_flags(PARBertConfig, RunArguments)]


def read(**flags):
    argv = [f"--{name}={value}" for name, value in flags.items()]
    return parse_flags(["--output_dir=unused", "--use_cpu", *argv], FLAGS, "usage")


STEPS = ("logging_steps", "eval_steps", "save_steps", "save_total_limit", "warmup_steps")
BAD_NUMBERS = {"max_steps": (0, -2), "label_smoothing_factor": (-0.1, 1.1), "neftune_noise_alpha": (-0.5,)}
BAD_NUMBERS |= dict.fromkeys(("gradient_accumulation_steps", "eval_accumulation_steps"), (0, -1))
BAD_NUMBERS |= dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), (0, -1))
BAD_NUMBERS |= dict.fromkeys((*STEPS, "num_train_epochs", "max_grad_norm", "weight_decay"), (-1,))


@pytest.mark.parametrize(("name", "values"), BAD_NUMBERS.items())
def test_numbers_that_train_nothing_are_one_sentence(name, values):
    for value in values:
        with pytest.raises(ValueError, match=f"^--{name}={value}(.0)? [^.]*; give (a number from|1 or more)[^\n]*$"):
            read(**{name: value})


@pytest.mark.parametrize("name", ["learning_rate", "warmup_steps", "num_train_epochs", "max_tensor_grad_norm"])
def test_numbers_are_finite(name):
    for value in ("nan", "inf", "-inf", "1e999", "many"):
        with pytest.raises(ValueError, match=f"^argument --{name}[^:]*: '{value}' is not a finite number$"):
            read(**{name: value})
    assert read(learning_rate="1e-3", dropout=".5")[0].learning_rate == 1e-3


def test_labels_are_no_flag():
    with pytest.raises(ValueError, match=r"^unknown option 'label_names'"):
        read(label_names="labels")


@pytest.mark.parametrize("argv", [["--model_type"], ["--objective", "clm", "--model_type", "--seed", "1"]])
def test_a_flag_without_its_value_is_one_sentence(argv):
    with pytest.raises(ValueError, match=r"^argument --model_type: expected one argument$"):
        deciding_flags(argv, model_type=["par_bert"], objective=["clm"])


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        # the last step would divide by the steps behind the warm-up
        ({"lr_scheduler_type": "polynomial", "warmup_steps": 1}, "ZeroDivisionError: division by zero"),
        ({"lr_scheduler_kwargs": '{"powder": 2}'}, "TypeError: .*'powder'"),
        ({"lr_scheduler_kwargs": "2"}, "TypeError: .* is not a mapping"),
        ({"lr_scheduler_type": "inverse_sqrt", "lr_scheduler_kwargs": '{"timescale": 0}'}, "ZeroDivisionError: .*"),
    ],
)
def test_a_schedule_that_does_not_do_is_one_sentence(flags, sentence):
    args, _, _ = read(max_steps=1, **flags)
    model = torch.nn.Linear(2, 2)
    model.config = PreTrainedConfig()
    trainer = ResumableTrainer(model=model, args=args)
    optimizer = trainer.create_optimizer()
    remedy = "; give other values$"
    with pytest.raises(ValueError, match=rf"^--lr_scheduler_type and .* cannot be followed \({sentence}\){remedy}"):
        trainer.create_scheduler(1, optimizer)
    args.metric_for_best_model = "f1"
    with pytest.raises(
        ValueError, match=r"^--metric_for_best_model cannot be followed .*'eval_f1', which is not found"
    ):
        trainer._determine_best_metric({"eval_loss": 1.0}, None)


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


@pytest.mark.parametrize(
    ("flags", "unread"),
    [
        ({"optim": "sgd", "optim_args": "momentum=0.9"}, None),
        ({"optim": "sgd", "optim_args": "momentum=0.9,momentumm=0.9"}, "momentumm=0.9"),
        ({"optim_args": "beta1=0.5"}, "beta1=0.5"),
    ],
)
def test_settings_that_an_optimizer_does_not_read_are_refused(flags, unread):
    model = torch.nn.Linear(2, 2)
    model.config = PreTrainedConfig()
    trainer = ResumableTrainer(model, read(max_steps=1, **flags)[0])
    if unread is None:
        assert trainer.create_optimizer().defaults["momentum"] == 0.9
        return
    with pytest.raises(ValueError, match=f"^the optimizer does not read {unread} of --optim_args; leave it out$"):
        trainer.create_optimizer()


def test_an_optimizer_of_a_command_reads_no_settings_of_others():
    model = torch.nn.Linear(2, 2)
    model.config = PreTrainedConfig()
    own = (torch.optim.SGD, {"lr": 0.1})
    trainer = ResumableTrainer(model, read(optim="sgd", optim_args="momentum=1")[0], optimizer_cls_and_kwargs=own)
    with pytest.raises(ValueError, match="does not read momentum=1"):
        trainer.create_optimizer()


@pytest.mark.parametrize(
    ("name", "switch"),
    {
        "fsdp_config": "fsdp",
        "activation_checkpointing_kwargs": "activation_checkpointing",
        "gradient_checkpointing_kwargs": "activation_checkpointing",
    }.items(),
)
def test_settings_of_what_is_not_switched_on_are_refused(name, switch):
    with pytest.raises(ValueError, match=f"^--{name} is read with --{switch} only; give that, too, or leave it out$"):
        read(**{name: '{"use_reentrant": false}'})


def test_settings_of_what_is_switched_on_are_taken_and_taken_again():
    args = read(activation_checkpointing=True, activation_checkpointing_kwargs='{"use_reentrant": false}')[0]
    for each in (args, dataclasses.replace(args, activation_checkpointing=False)):
        assert each.activation_checkpointing_kwargs == {"use_reentrant": False}


def test_a_device_that_the_machine_has_is_read_and_another_one_is_one_sentence():
    assert device("cpu") == torch.device("cpu")
    # no machine has so many
    for name in ("cuda:999", "toaster", "mps:7"):
        with pytest.raises(ArgumentTypeError, match=rf"^this machine has no device '{name}' \(.*\); give cpu$"):
            device(name)
