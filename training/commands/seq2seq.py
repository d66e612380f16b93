"""`sublayers seq2seq`: train, evaluate and use encoder-decoders for translation, summaries and code from docstrings."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from sublayers import IOTSeq2SeqConfig
from sublayers.auto_models import families
from sublayers.configuration.configuration_reordered_seq2seq import TARGET_TOKENIZER
from sublayers.hub.loading import load
from sublayers.training.commands.seq2seq_arguments import (
    FLAGS,
    USAGE,
    Seq2SeqArguments,
    Seq2SeqTrainerArguments,
    check_arguments,
)
from sublayers.training.data.pairs import Seq2SeqDataArguments, load_pairs, tokenize_pairs, train_pair_tokenizers
from sublayers.training.flags import config_flags, deciding_flags, expand_settings_file, given_flags, parse_flags
from sublayers.training.folders import claim
from sublayers.training.metrics.seq2seq import task_metrics
from sublayers.training.trainers.average import average_checkpoints
from sublayers.training.trainers.loss_curve import save_loss_curve
from sublayers.training.trainers.order_trainer import OrderTrainer
from sublayers.training.trainers.pair_trainer import PairTrainer, Scorer, save_tokenizers
from sublayers.training.trainers.publish import PREFIXES, describe_data, finish
from sublayers.training.trainers.resume import checkpoints, find_checkpoint, find_fault, step_of
from sublayers.training.trainers.start import (
    check_positions,
    check_unchanged,
    check_vocabulary,
    find_tokenizer,
    load_config,
    new_model,
)

# printed at the end, as far as the task has them
TEXT_SCORES = ("loss", "bleu", "tokenized_bleu", "sentence_bleu", "valid_code", "rouge1", "rouge2", "rougeL")
ENCODER_DECODERS = families(AutoModelForSeq2SeqLM)
# fields of a configuration that follow from the tokenizers, or from a flag of the Trainer
DECIDED = ("encoder_vocab_size", "label_smoothing")


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
    with claim(str(args.output_dir), args.process_index):
        checkpoint = find_checkpoint(args)
        trainer, scorers = make_trainer(run, model_flags, data_args, args, checkpoint)
        metrics: dict[str, Any] = {}
        if args.do_train:
            metrics |= _train(trainer, run, args, checkpoint)
        for split, scorer in scorers.items():
            prefix = PREFIXES[split]
            trainer.compute_metrics = scorer if args.predict_with_generate else None
            found = trainer.evaluate(scorer.rows, metric_key_prefix=prefix)
            trainer.save_metrics(prefix, found)
            if args.should_save and scorer.predictions:
                scorer.save(Path(args.output_dir, f"predictions_{split}.jsonl"))
            metrics |= found
        if trainer.is_world_process_zero():
            if args.do_train:
                save_loss_curve(trainer.state.log_history, Path(args.output_dir))
            if signature := metrics.get("test_bleu_signature", metrics.get("eval_bleu_signature")):
                print(f"sacreBLEU {signature}")
        data = describe_data(
            data_args, {"name": "functions of Python's standard library"}, data_args.dataset_config_name
        )
        # the Hub has no task for code
        task = None if run.task == "code" else run.task
        languages = [code for code in (data_args.source, data_args.target) if re.fullmatch("[a-z]{2,3}", code or "")]
        about = {"command": ["seq2seq", *argv], "data": data, "started_from": run.model_name_or_path}
        finish(trainer, metrics, TEXT_SCORES, args.do_train, task=task, languages=languages or None, **about)
        return metrics


def make_config(
    run: Seq2SeqArguments, model_flags: dict[str, Any], data_args: Seq2SeqDataArguments
) -> PreTrainedConfig:
    """Make the configuration of the model that is trained. Raises what `load_config` raises."""
    longest = max(data_args.max_source_length, data_args.max_target_length)
    family = ENCODER_DECODERS[run.model_type]
    return load_config(run.model_name_or_path, family, model_flags, max_position_embeddings=longest)


def make_trainer(
    run: Seq2SeqArguments,
    model_flags: dict[str, Any],
    data_args: Seq2SeqDataArguments,
    args: Seq2SeqTrainerArguments,
    checkpoint: str | None = None,
    trainer_class: Callable[..., PairTrainer] = PairTrainer,
) -> tuple[PairTrainer, dict[str, Scorer]]:
    """Read pairs and tokenizers or train them, and make the Trainer of what `parse` returns.

    Args:
        run: what is trained.
        model_flags: fields of its configuration.
        data_args: the data.
        args: of the Trainer.
        checkpoint: from which the run goes on, if any.
        trainer_class: makes the Trainer of a model that does not choose among orders.

    Returns:
        The Trainer, and what scores each split to evaluate on.

    Raises:
        ValueError: flags that do not go together, or data that cannot be read.
    """
    # whatever can be wrong with the flags is said before the first file is written
    config = make_config(run, model_flags, data_args)
    if not config.is_encoder_decoder:
        raise ValueError(f"{run.model_name_or_path} is a {config.model_type}, no encoder-decoder; give another model")
    check_positions(config, data_args, "max_source_length", "max_target_length")
    # the last token is not read
    check_positions(config, args, "generation_max_length", unread=1)
    if checkpoint:
        check_unchanged(config, model_flags, checkpoint)
    with args.main_process_first(desc="reading and tokenizing the pairs"):
        pairs = _load_splits(run, data_args, args)

        def train_into(folder: str) -> None:
            joint = not run.separate_vocabularies
            trained = train_pair_tokenizers(pairs["train"], run.vocab_size, joint, data_args.lowercase)
            save_tokenizers(list(dict.fromkeys(trained)), folder)

        source = find_tokenizer(run, args, checkpoint, train_into)
        # one, or that of the sources and that of the targets
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
        split: Scorer(pairs[split], encoded[split], tokenizers[-1], score) for split in PREFIXES if split in pairs
    }
    if isinstance(model.config, IOTSeq2SeqConfig) and len(model.config.paths) > 1:
        trainer_class = OrderTrainer
    trainer = trainer_class(
        tokenizers,
        run.max_tokens,
        model=model,
        args=args,
        train_dataset=encoded.get("train"),
        eval_dataset=scorers["validation"].rows if args.do_eval else None,
        data_collator=DataCollatorForSeq2Seq(tokenizers[0], model=model),
        compute_metrics=scorers["validation"] if args.do_eval and args.generates_in_training else None,
    )
    return trainer, scorers


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
    # who trains and evaluates, and has test data, wants to know
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


def _load_model(
    run: Seq2SeqArguments, config: PreTrainedConfig, tokenizers: list[PreTrainedTokenizerBase]
) -> PreTrainedModel:
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
    model: PreTrainedModel, run: Seq2SeqArguments, data: Seq2SeqDataArguments, args: Seq2SeqTrainerArguments
) -> None:
    chosen = model.generation_config
    if args.generation_config:
        # the Trainer would put it over the flags
        chosen, args.generation_config = PairTrainer.load_generation_config(str(args.generation_config)), None
    settings = {"num_beams": 5, "length_penalty": 1.0} if run.model_name_or_path is None else {}
    if chosen.max_length is None and chosen.max_new_tokens is None:
        settings["max_length"] = data.max_target_length + 1
    given = {
        "num_beams": args.generation_num_beams,
        "length_penalty": run.length_penalty,
        "max_length": args.generation_max_length,
    }
    settings |= {name: value for name, value in given.items() if value is not None}
    # what is made from the model's configuration counts as a guess
    model.generation_config = GenerationConfig.from_dict({**chosen.to_dict(), **settings, "_from_model_config": False})


def _train(
    trainer: PairTrainer, run: Seq2SeqArguments, args: Seq2SeqTrainerArguments, checkpoint: str | None
) -> dict[str, float]:
    metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics
    if run.max_tokens:
        # counted from --per_device_train_batch_size
        metrics.pop("train_samples_per_second", None)
    if run.average_checkpoints > 1:
        PartialState().wait_for_everyone()
        # a run that began at an earlier one may have left others
        folders = [path for path in checkpoints(args.output_dir) if step_of(path) <= trainer.state.global_step]
        folders = folders[-run.average_checkpoints :]
        if fault := next(filter(None, map(find_fault, folders)), None):
            raise ValueError(f"{fault}; resume from the one before it, or take it out of {args.output_dir}")
        if len(folders) < run.average_checkpoints:
            raise ValueError(
                f"there are {len(folders)} checkpoints in {args.output_dir}, fewer than --average_checkpoints "
                f"{run.average_checkpoints}; give a smaller number and --resume_from_checkpoint"
            )
        # what is tied is in the files once
        trainer.model.load_state_dict(average_checkpoints(folders, not args.disable_tqdm), strict=False)
    trainer.save_model()
    trainer.save_metrics("train", metrics)
    return metrics
