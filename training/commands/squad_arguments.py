"""What `sublayers squad` can be asked for, known before the models, which take seconds to import."""

from dataclasses import dataclass, field
from typing import ClassVar

from sublayers.training.data.squad import SquadDataArguments
from sublayers.training.trainers.arguments import FineTuningArguments, default

USAGE = "sublayers squad [SETTINGS.yaml] --model_name_or_path MODEL [--name value ...]"


@dataclass
class SquadArguments:
    """Flags for the model and the choice of answers."""

    _argument_group_name: ClassVar[str] = "model and answers"

    model_name_or_path: str | None = field(default=None, metadata={"help": "model to fine-tune or evaluate"})
    predictions_file: str | None = field(
        default=None, metadata={"help": "score these predictions ({id: answer}) for --validation_file, without a model"}
    )
    n_best_size: int = field(default=20, metadata={"help": "best answers to keep of each question"})
    max_answer_length: int = field(default=30, metadata={"help": "most tokens of an answer"})
    null_score_diff_threshold: float = field(
        default=0.0,
        metadata={"help": "predict no answer if its score exceeds the best answer's by more; with --version_2"},
    )


@dataclass
class SquadTrainingArguments(FineTuningArguments):
    """Arguments with BERT's defaults for SQuAD; train and evaluate by default."""

    output_dir: str = default("output_dir", "runs/squad")
    num_train_epochs: float = default("num_train_epochs", 2.0)
    per_device_train_batch_size: int = default("per_device_train_batch_size", 16)
    logging_steps: float = default("logging_steps", 0.01)
    metric_for_best_model: str | None = default("metric_for_best_model", "f1")

    def __post_init__(self):
        if not (self.do_train or self.do_eval):
            self.do_train = self.do_eval = True
        super().__post_init__()


FLAGS = (SquadArguments, SquadDataArguments, SquadTrainingArguments)
