"""`sublayers seq2seq`: train, evaluate and use encoder-decoders for translation, summaries and code from docstrings."""

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from transformers import PreTrainedConfig

from sublayers.auto_configurations import CONFIGURATION_CLASSES
from sublayers.families import FAMILIES
from sublayers.training.data.pairs import PairTokenizerModel, Seq2SeqDataArguments, check_tokenized
from sublayers.training.flags import config_flags, deciding_flags, expand_settings_file, flag, given_flags, parse_flags
from sublayers.training.trainers.arguments import ModelArguments, Seq2SeqTrainerArguments

if TYPE_CHECKING:
    from sublayers.training.trainers.pair_trainer import PairTrainer

USAGE = "sublayers seq2seq [RECIPE | SETTINGS.yaml] [--name value ...]"
# printed at the end, as far as the task has them
TEXT_SCORES = ("loss", "bleu", "tokenized_bleu", "sentence_bleu", "valid_code", "rouge1", "rouge2", "rougeL")
ENCODER_DECODERS = {
    model_type: CONFIGURATION_CLASSES[model_type]
    for model_type, family in FAMILIES.items()
    if "AutoModelForSeq2SeqLM" in family.models
}
# fields of a configuration that follow from the tokenizers, or from a flag of the Trainer
DECIDED = ("encoder_vocab_size", "label_smoothing")


@dataclass
class Seq2SeqArguments(ModelArguments):
    """Flags for what is trained, and how it writes."""

    _argument_group_name: ClassVar[str] = "task, model, tokenizers and generation"

    task: Literal["translation", "summarization", "code"] | None = flag(
        "decides on the metrics; default without data: code"
    )
    language: Literal["python", "java"] = flag("what the targets of --task code are written in", "python")
    model_type: str = flag("family of a new model, such as iot_seq2seq", "macaron_seq2seq")
    target_tokenizer_name_or_path: str | None = flag("tokenizer of the targets, if it differs")
    tokenizer_model: PairTokenizerModel = flag("kind of tokenizer to train: byte-level BPE, or whole words", "bpe")
    separate_vocabularies: bool = flag("train one tokenizer for sources and one for targets", False)
    target_vocab_size: int | None = flag("with --separate_vocabularies; default: --vocab_size")
    source_prefix: str = flag("text before every source, as T5 was trained with", "")
    max_tokens: int | None = flag(
        "tokens in a training batch of pairs of similar length, padding included, on its larger side; "
        "takes the place of --per_device_train_batch_size",
    )
    average_checkpoints: int = flag("the final model is the mean of this many last checkpoints", 1)
    length_penalty: float | None = flag("power of its length by which a beam's score is divided; a new model's: 1.0")


FLAGS = (Seq2SeqArguments, Seq2SeqDataArguments, Seq2SeqTrainerArguments)


def main(argv: list[str]) -> dict[str, Any]:
    """Train an encoder-decoder, evaluate it on validation and test data, and leave everything in a folder.

    That is the model with its tokenizers, metrics, loss curve, and `predictions_validation.jsonl` and
    `predictions_test.jsonl` with what it wrote for each pair.

    Args:
        argv: flags, after an optional recipe, .yaml or .json file with the same names; see `sublayers seq2seq --help`.

    Returns:
        Metrics of training, such as `train_loss`; those of the validation data, `eval_loss` in nats per token and with
        `eval_` before their names those of `task_metrics`; and those of the test data with `test_`.

    Raises:
        FileExistsError: the output folder is not empty and the run does not resume.
        FileNotFoundError: there is no such file.
        ValueError: bad flags, or data that cannot be read.
    """
    run, model_flags, data_args, args = parse(argv)
    # models and Trainers take seconds to import, for which --help does not wait
    from sublayers.training.trainers.run import run as run_training

    languages = [code for code in (data_args.source, data_args.target) if re.fullmatch("[a-z]{2,3}", code or "")]
    metrics = run_training(
        args,
        partial(make_trainer, run, model_flags, data_args, args),
        TEXT_SCORES,
        data_args,
        {"name": "functions of Python's standard library"},
        [run, model_flags],
        command=["seq2seq", *argv],
        started_from=run.model_name_or_path,
        # the Hub has no task for code
        task=None if run.task == "code" else run.task,
        languages=languages or None,
    )
    signature = metrics.get("test_bleu_signature", metrics.get("eval_bleu_signature"))
    if signature and args.process_index == 0:
        print(f"sacreBLEU {signature}")
    return metrics


def make_config(
    run: Seq2SeqArguments, model_flags: dict[str, Any], data_args: Seq2SeqDataArguments
) -> PreTrainedConfig:
    """Make the configuration of the model that is trained. Raises what `load_config` raises."""
    from sublayers.training.trainers.start import load_config

    longest = max(data_args.max_source_length, data_args.max_target_length)
    family = ENCODER_DECODERS[run.model_type]
    return load_config(run.model_name_or_path, family, model_flags, max_position_embeddings=longest)


def make_trainer(
    run: Seq2SeqArguments, model_flags: dict[str, Any], data_args: Seq2SeqDataArguments, *others: Any, **options: Any
) -> "PairTrainer":
    """Make the Trainer of what `parse` returns; see `make_trainer` of `trainers.translation`."""
    from sublayers.training.trainers import translation

    # whatever can be wrong with the flags is said before the first file is written
    config = make_config(run, model_flags, data_args)
    if not config.is_encoder_decoder:
        raise ValueError(f"{run.model_name_or_path} is a {config.model_type}, no encoder-decoder; give another model")
    return translation.make_trainer(config, model_flags, run, data_args, *others, **options)


def parse(argv: list[str]) -> tuple[Seq2SeqArguments, dict[str, Any], Seq2SeqDataArguments, Seq2SeqTrainerArguments]:
    """Read the command's flags, after an optional recipe or settings file.

    Raises:
        ValueError: unknown flags, flags that do not go together.
    """
    argv = expand_settings_file(argv, "seq2seq")
    model_type = deciding_flags(argv, model_type=ENCODER_DECODERS).get("model_type", Seq2SeqArguments.model_type)
    model_flags = config_flags(ENCODER_DECODERS[model_type], Seq2SeqArguments, DECIDED)
    run, data, args, config = parse_flags(argv, [*FLAGS, model_flags], USAGE)
    flags = given_flags(config)
    check_arguments(run, flags, data, args)
    return run, flags, data, args


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
    check_tokenized(data, run.task)
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
    if run.target_vocab_size and not run.separate_vocabularies:
        raise ValueError("--target_vocab_size is that of a tokenizer of the targets; give --separate_vocabularies, too")
    if (run.separate_vocabularies or own[1]) and config.get("share_encoder_decoder_embeddings"):
        raise ValueError("two vocabularies cannot share embeddings; leave --share_encoder_decoder_embeddings out")
    if run.average_checkpoints > 1:
        if args.load_best_model_at_end:
            raise ValueError("--average_checkpoints and --load_best_model_at_end exclude each other; give one of them")
        if (saves := args.number_of_saves) < run.average_checkpoints:
            raise ValueError(
                f"there will be {saves} checkpoints, fewer than --average_checkpoints {run.average_checkpoints}; "
                "give it or --save_steps a smaller number"
            )
        if args.save_total_limit is not None:
            args.save_total_limit = max(args.save_total_limit, run.average_checkpoints)
