"""The Trainer's arguments with other defaults."""

import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from transformers import TrainingArguments


def default(name: str, value: Any, **metadata: Any) -> Any:
    """Give a field of TrainingArguments another default, and whatever else of its flag should differ."""
    return field(default=value, metadata={**TrainingArguments.__dataclass_fields__[name].metadata, **metadata})


@dataclass
class TrainerArguments(TrainingArguments):
    """The Trainer's arguments without the warnings that its defaults cause."""

    _argument_group_name: ClassVar[str] = "Trainer"

    resume_from_checkpoint: str | None = default(
        "resume_from_checkpoint",
        None,
        help="a checkpoint, or without a value the last complete one in --output_dir",
        nargs="?",
        const="true",
    )

    def __post_init__(self):
        if self.hub_token:
            # with every checkpoint the Trainer saves its arguments
            os.environ["HF_TOKEN"], self.hub_token = self.hub_token, None
        # torch warns where there is nothing to copy to
        self.dataloader_pin_memory = self.dataloader_pin_memory and torch.accelerator.is_available()
        super().__post_init__()


@dataclass
class FineTuningArguments(TrainerArguments):
    """The Trainer's arguments with defaults for fine-tuning a BERT."""

    per_device_eval_batch_size: int = default("per_device_eval_batch_size", 32)
    # a number less than 1 is a share of all steps
    warmup_steps: float = default("warmup_steps", 0.1)
    weight_decay: float = default("weight_decay", 0.01)
    logging_steps: float = default("logging_steps", 0.1)
    save_strategy: str = default("save_strategy", "no")
