"""What `sublayers glue` can be asked for, known before the models, which take seconds to import."""

from dataclasses import dataclass, field
from typing import ClassVar

from sublayers.training.data.glue import GLUE_TASKS, GlueDataArguments
from sublayers.training.trainers.arguments import FineTuningArguments, default

USAGE = "sublayers glue [SETTINGS.yaml] --task_name NAME --model_name_or_path MODEL [--name value ...]"


@dataclass
class GlueArguments:
    """Flags for what is fine-tuned how often."""

    _argument_group_name: ClassVar[str] = "task, model and grid"

    task_name: str = field(metadata={"help": f"{', '.join(GLUE_TASKS)}; or all, as far as there are data"})
    model_name_or_path: str = field(metadata={"help": "model to fine-tune"})
    max_length: int = field(default=128, metadata={"help": "tokens of a text or pair; the longer text is cut first"})
    seeds: list[int] = field(default_factory=list, metadata={"help": "one run each; default: --seed"})
    learning_rates: list[float] = field(default_factory=list, metadata={"help": "grid; default: --learning_rate"})
    batch_sizes: list[int] = field(
        default_factory=list, metadata={"help": "grid; default: --per_device_train_batch_size"}
    )


@dataclass
class GlueTrainingArguments(FineTuningArguments):
    """Arguments of one run; `do_eval` or `do_predict` alone leave training out."""

    output_dir: str = default("output_dir", "runs/glue")
    per_device_train_batch_size: int = default("per_device_train_batch_size", 32)

    def __post_init__(self):
        self.do_train = self.do_train or not (self.do_eval or self.do_predict)
        super().__post_init__()


FLAGS = (GlueArguments, GlueDataArguments, GlueTrainingArguments)
