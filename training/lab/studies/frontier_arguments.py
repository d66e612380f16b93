"""What `sublayers study frontier` can be asked for, known before the models, which take seconds to import."""

from dataclasses import dataclass, field
from typing import ClassVar

from sublayers.training.data.corpus import CorpusArguments

USAGE = (
    "sublayers study frontier TEACHER [SETTINGS.yaml] --students ORDER ['ORDER --flag value' ...] [--name value ...]"
)


@dataclass
class FrontierArguments:
    """Flags for the students, how they learn, and what they are tested on."""

    _argument_group_name: ClassVar[str] = "students and tests"

    students: list[str] = field(
        metadata={
            "help": "an order each, and flags of its own, such as '(sf)2 --layers 0 1' or '(sf)6 --hidden_size 192'"
        }
    )
    output_dir: str = field(default="runs/frontier", metadata={"help": "what is finished in it is not run again"})
    seeds: list[int] = field(default_factory=lambda: [0], metadata={"help": "one distillation each"})
    distill_flags: str = field(default="", metadata={"help": "recipe and flags of sublayers distill, in one text"})
    sts_file: str | None = field(
        default=None, metadata={"help": "rows with sentence1, sentence2 and label, such as the test data of STS-B"}
    )
    squad_file: str | None = field(
        default=None, metadata={"help": "for each of its questions, the paragraph is searched among all"}
    )
    max_questions: int = field(default=1000, metadata={"help": "questions of --squad_file that are asked"})
    glue_dir: str | None = field(default=None, metadata={"help": "folder with one for each task, as sublayers glue's"})
    glue_tasks: list[str] = field(default_factory=list, metadata={"help": "tasks to fine-tune students on"})
    glue_students: list[str] = field(
        default_factory=list, metadata={"help": "students to fine-tune; default: all, and the teacher"}
    )
    glue_seeds: list[int] = field(
        default_factory=lambda: [0, 1, 2, 3, 4],
        metadata={"help": "one fine-tuning each, of the student of the first seed"},
    )
    glue_flags: str = field(default="", metadata={"help": "flags of sublayers glue"})
    batch_sizes: list[int] = field(default_factory=lambda: [1, 32], metadata={"help": "texts that are encoded at once"})
    timed_texts: int = field(default=64, metadata={"help": "texts that are timed in one round"})
    rounds: int = field(default=9, metadata={"help": "rounds of timing all encoders in turn"})


FLAGS = (FrontierArguments, CorpusArguments)
