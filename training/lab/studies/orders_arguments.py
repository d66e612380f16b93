"""What `sublayers study orders` can be asked for, known before the models, which take seconds to import."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from sublayers.training.data.pairs import Seq2SeqDataArguments

USAGE = "sublayers study orders [SETTINGS.yaml] --model_name_or_path RUN [RUN ...] --task TASK [--name value ...]"


@dataclass
class StudyOrdersArguments:
    """Flags for the models, how they write, and what is studied besides."""

    _argument_group_name: ClassVar[str] = "models, task and generation"

    model_name_or_path: list[str] = field(metadata={"help": "folders that sublayers seq2seq left"})
    task: Literal["translation", "summarization", "code"] = field(metadata={"help": "decides on the metrics"})
    language: Literal["python", "java"] = field(default="python", metadata={"help": "of the targets of --task code"})
    split: Literal["validation", "test"] = field(default="validation", metadata={"help": "which pairs are written"})
    output_dir: str = field(default="runs/study-orders", metadata={"help": "new or empty folder"})
    orders: list[str] | None = field(
        default=None, metadata={"help": "decoder orders to force on a model that has only one, such as fsc csf"}
    )
    ensemble: bool = field(default=False, metadata={"help": "let the first model, the first two, ... write together"})
    checkpoints: bool = field(default=False, metadata={"help": "score every checkpoint in the models' folders, too"})
    batch_size: int = field(default=32, metadata={"help": "sources that are decoded at once"})
    num_beams: int | None = field(default=None, metadata={"help": "default: the model's"})
    length_penalty: float | None = field(default=None, metadata={"help": "default: the model's"})
    max_length: int | None = field(default=None, metadata={"help": "most tokens of a text; default: the model's"})


FLAGS = (StudyOrdersArguments, Seq2SeqDataArguments)
