"""`sublayers pretrain`: train a language model from scratch or from a checkpoint, and evaluate it exactly."""

import platform
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import (
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from sublayers.hub.loading import load
from sublayers.training.commands.pretrain_arguments import (
    OBJECTIVES,
    PRETRAINED,
    PretrainingArguments,
    RunArguments,
    check_head,
    check_objective,
    choose_family,
)
from sublayers.training.data.corpus import CorpusArguments, Text, load_corpus
from sublayers.training.data.tokenizers import sample, train_tokenizer
from sublayers.training.flags import config_flags, expand_settings_file, given_flags, parse_flags
from sublayers.training.folders import claim
from sublayers.training.trainers.language_modeling import causal_trainer_arguments, masked_trainer_arguments
from sublayers.training.trainers.loss_curve import save_loss_curve
from sublayers.training.trainers.publish import describe_data, publish, result
from sublayers.training.trainers.resumable_trainer import ResumableTrainer
from sublayers.training.trainers.resume import find_checkpoint
from sublayers.training.trainers.start import check_unchanged, load_config

STANDARD_LIBRARY = f"the standard library of Python {platform.python_version()}"
# printed at the end, as far as the objective has them
METRICS = (
    "train_loss",
    "eval_loss",
    "eval_perplexity",
    "eval_bits_per_byte",
    "eval_bits_per_character",
    "eval_masked_accuracy",
    "eval_next_sentence_loss",
    "eval_next_sentence_accuracy",
)


def main(argv: list[str]) -> dict[str, float]:
    """Train and evaluate a language model, and leave model, tokenizer, metrics and loss curve in a folder.

    Args:
        argv: flags, after an optional recipe, .yaml or .json file with the same names; see `--help`.

    Returns:
        The metrics of the last evaluation (those of `language_modeling_metrics` or `masked_metrics` with `eval_` before
        their names) and of training, such as `train_loss`.

    Raises:
        FileExistsError: the output folder is not empty and the run does not resume.
        ValueError: bad flags, a corpus that cannot be read, or windows longer than the model's positions.
    """
    run, model_flags, corpus_args, args = parse(argv)
    with claim(args):
        return _pretrain(argv, run, model_flags, corpus_args, args)


def _pretrain(
    argv: list[str],
    run: RunArguments,
    model_flags: dict[str, Any],
    corpus_args: CorpusArguments,
    args: PretrainingArguments,
) -> dict[str, float]:
    checkpoint = find_checkpoint(args)
    # whatever can be wrong with the flags is said before the first file is written
    config = _load_config(run, model_flags, checkpoint)
    # a slower process should not find the tokenizer of a faster one in the folder that ought to be empty
    PartialState().wait_for_everyone()
    with args.main_process_first(desc="reading and tokenizing the corpus"):
        corpus = load_corpus(corpus_args)
        if args.do_train and "train" not in corpus:
            raise ValueError("there is nothing to train on; give --train_file, or --do_eval to evaluate only")
        tokenizer = _load_tokenizer(run, args, checkpoint, corpus)
        train = corpus["train"].take(run.max_train_samples) if args.do_train else None
        validation = corpus["validation"].take(run.max_eval_samples) if args.do_eval else None
        if run.objective == "clm":
            windows = causal_trainer_arguments(
                tokenizer, train, validation, run.block_size, run.context_window, corpus_args.streaming
            )
        else:
            settings = {"block_size": run.block_size, "seed": args.seed, "whole_word_mask": run.whole_word_mask}
            windows = masked_trainer_arguments(tokenizer, train, validation, run.objective == "mlm+nsp", **settings)
    set_seed(args.seed)
    model = _load_model(run, config, tokenizer)
    use_cache = model.config.use_cache
    trainer = ResumableTrainer(
        model=model,
        args=args,
        processing_class=tokenizer,
        optimizer_cls_and_kwargs=_optimizer(run, args),
        **windows,
    )
    metrics: dict[str, float] = {}
    if args.do_train:
        trained = trainer.train(resume_from_checkpoint=checkpoint).metrics
        # the Trainer switches the cache off, and would save the model that way
        model.config.use_cache = use_cache
        trainer.save_model()
        model.config.use_cache = False
        trainer.save_metrics("train", trained)
        metrics |= trained
    if args.do_eval:
        evaluated = trainer.evaluate()
        trainer.save_metrics("eval", evaluated)
        metrics |= evaluated
    if trainer.is_world_process_zero():
        if args.do_train:
            save_loss_curve(trainer.state.log_history, Path(args.output_dir))
            data = describe_data(corpus_args, {"name": STANDARD_LIBRARY}, corpus_args.dataset_config_name)
            scores = {name.removeprefix("eval_"): metrics[name] for name in METRICS[1:] if name in metrics}
            results = [result(data, "validation", name, value, args.seed) for name, value in scores.items()]
            command = ["pretrain", *argv]
            publish(args.output_dir, args, command, data, results, [args.seed], run.model_name_or_path)
        print(
            ", ".join(f"{name} {metrics[name]:.4f}" for name in METRICS if name in metrics) + f" in {args.output_dir}"
        )
    return metrics


def parse(argv: list[str]) -> tuple[RunArguments, dict[str, Any], CorpusArguments, PretrainingArguments]:
    """Read the command's flags, after an optional recipe or settings file.

    Raises:
        ValueError: unknown flags, a family without the objective, or a stream or a model that the flags do not go with.
    """
    argv = expand_settings_file(argv, "pretrain")
    model_type, defaults = choose_family(argv)
    run, config, corpus, args = parse_flags(
        defaults + argv,
        [RunArguments, config_flags(PRETRAINED[model_type], RunArguments), CorpusArguments, PretrainingArguments],
        "sublayers pretrain [RECIPE | SETTINGS.yaml] [--name value ...]",
    )
    check_objective(run, corpus.streaming)
    if corpus.streaming and args.do_train and args.max_steps < 1:
        raise ValueError("a stream has no length; give --max_steps with --streaming")
    if not args.do_train and not run.model_name_or_path:
        raise ValueError("there is no model to evaluate; give --model_name_or_path")
    return run, given_flags(config), corpus, args


def _load_tokenizer(
    run: RunArguments, args: PretrainingArguments, checkpoint: str | None, corpus: dict[str, Text]
) -> PreTrainedTokenizerBase:
    source = run.tokenizer_name_or_path or checkpoint or run.model_name_or_path
    if source is None:
        source = args.output_dir
        if args.local_process_index == 0:
            train_tokenizer(sample(corpus["train"]), run.tokenizer_model, run.vocab_size).save_pretrained(source)
    return load(AutoTokenizer, source)


def _load_config(run: RunArguments, flags: dict[str, Any], checkpoint: str | None) -> PreTrainedConfig:
    new = PRETRAINED[run.model_type]
    config = load_config(run.model_name_or_path, new, flags, max_position_embeddings=run.block_size)
    if run.model_name_or_path and config.model_type in PRETRAINED:
        check_head(config.model_type, run.objective)
    if run.block_size > config.max_position_embeddings:
        raise ValueError(
            f"block_size={run.block_size} is more than the model's max_position_embeddings="
            f"{config.max_position_embeddings}; give a smaller --block_size"
        )
    if checkpoint:
        check_unchanged(config, flags, checkpoint)
    return config


def _load_model(run: RunArguments, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    auto_class = OBJECTIVES[run.objective].auto_class
    if run.model_name_or_path is None:
        config.vocab_size = len(tokenizer)
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            setattr(config, name, getattr(tokenizer, name))
        return auto_class.from_config(config)
    if len(tokenizer) > config.vocab_size:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} tokens, more than the model's vocab_size={config.vocab_size}; "
            "give the model's own as --tokenizer_name_or_path"
        )
    return load(auto_class, run.model_name_or_path, config=config)


def _optimizer(run: RunArguments, args: PretrainingArguments) -> tuple[type, dict[str, Any]] | None:
    if run.optimizer is None:
        return None
    # takes a second to import
    from sublayers.training.trainers.optimizers import NVLamb

    return NVLamb, {"lr": args.learning_rate, "betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
