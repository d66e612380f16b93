"""Arguments that several commands have: the Trainer's with other defaults, and those of a model to train."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Any, ClassVar

import torch
from accelerate import PartialState
from transformers import SchedulerType, Seq2SeqTrainingArguments, TrainingArguments

from sublayers.training.flags import flag

# ranges of numbers that the Trainer does not check
RANGES = dict.fromkeys(("gradient_accumulation_steps", "eval_accumulation_steps"), (1, inf))
RANGES |= dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), (1, inf))
RANGES |= dict.fromkeys(("logging_steps", "eval_steps", "save_steps", "save_total_limit"), (0, inf))
RANGES |= dict.fromkeys(("num_train_epochs", "warmup_steps", "max_grad_norm", "weight_decay"), (0, inf))
RANGES |= {"label_smoothing_factor": (0, 1), "neftune_noise_alpha": (0, inf)}
# beginnings of flags that change nothing of what a run leaves, so they may differ when it goes on
FREE: tuple[str, ...] = ("output_dir", "resume", "push", "hub", "log", "report", "disable_tqdm", "local_rank")
FREE += ("per_device_eval", "jobs", "storage")
# schedules that do not warm up, and those that have no settings
WITHOUT_WARMUP = (SchedulerType.CONSTANT, SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)
WITHOUT_SETTINGS = (SchedulerType.CONSTANT, SchedulerType.CONSTANT_WITH_WARMUP)
# settings, and the flags of which one has to switch on what they are for
SWITCHES: dict[str, tuple[str, ...]] = {"fsdp_config": ("fsdp",)}
SWITCHES |= {
    f"{name}_checkpointing_kwargs": ("activation_checkpointing", "gradient_checkpointing")
    for name in ("activation", "gradient")
}


def default(name: str, value: Any, **metadata: Any) -> Any:
    """Give a field of TrainingArguments another default, and whatever else of its flag should differ."""
    return field(default=value, metadata={**TrainingArguments.__dataclass_fields__[name].metadata, **metadata})


@dataclass
class ModelArguments:
    """Flags of a command that makes a new model with its tokenizer, or goes on with one."""

    model_name_or_path: str | None = flag("model to start from, or to evaluate, instead of a new one")
    tokenizer_name_or_path: str | None = flag("default: the model's, or for a new model one trained on its data")
    vocab_size: int = flag("largest size of a tokenizer to train", 8192)


def schedule_settings(arguments: TrainingArguments, steps: int) -> dict[str, Any]:
    """Give the settings of the learning rate's schedule for a training of this many steps.

    A number of steps that is less than 1 is a share of them all, as that of the warm-up is.

    Raises:
        ValueError: warm-up and decay do not fit into the training, or there are settings that nobody reads.
    """
    given: Any = arguments.lr_scheduler_kwargs or {}
    kind, settings = SchedulerType(arguments.lr_scheduler_type), {**given}
    if settings and kind in WITHOUT_SETTINGS:
        raise ValueError(f"the schedule {kind.value} has no settings; leave --lr_scheduler_kwargs {settings} out")
    if "num_stable_steps" in settings:
        raise ValueError("num_stable_steps follow from the others; leave them out of --lr_scheduler_kwargs")
    taken = {"warmup_steps": 0 if kind in WITHOUT_WARMUP else arguments.get_warmup_steps(steps)}
    if decay := settings.get("num_decay_steps"):
        # rounded down, since the warm-up is rounded up
        settings["num_decay_steps"] = taken["num_decay_steps"] = int(decay if decay >= 1 else decay * steps)
    if sum(taken.values()) > steps:
        told = " and ".join(f"{name}={number}" for name, number in taken.items())
        raise ValueError(
            f"the schedule of rates with {told} does not fit into a training of {steps} steps; train longer, or "
            "give shares of the steps, such as 0.1"
        )
    return settings


@dataclass
class TrainerArguments(TrainingArguments):
    """The Trainer's arguments without the warnings that its defaults cause.

    Raises:
        ValueError: a number out of range, or what the Trainer's arguments refuse.
    """

    _argument_group_name: ClassVar[str] = "Trainer"

    resume_from_checkpoint: str | None = default(
        "resume_from_checkpoint",
        None,
        help="a checkpoint, or without a value the last complete one in --output_dir",
        nargs="?",
        const="true",
    )
    any_world_size: bool = flag(
        "resume also from a checkpoint of another number of processes; random numbers, as of dropout, begin anew", False
    )
    learning_rate_drops: list[float] = flag(
        "updates, or shares of them all, from each of which the learning rate is a tenth of what it was", []
    )
    # each command sets its own
    label_names: list[str] | None = field(default=None, init=False)

    def __post_init__(self):
        for name, (low, high) in RANGES.items():
            if (value := getattr(self, name)) is not None and not low <= value <= high:
                raise ValueError(f"--{name}={value} is out of range; give a number from {low} to {high}")
        if self.max_steps != -1 and self.max_steps < 1:
            raise ValueError(f"--max_steps={self.max_steps} trains nothing; give 1 or more, or -1 for all epochs")
        for name, switches in SWITCHES.items():
            # a dict is what an earlier call has made of the text
            is_on = any(getattr(self, switch) for switch in switches) or "ACCELERATE_USE_FSDP" in os.environ
            if isinstance(getattr(self, name), str) and not is_on:
                raise ValueError(f"--{name} is read with --{switches[0]} only; give that, too, or leave it out")
        if min(self.learning_rate_drops, default=1) <= 0:
            raise ValueError(
                f"--learning_rate_drops {min(self.learning_rate_drops)} is no update; give a positive number"
            )
        if self.hub_token:
            # the Trainer saves its arguments, token included, with every checkpoint
            os.environ["HF_TOKEN"], self.hub_token = self.hub_token, None
        # torch warns where there is no accelerator
        self.dataloader_pin_memory = self.dataloader_pin_memory and torch.accelerator.is_available()
        try:
            super().__post_init__()
            if self.do_train and self.max_steps > 0:
                # without them, the data decide how many steps there are
                schedule_settings(self, self.max_steps)
        except (AttributeError, LookupError, TypeError) as error:
            # flags that are given as JSON raise these
            raise ValueError(f"a flag of the Trainer does not fit ({error}); correct it") from error

    @contextmanager
    def main_process_first(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Let the main process go before the others, once all have come here.

        So a slower process does not find the files of a faster one in an output folder that ought to be empty.
        """
        PartialState().wait_for_everyone()
        with super().main_process_first(*args, **kwargs):
            yield


@dataclass
class FineTuningArguments(TrainerArguments):
    """The Trainer's arguments with defaults for fine-tuning a BERT."""

    per_device_eval_batch_size: int = default("per_device_eval_batch_size", 32)
    # a number less than 1 is a share of all steps
    warmup_steps: float = default("warmup_steps", 0.1)
    weight_decay: float = default("weight_decay", 0.01)
    logging_steps: float = default("logging_steps", 0.1)
    save_strategy: str = default("save_strategy", "no")


@dataclass
class FromScratchArguments(TrainerArguments):
    """The Trainer's arguments with defaults for training a small model from scratch; train and evaluate by default."""

    num_train_epochs: float = default("num_train_epochs", 1.0)
    learning_rate: float = default("learning_rate", 5e-4)
    lr_scheduler_type: str = default("lr_scheduler_type", "cosine")
    # a number less than 1 is a share of all steps, which suits runs of any length
    warmup_steps: float = default("warmup_steps", 0.05)
    logging_steps: float = default("logging_steps", 0.01)
    eval_strategy: str = default("eval_strategy", "steps")
    eval_steps: float | None = default("eval_steps", 0.1)
    save_steps: float = default("save_steps", 0.1)
    save_total_limit: int | None = default("save_total_limit", 2)
    weight_decay: float = default("weight_decay", 0.1)

    def __post_init__(self):
        if not (self.do_train or self.do_eval or self.do_predict):
            self.do_train = self.do_eval = True
        if not (self.do_train and self.do_eval):
            self.eval_strategy = "no"
        super().__post_init__()


@dataclass
class Seq2SeqTrainerArguments(FromScratchArguments, Seq2SeqTrainingArguments):
    """The Trainer's arguments with the papers' defaults for translation; train and evaluate by default."""

    output_dir: str = default("output_dir", "runs/seq2seq")
    lr_scheduler_type: str = default("lr_scheduler_type", "inverse_sqrt")
    warmup_steps: float = default("warmup_steps", 0.1)
    weight_decay: float = default("weight_decay", 0.0)
    adam_beta2: float = default("adam_beta2", 0.98)
    label_smoothing_factor: float = default("label_smoothing_factor", 0.1)
    per_device_eval_batch_size: int = default("per_device_eval_batch_size", 32)
    # generation needs the cache; training passes labels, with which no model fills it
    use_cache: bool = default("use_cache", True)
    predict_with_generate: bool = flag(
        "write texts and score them; while training only if --metric_for_best_model is such a score", True
    )
    generation_max_length: int | None = flag(
        "most tokens of a text and the one that starts it; default: the model's, or --max_target_length + 1"
    )
    generation_num_beams: int | None = flag("default: the model's, for a new model 5", None, aliases=["--num_beams"])

    @property
    def generates_in_training(self) -> bool:
        """Whether the evaluations of a run need generated texts, which take long."""
        best = self.metric_for_best_model
        return self.predict_with_generate and best is not None and best.removeprefix("eval_") != "loss"

    @property
    def number_of_saves(self) -> float:
        """How many checkpoints there will be, infinite where the size of the data decides."""
        if not self.do_train or self.save_strategy == "no":
            return 0
        if self.save_strategy == "epoch" and self.max_steps < 1:
            return ceil(self.num_train_epochs)
        if self.save_strategy == "steps" and self.save_steps < 1:
            return ceil(1 / self.save_steps)
        return ceil(self.max_steps / self.save_steps) if self.save_strategy == "steps" and self.max_steps > 0 else inf
