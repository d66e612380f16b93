"""What `sublayers distill` can be asked for, known before the models, which take seconds to import."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from sublayers.training.data.corpus import CorpusArguments
from sublayers.training.trainers.arguments import FromScratchArguments, default

USAGE = "sublayers distill TEACHER [SETTINGS.yaml] --sublayer_order ORDER [--name value ...]"


@dataclass
class DistillArguments:
    """Flags for what a student is, and what it learns of its teacher."""

    _argument_group_name: ClassVar[str] = "student and objective"

    sublayer_order: str = field(metadata={"help": "order of the student, such as s6f6"})
    objective: Literal["embeddings", "states", "logits", "words", "relations"] = field(
        default="embeddings",
        metadata={
            "help": "what it learns: embeddings of sentences; states of their tokens behind the last sublayer; "
            "logits of a classifier; masked words of a masked language model; relations of tokens in the last "
            "self-attention (MiniLMv2), after which nothing learns"
        },
    )
    pooling: Literal["mean", "cls"] | None = field(
        default=None,
        metadata={
            "help": "pooling of the student; with cls, what follows the last attention runs for the first token only; "
            "default: the teacher's"
        },
    )
    layers: list[int] | None = field(
        default=None,
        metadata={"help": "the teacher's layers that the student keeps, from 0; default: first, last and some between"},
    )
    moves_every: int = field(
        default=0,
        metadata={
            "help": "start in the teacher's order, and swap two neighbours each time after this many steps; 0: start "
            "in the student's order"
        },
    )
    hidden_size: int | None = field(
        default=None, metadata={"help": "for a student with random weights; default: the teacher's sizes and weights"}
    )
    intermediate_size: int | None = field(default=None, metadata={"help": "as --hidden_size"})
    num_attention_heads: int | None = field(default=None, metadata={"help": "as --hidden_size"})
    temperature: float = field(default=2.0, metadata={"help": "of the probabilities in --objective logits or words"})
    relation_heads: int = field(
        default=12,
        metadata={"help": "for --objective relations; must divide both hidden sizes, not equal the numbers of heads"},
    )
    whole_rows: bool = field(
        default=False, metadata={"help": "read documents (lines of a .txt) as they are, not sentence by sentence"}
    )
    max_length: int = field(default=128, metadata={"help": "tokens of a text; what is longer is cut"})
    answers: str | None = field(
        default=None,
        metadata={"help": "folder for the teacher's answers, for many students; default: one in --output_dir"},
    )
    max_train_samples: int | None = field(
        default=None, metadata={"help": "use the first documents only (lines of a .txt)"}
    )
    max_eval_samples: int | None = field(default=None, metadata={"help": "as --max_train_samples"})


@dataclass
class DistillTrainingArguments(FromScratchArguments):
    """The Trainer's arguments for a student; train and evaluate by default, without training keep it as it starts."""

    output_dir: str = default("output_dir", "runs/distill")
    per_device_train_batch_size: int = default("per_device_train_batch_size", 32)
    per_device_eval_batch_size: int = default("per_device_eval_batch_size", 32)
    learning_rate: float = default("learning_rate", 1e-4)
    weight_decay: float = default("weight_decay", 0.01)

    def __post_init__(self):
        # the answers are no argument of a model; their counts are what a mean needs to know
        self.remove_unused_columns, self.label_names = False, ["counts"]
        super().__post_init__()


FLAGS = (DistillArguments, CorpusArguments, DistillTrainingArguments)
