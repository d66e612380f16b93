"""`sublayers distill`: teach a cheaper order of sublayers what a trained encoder or classifier answers."""

import os
from dataclasses import MISSING, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from accelerate.utils import parse_flag_from_env

from sublayers.configuration.order import Order
from sublayers.training.data.corpus import STANDARD_LIBRARY, CorpusArguments
from sublayers.training.flags import flag, parse_flags
from sublayers.training.trainers.arguments import FromScratchArguments, default

if TYPE_CHECKING:
    from sublayers.training.distill.trainer import DistillTrainer

USAGE = "sublayers distill TEACHER [SETTINGS.yaml] --sublayer_order ORDER [--name value ...]"
SCORES = ("loss", "cosine", "agreement", "next_loss", "sts", "teacher_sts", "retrieval", "teacher_retrieval")
SIZES = ("hidden_size", "intermediate_size", "num_attention_heads")


@dataclass
class DistillArguments:
    """Flags for what a student is, and what it learns of its teacher."""

    _argument_group_name: ClassVar[str] = "student and objective"

    teacher: str = flag("folder or repository of the teacher", MISSING, positional=True)
    sublayer_order: str | None = flag("order of the student, such as s6f6")
    sublayers: list[str] | None = flag(
        "the teacher's sublayers that the student keeps, in the place of an order, such as s0 f0 f4 s5 f5"
    )
    student: str | None = flag(
        "folder of a student to go on with, in the place of an order, such as one of sublayers prune"
    )
    objective: Literal["embeddings", "states", "logits", "words", "relations", "next"] = flag(
        "what it learns: embeddings of sentences; states of their tokens after the last sublayer; "
        "logits of a classifier; masked words of a masked language model; relations of tokens in the last "
        "self-attention (MiniLMv2), after which nothing learns; next tokens of a language model",
        "embeddings",
    )
    pooling: Literal["mean", "cls"] | None = flag(
        "pooling of the student; with cls, what follows the last attention runs for the first token only; "
        "default: the teacher's",
    )
    tail_query: Literal["first", "mean"] | None = flag(
        "what the student reads in the tail of its order: the first token, or the mean of all where the tail begins; "
        "mean comes with --pooling cls; default: as the teacher",
    )
    layers: list[int] | None = flag(
        "the teacher's layers that the student keeps, from 0; default: first, last and some between"
    )
    moves_every: int = flag(
        "start in the teacher's order, and swap two neighbours each time after this many steps; 0: start "
        "in the student's order",
        0,
    )
    hidden_size: int | None = flag("for a student with random weights; default: the teacher's sizes and weights")
    intermediate_size: int | list[int] | None = flag("as --hidden_size; also one for each f")
    num_attention_heads: int | None = flag("as --hidden_size")
    dropout: float | None = flag(
        "of the student; 0 is better where each text is read once; default: the teacher's, or --student's"
    )
    temperature: float = flag("of the probabilities in --objective logits, words or next", 2.0)
    relation_heads: int = flag(
        "for --objective relations; must divide both hidden sizes, not equal the numbers of heads", 12
    )
    whole_rows: bool = flag("read documents (lines of a .txt) as they are, not sentence by sentence", False)
    max_length: int = flag("tokens of a text; what is longer is cut", 128)
    answers: str | None = flag("folder for the teacher's answers, for many students; default: one in --output_dir")
    only_answers: bool = flag(
        "ask the teacher for all texts and train nothing; any number of processes may do so for the same --answers",
        False,
    )
    sts_file: str | None = flag(
        "test embeddings on rows with sentence1, sentence2 and label, such as the test data of STS-B"
    )
    squad_file: str | None = flag(
        "test embeddings on SQuAD: for each of 1,000 questions, the paragraph is searched among all"
    )
    max_train_samples: int | None = flag("use the first documents only (lines of a .txt)")
    max_eval_samples: int | None = flag("as --max_train_samples")


@dataclass
class DistillTrainingArguments(FromScratchArguments):
    """The Trainer's arguments for a student; train and evaluate by default, without training keep it as it starts."""

    output_dir: str = default("output_dir", "runs/distill")
    per_device_train_batch_size: int = default("per_device_train_batch_size", 32)
    per_device_eval_batch_size: int = default("per_device_eval_batch_size", 32)
    learning_rate: float = default("learning_rate", 1e-4)
    weight_decay: float = default("weight_decay", 0.01)
    # nothing reads a body's pooler, nor what follows the relations of tokens
    ddp_find_unused_parameters: bool | None = default("ddp_find_unused_parameters", True)

    def __post_init__(self):
        # answers are not arguments of the model, and means are weighted by their counts
        self.remove_unused_columns, self.label_names = False, ["counts"]
        # each process reads a stream, takes its part of each batch, and pads it
        self.accelerator_config = self.accelerator_config or {"dispatch_batches": False}
        super().__post_init__()

    @property
    def shards(self) -> bool:
        """Whether processes share the weights of teacher and student, as FSDP2 does."""
        return bool(self.fsdp) or parse_flag_from_env("ACCELERATE_USE_FSDP")


FLAGS = (DistillArguments, CorpusArguments, DistillTrainingArguments)


def main(argv: list[str]) -> dict[str, float]:
    """Train and evaluate a student, and leave it in a folder that opens as its teacher's does.

    Args:
        argv: the teacher's folder or repository, then flags, after an optional .yaml or .json file with the same names;
            see `sublayers distill --help`.

    Returns:
        The metrics of training and of the last evaluation: the loss, and the mean cosine of both embeddings of a text
        or states of a token, or the share of texts or masked words for which both have the same label or word; of the
        tests, the scores of student and teacher. There are none with `--only_answers`.

    Raises:
        FileExistsError: the output folder is not empty and the run does not resume.
        OSError: there is no such teacher, or no room for its answers.
        ValueError: bad flags; a teacher, order or layers that do not go together; a text without sentences; answers
            that are kept of another teacher or text; fewer steps than the moves take.
    """
    run, corpus_args, args = parse(argv)
    # these imports take seconds, for which --help does not wait
    from sublayers.training.distill.making import make_answers
    from sublayers.training.trainers.run import run as run_training

    if run.only_answers:
        make_answers(run, corpus_args, args)
        return {}
    return run_training(
        args,
        partial(make_trainer, run, corpus_args, args),
        SCORES,
        corpus_args,
        {"name": STANDARD_LIBRARY},
        [run],
        unit="loss",
        command=["distill", *argv],
        started_from=run.teacher,
    )


def parse(argv: list[str]) -> tuple[DistillArguments, CorpusArguments, DistillTrainingArguments]:
    """Read the command's flags, after the teacher and an optional settings file, or raise a ValueError."""
    run, corpus_args, args = parse_flags(argv, FLAGS, USAGE, "distill")
    if run.only_answers and not run.answers:
        raise ValueError("answers without a student need a folder; name one with --answers")
    if run.sublayer_order is not None:
        Order(run.sublayer_order)
    elif not (run.sublayers or run.student or run.only_answers):
        raise ValueError("a student needs an order; give --sublayer_order, --sublayers of the teacher, or --student")
    if run.sublayers and (run.layers is not None or run.moves_every or any(getattr(run, name) for name in SIZES)):
        raise ValueError("--sublayers are the teacher's, in its order and sizes; leave layers, moves and sizes out")
    made = ("sublayer_order", "sublayers", "layers", "moves_every", *SIZES)
    if run.student and (given := [name for name in made if getattr(run, name)]):
        raise ValueError(f"the student in {run.student} has its sublayers; leave --{given[0]} out")
    if run.objective == "next" and not (run.sublayers or run.student or run.only_answers):
        raise ValueError("a language model is made of its teacher's sublayers; give --sublayers or --student")
    if corpus_args.streaming and run.only_answers:
        raise ValueError("the answers to a stream are not kept; leave --streaming or --only_answers out")
    if corpus_args.streaming and args.do_train and args.max_steps < 1:
        raise ValueError("a stream has no length; give --max_steps with --streaming")
    if run.moves_every < 0:
        raise ValueError(f"--moves_every {run.moves_every} is no number of steps; give 0 or more")
    if run.pooling and run.objective != "embeddings":
        raise ValueError(f"a student that learns {run.objective} does not pool; leave --pooling {run.pooling} out")
    if (test := run.sts_file or run.squad_file) and run.objective != "embeddings":
        raise ValueError(f"a student that learns {run.objective} is not tested by its embeddings; leave {test} out")
    if run.tail_query and run.objective not in ("embeddings", "logits"):
        raise ValueError(f"{run.objective} are learned of every token; leave --tail_query {run.tail_query} out")
    if run.tail_query == "mean" and run.objective == "embeddings":
        if run.pooling == "mean":
            raise ValueError("--tail_query mean and --pooling mean take the mean twice; leave one of them out")
        # one state leaves the tail
        run.pooling = "cls"
    if run.temperature <= 0:
        raise ValueError(f"--temperature {run.temperature} is not positive; give a larger one")
    if run.dropout is not None and not 0 <= run.dropout < 1:
        raise ValueError(f"--dropout {run.dropout:g} is no share of what is dropped; give 0 or more, and less than 1")
    if args.n_gpu > 1:
        raise ValueError(
            f"a process trains on one GPU, not on {args.n_gpu}; start one for each with accelerate launch or torchrun"
        )
    plugin = args.fsdp_plugin_args or {"fsdp_version": os.environ.get("FSDP_VERSION", "1")}
    if args.shards and int(plugin["fsdp_version"]) != 2:
        raise ValueError("FSDP1 cannot shard both models; give accelerate launch --fsdp_version 2")
    if args.shards and not run.only_answers and not args.do_train:
        raise ValueError("Accelerate shards only what it trains; leave --fsdp out, or give --do_train")
    if args.shards and not run.only_answers and run.objective == "relations":
        raise ValueError("relations are inside of a layer, whose weights FSDP frees; leave --fsdp out")
    if args.dataloader_num_workers:
        raise ValueError("the teacher answers in the process that trains; leave --dataloader_num_workers out")
    return run, corpus_args, args


def make_trainer(*parsed: Any) -> "DistillTrainer":
    """Make the Trainer of what `parse` returns and a checkpoint; see `make_trainer` of `distill.making`."""
    from sublayers.training.distill import making

    return making.make_trainer(*parsed)
