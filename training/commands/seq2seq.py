"""`sublayers seq2seq`: train, evaluate and use encoder-decoders for translation, summaries and code from docstrings."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import transformers
from datasets import Dataset
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, set_seed

from sublayers.auto_configurations import CONFIGURATION_CLASSES
from sublayers.configuration.configuration_iot_seq2seq import IOTSeq2SeqConfig
from sublayers.configuration.configuration_reordered_seq2seq import TARGET_TOKENIZER
from sublayers.families import FAMILIES
from sublayers.training.data.pairs import (
    Seq2SeqDataArguments,
    load_pairs,
    pairs_used,
    tokenize_pairs,
    train_pair_tokenizers,
)
from sublayers.training.flags import config_flags, deciding_flags, expand_settings_file, flag, given_flags, parse_flags
from sublayers.training.trainers.arguments import FromScratchArguments, ModelArguments, default

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
    separate_vocabularies: bool = flag("train one tokenizer for sources and one for targets", False)
    source_prefix: str = flag("text before every source, as T5 was trained with", "")
    max_tokens: int | None = flag(
        "tokens in a training batch of pairs of similar length, padding included, on its larger side; "
        "takes the place of --per_device_train_batch_size",
    )
    average_checkpoints: int = flag("the final model is the mean of this many last checkpoints", 1)
    length_penalty: float | None = flag("power of its length by which a beam's score is divided; a new model's: 1.0")


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
    run: Seq2SeqArguments,
    model_flags: dict[str, Any],
    data_args: Seq2SeqDataArguments,
    args: Seq2SeqTrainerArguments,
    checkpoint: str | None = None,
    trainer_class: Callable[..., Any] | None = None,
) -> "PairTrainer":
    """Read pairs and tokenizers or train them, and make the Trainer of what `parse` returns.

    The run goes on from a checkpoint, if any. `trainer_class` makes another Trainer of a model that does not choose
    among orders.

    Raises:
        ValueError: flags that do not go together, or data that cannot be read.
    """
    from transformers import AutoTokenizer, DataCollatorForSeq2Seq

    from sublayers.hub.loading import load
    from sublayers.training.metrics.seq2seq import task_metrics
    from sublayers.training.trainers.order_trainer import OrderTrainer
    from sublayers.training.trainers.pair_trainer import PairTrainer, Scorer, save_tokenizers
    from sublayers.training.trainers.start import check_positions, check_unchanged, find_tokenizer

    # whatever can be wrong with the flags is said before the first file is written
    config = make_config(run, model_flags, data_args)
    if not config.is_encoder_decoder:
        raise ValueError(f"{run.model_name_or_path} is a {config.model_type}, no encoder-decoder; give another model")
    check_positions(config, data_args, "max_source_length", "max_target_length")
    # the last token is not read
    check_positions(config, args, "generation_max_length", unread=1)
    if checkpoint:
        check_unchanged(config, model_flags, checkpoint)
    with args.main_process_first(local=False, desc="reading and tokenizing the pairs"):
        pairs = _load_splits(run, data_args, args)

        def train_into(folder: str) -> None:
            joint = not run.separate_vocabularies
            trained = train_pair_tokenizers(pairs["train"], run.vocab_size, joint, data_args.lowercase)
            save_tokenizers(list(dict.fromkeys(trained)), folder, config)

        source = find_tokenizer(run, args, checkpoint, train_into)
        # one tokenizer for both sides, or one for sources and one for targets
        tokenizers = [load(AutoTokenizer, source)]
        if run.target_tokenizer_name_or_path:
            tokenizers.append(load(AutoTokenizer, run.target_tokenizer_name_or_path))
        elif run.separate_vocabularies or getattr(config, "encoder_vocab_size", None):
            tokenizers.append(load(AutoTokenizer, source, subfolder=TARGET_TOKENIZER))
        encoded = {
            split: tokenize_pairs(
                rows,
                tokenizers[0],
                tokenizers[-1],
                data_args.max_source_length,
                data_args.max_target_length,
                drop_long=split == "train",
                desc=split,
            )
            for split, rows in pairs.items()
        }
    set_seed(args.seed)
    model = _load_model(run, config, tokenizers)
    _set_generation(model, run, data_args, args)
    if model.config.model_type in ENCODER_DECODERS:
        # the model's own smoothing is exact where gradients are accumulated
        model.config.label_smoothing, args.label_smoothing_factor = args.label_smoothing_factor, 0.0

    def score(predictions: list[str], references: list[str]) -> dict[str, float | str]:
        return task_metrics(str(run.task), predictions, references, run.language, data_args.target)

    scorers = {
        split: Scorer(rows, encoded[split], tokenizers[-1], score) for split, rows in pairs.items() if split != "train"
    }
    if isinstance(model.config, IOTSeq2SeqConfig) and len(model.config.paths) > 1:
        trainer_class = OrderTrainer
    trainer = (trainer_class or PairTrainer)(
        tokenizers,
        run.max_tokens,
        scorers,
        run.average_checkpoints,
        model=model,
        args=args,
        train_dataset=encoded.get("train"),
        eval_dataset=scorers["validation"].rows if args.do_eval else None,
        compute_metrics=scorers["validation"] if args.do_eval and args.generates_in_training else None,
        data_collator=DataCollatorForSeq2Seq(tokenizers[0], model=model),
    )
    trainer.about["used"] = {split: pairs_used(split, rows, data_args) for split, rows in pairs.items()}
    if run.max_tokens:
        batches = args.gradient_accumulation_steps * args.world_size
        trainer.about["settings"] = {"batch size": f"{run.max_tokens * batches} tokens"}
    return trainer


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


def _load_splits(
    run: Seq2SeqArguments, data: Seq2SeqDataArguments, args: Seq2SeqTrainerArguments
) -> dict[str, Dataset]:
    pairs = load_pairs(data)
    # a run that trains and evaluates also predicts test data where there are any
    args.do_predict = args.do_predict or (args.do_train and args.do_eval and "test" in pairs)
    wanted = {"train": args.do_train, "validation": args.do_eval, "test": args.do_predict}
    for split, is_wanted in wanted.items():
        if is_wanted and split not in pairs:
            raise ValueError(
                f"there are no {split} data; give --{split}_file, or choose among --do_train, --do_eval, --do_predict"
            )
    chosen = {split: rows for split, rows in pairs.items() if wanted[split]}
    if run.source_prefix:
        chosen = {
            split: rows.map(lambda row: {"source": run.source_prefix + row["source"]}, desc=f"prefixes, {split}")
            for split, rows in chosen.items()
        }
    return chosen


def _load_model(run: Seq2SeqArguments, config: PreTrainedConfig, tokenizers: list[PreTrainedTokenizerBase]) -> Any:
    from transformers import AutoModelForSeq2SeqLM

    from sublayers.hub.loading import load
    from sublayers.training.trainers.start import check_vocabulary, new_model

    source, target = tokenizers[0], tokenizers[-1]
    if run.model_name_or_path is None:
        if source is not target:
            config.encoder_vocab_size, config.share_encoder_decoder_embeddings = len(source), False
        config.decoder_start_token_id = target.eos_token_id
        return new_model(AutoModelForSeq2SeqLM, config, target)
    model = load(AutoModelForSeq2SeqLM, run.model_name_or_path, config=config)
    for tokenizer, table in ((source, model.get_input_embeddings()), (target, model.get_output_embeddings())):
        check_vocabulary(tokenizer, len(table.weight))
    return model


def _set_generation(
    model: Any, run: Seq2SeqArguments, data: Seq2SeqDataArguments, args: Seq2SeqTrainerArguments
) -> None:
    from transformers import GenerationConfig

    from sublayers.training.trainers.pair_trainer import PairTrainer

    chosen = model.generation_config
    if args.generation_config:
        # the Trainer would prefer this file to the flags
        chosen, args.generation_config = PairTrainer.load_generation_config(str(args.generation_config)), None
    settings = {"num_beams": 5, "length_penalty": 1.0} if run.model_name_or_path is None else {}
    if chosen.max_length is None:
        settings["max_length"] = (chosen.max_new_tokens or data.max_target_length) + 1
    given = {
        "num_beams": args.generation_num_beams,
        "length_penalty": run.length_penalty,
        "max_length": args.generation_max_length,
    }
    settings |= {name: value for name, value in given.items() if value is not None}
    # the Trainer counts in all tokens; what it saves counts in new ones
    settings["max_new_tokens"] = None
    # transformers overrides a generation config that is derived from the model's configuration
    model.generation_config = GenerationConfig.from_dict({**chosen.to_dict(), **settings, "_from_model_config": False})


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
    # the count is unknown where it depends on the size of the data
    if not args.do_train or args.save_strategy == "no":
        return 0
    if args.save_strategy == "epoch" and args.max_steps < 1:
        return ceil(args.num_train_epochs)
    if args.save_strategy == "steps" and args.save_steps < 1:
        return ceil(1 / args.save_steps)
    return ceil(args.max_steps / args.save_steps) if args.save_strategy == "steps" and args.max_steps > 0 else inf
