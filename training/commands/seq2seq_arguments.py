"""What `sublayers seq2seq` can be asked for, known before the models, which take seconds to import."""

from dataclasses import dataclass, field
from math import ceil, inf
from typing import Any, ClassVar, Literal

import transformers

from sublayers.training.data.pairs import Seq2SeqDataArguments
from sublayers.training.trainers.arguments import FromScratchArguments, ModelArguments, default

USAGE = "sublayers seq2seq [RECIPE | SETTINGS.yaml] [--name value ...]"


@dataclass
class Seq2SeqArguments(ModelArguments):
    """Flags for what is trained, and how it writes."""

    _argument_group_name: ClassVar[str] = "task, model, tokenizers and generation"

    task: Literal["translation", "summarization", "code"] | None = field(
        default=None, metadata={"help": "decides on the metrics; default without data: code"}
    )
    language: Literal["python", "java"] = field(
        default="python", metadata={"help": "what the targets of --task code are written in"}
    )
    model_type: str = field(default="macaron_seq2seq", metadata={"help": "family of a new model, such as iot_seq2seq"})
    target_tokenizer_name_or_path: str | None = field(
        default=None, metadata={"help": "tokenizer of the targets, if it differs"}
    )
    separate_vocabularies: bool = field(
        default=False, metadata={"help": "train one tokenizer for sources and one for targets"}
    )
    source_prefix: str = field(default="", metadata={"help": "text before every source, as T5 was trained with"})
    max_tokens: int | None = field(
        default=None,
        metadata={
            "help": "tokens in a training batch of pairs of similar length, padding included, on its larger side; "
            "takes the place of --per_device_train_batch_size"
        },
    )
    average_checkpoints: int = field(
        default=1, metadata={"help": "the final model is the mean of this many last checkpoints"}
    )
    length_penalty: float | None = field(
        default=None, metadata={"help": "power of its length by which a beam's score is divided; a new model's: 1.0"}
    )


@dataclass
class Seq2SeqTrainerArguments(FromScratchArguments, transformers.Seq2SeqTrainingArguments):
    """The Trainer's arguments with the papers' defaults for translation; train and evaluate by default."""

    output_dir: str = default("output_dir", "runs/seq2seq")
    lr_scheduler_type: str = default("lr_scheduler_type", "inverse_sqrt")
    warmup_steps: float = default("warmup_steps", 0.1)
    weight_decay: float = default("weight_decay", 0.0)
    adam_beta2: float = default("adam_beta2", 0.98)
    label_smoothing_factor: float = default("label_smoothing_factor", 0.1)
    per_device_eval_batch_size: int = default("per_device_eval_batch_size", 32)
    # generation needs it, and with labels no model fills it
    use_cache: bool = default("use_cache", True)
    predict_with_generate: bool = field(
        default=True,
        metadata={"help": "write texts and score them; while training only if --metric_for_best_model is such a score"},
    )
    generation_max_length: int | None = field(
        default=None,
        metadata={
            "help": "most tokens of a text and the one that starts it; default: the model's, or --max_target_length + 1"
        },
    )
    generation_num_beams: int | None = field(
        default=None, metadata={"help": "default: the model's, for a new model 5", "aliases": ["--num_beams"]}
    )

    def __post_init__(self):
        only_predict = self.do_predict and not (self.do_train or self.do_eval)
        if only_predict:
            self.eval_strategy = "no"
        super().__post_init__()
        if only_predict:
            self.do_train = self.do_eval = False

    @property
    def generates_in_training(self) -> bool:
        """Whether the evaluations of a run need generated texts, which take long."""
        best = self.metric_for_best_model
        return self.predict_with_generate and best is not None and best.removeprefix("eval_") != "loss"


FLAGS = (Seq2SeqArguments, Seq2SeqDataArguments, Seq2SeqTrainerArguments)


def check_arguments(
    run: Seq2SeqArguments, config: dict[str, Any], data: Seq2SeqDataArguments, args: Seq2SeqTrainerArguments
) -> None:
    """Check that the flags go together, and choose a task where there are no data.

    Raises:
        ValueError: they do not.
    """
    has_data = bool(data.dataset_name or data.train_file or data.validation_file or data.test_file)
    if run.task is None and has_data:
        raise ValueError("the metrics depend on the task; give --task translation, summarization or code")
    run.task = run.task or "code"
    if not has_data and (run.task, run.language) != ("code", "python"):
        what = f"--task {run.task}" if run.task != "code" else f"--language {run.language}"
        raise ValueError(f"there are no data for {what}; give --train_file or --dataset_name")
    for flags, name, least in (
        (run, "average_checkpoints", 1),
        (run, "max_tokens", max(data.max_source_length, data.max_target_length)),
        (args, "generation_num_beams", 1),
        (args, "generation_max_length", 2),
    ):
        value = getattr(flags, name)
        if value is not None and value < least:
            raise ValueError(f"--{name}={value} should be at least {least}")
    if not args.do_train and not run.model_name_or_path:
        raise ValueError("there is no model to evaluate; give --model_name_or_path")
    own = (run.tokenizer_name_or_path, run.target_tokenizer_name_or_path)
    if run.model_name_or_path is None and own[0] is None and own[1] is not None:
        raise ValueError(
            "--target_tokenizer_name_or_path needs that of the sources; give --tokenizer_name_or_path, too"
        )
    if run.separate_vocabularies and (run.model_name_or_path or any(own)):
        raise ValueError(
            "--separate_vocabularies trains two tokenizers for a new model; leave it out with a model or tokenizer"
        )
    if (run.separate_vocabularies or own[1]) and config.get("share_encoder_decoder_embeddings"):
        raise ValueError("two vocabularies cannot share embeddings; leave --share_encoder_decoder_embeddings out")
    if run.average_checkpoints > 1:
        if args.load_best_model_at_end:
            raise ValueError("--average_checkpoints and --load_best_model_at_end exclude each other; give one of them")
        if (saves := _count_saves(args)) < run.average_checkpoints:
            raise ValueError(
                f"there will be {saves} checkpoints, fewer than --average_checkpoints {run.average_checkpoints}; "
                "give it or --save_steps a smaller number"
            )
        if args.save_total_limit is not None:
            args.save_total_limit = max(args.save_total_limit, run.average_checkpoints)


def _count_saves(args: Seq2SeqTrainerArguments) -> float:
    # as far as it is known before the data are
    if not args.do_train or args.save_strategy == "no":
        return 0
    if args.save_strategy == "epoch" and args.max_steps < 1:
        return ceil(args.num_train_epochs)
    if args.save_strategy == "steps" and args.save_steps < 1:
        return ceil(1 / args.save_steps)
    return ceil(args.max_steps / args.save_steps) if args.save_strategy == "steps" and args.max_steps > 0 else inf
