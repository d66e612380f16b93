"""`sublayers pretrain`: train a language model from scratch or from a checkpoint, and evaluate it exactly."""

import json
import sys
from dataclasses import field, fields, make_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np
from accelerate import PartialState
from datasets import IterableDataset
from huggingface_hub.errors import StrictDataclassError
from matplotlib.figure import Figure
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerState,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from sublayers.training.cli import expand_settings_file, parse_flags, refuse_to_overwrite
from sublayers.training.corpus import CorpusArguments, Text, load_corpus
from sublayers.training.language_modeling import (
    Windows,
    language_modeling_metrics,
    stream_windows,
    token_losses,
    token_stream,
)
from sublayers.training.masked_language_modeling import masked_trainer_arguments
from sublayers.training.pretrain_arguments import (
    FAMILIES,
    OBJECTIVES,
    PretrainingArguments,
    RunArguments,
    check_head,
    check_objective,
    choose_family,
)
from sublayers.training.tokenizer import sample, train_tokenizer

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


def main(argv: list[str] | None = None) -> None:
    """Run `pretrain` for the command line."""
    pretrain(sys.argv[1:] if argv is None else argv)


def pretrain(argv: list[str]) -> dict[str, float]:
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
    run, model_flags, corpus_args, args = _parse(argv)
    checkpoint = _find_checkpoint(args)
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
        data = _load_data(run, args, tokenizer, train, validation, corpus_args.streaming)
    set_seed(args.seed)
    model = _load_model(run, config, tokenizer)
    use_cache = model.config.use_cache
    trainer = Trainer(
        model=model,
        args=args,
        processing_class=tokenizer,
        optimizer_cls_and_kwargs=_optimizer(run, args),
        **data,
    )
    metrics: dict[str, float] = {}
    if args.do_train:
        if checkpoint:
            _adopt_counts(args, checkpoint)
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
            _save_loss_curve(trainer.state.log_history, Path(args.output_dir))
        print(
            ", ".join(f"{name} {metrics[name]:.4f}" for name in METRICS if name in metrics) + f" in {args.output_dir}"
        )
    return metrics


def _parse(argv: list[str]) -> tuple[RunArguments, dict[str, Any], CorpusArguments, PretrainingArguments]:
    argv = expand_settings_file(argv)
    model_type, defaults = choose_family(argv)
    run, config, corpus, args = parse_flags(
        defaults + argv,
        [RunArguments, _config_flags(FAMILIES[model_type]), CorpusArguments, PretrainingArguments],
        "sublayers pretrain [RECIPE | SETTINGS.yaml] [--name value ...]",
    )
    check_objective(run, corpus.streaming)
    if corpus.streaming and args.do_train and args.max_steps < 1:
        raise ValueError("a stream has no length; give --max_steps with --streaming")
    if not args.do_train and not run.model_name_or_path:
        raise ValueError("there is no model to evaluate; give --model_name_or_path")
    start = run.model_name_or_path or ""
    # the Hub would be asked for it, in vain and for long
    if start.startswith((".", "/")) and not Path(start).is_dir():
        raise FileNotFoundError(f"there is no folder {start}; give another --model_name_or_path")
    return run, {name: value for name, value in vars(config).items() if value is not None}, corpus, args


def _config_flags(config_class: type[PreTrainedConfig]) -> type:
    taken = {f.name for base in (PreTrainedConfig, TrainingArguments, RunArguments) for f in fields(base)}
    flags = []
    for f in fields(config_class):
        # the tokenizer decides on the special tokens as well as on vocab_size
        if f.name not in taken and not f.name.endswith("_token_id") and get_origin(f.type) is not dict:
            # argparse turns text into one type only
            kind: Any = float if {float, int} <= {*get_args(f.type)} else f.type
            bare = {"nargs": "?", "const": True} if kind is bool else {}
            help_text = f"{f.default!r} when not given"
            flags.append((f.name, kind | None, field(default=None, metadata={"help": help_text, **bare})))
    group = {"_argument_group_name": f"{config_class.__name__} of a new model"}
    return make_dataclass("ConfigFlags", flags, namespace=group)


def _find_checkpoint(args: PretrainingArguments) -> str | None:
    asked = args.resume_from_checkpoint
    if asked is None or asked.lower() == "false":
        refuse_to_overwrite(args.output_dir, " or continue with --resume_from_checkpoint")
        return None
    if asked.lower() != "true":
        if not _is_complete(Path(asked)):
            raise FileNotFoundError(f"{asked} is no complete checkpoint, for it has no readable {TRAINER_STATE_NAME}")
        return asked
    checkpoints = Path(args.output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*")
    complete = max(filter(_is_complete, checkpoints), key=lambda path: int(path.name.split("-")[-1]), default=None)
    if args.process_index == 0:
        nothing = f"no complete checkpoint in {args.output_dir}, so starting from the beginning"
        print(f"continuing from {complete}" if complete else nothing)
    return str(complete) if complete else None


def _is_complete(checkpoint: Path) -> bool:
    # the Trainer writes its state last, and a killed one may have written half of it
    try:
        return bool(json.loads((checkpoint / TRAINER_STATE_NAME).read_text()))
    except (FileNotFoundError, ValueError):
        return False


def _adopt_counts(args: PretrainingArguments, checkpoint: str) -> None:
    # the state counts steps where the flags may be shares of them, and the Trainer warns of every difference
    state = TrainerState.load_from_json(str(Path(checkpoint) / TRAINER_STATE_NAME))
    for name in ("logging_steps", "eval_steps", "save_steps"):
        if 0 < (getattr(args, name) or 0) < 1:
            setattr(args, name, getattr(state, name))


def _load_tokenizer(
    run: RunArguments, args: PretrainingArguments, checkpoint: str | None, corpus: dict[str, Text]
) -> PreTrainedTokenizerBase:
    source = run.tokenizer_name_or_path or checkpoint or run.model_name_or_path
    if source is None:
        source = args.output_dir
        if args.local_process_index == 0:
            train_tokenizer(sample(corpus["train"]), run.tokenizer_model, run.vocab_size).save_pretrained(source)
    return AutoTokenizer.from_pretrained(source)


def _load_config(run: RunArguments, flags: dict[str, Any], checkpoint: str | None) -> PreTrainedConfig:
    try:
        if run.model_name_or_path:
            config = AutoConfig.from_pretrained(run.model_name_or_path, **flags)
            config.validate()
            if config.model_type in FAMILIES:
                check_head(config.model_type, run.objective)
        else:
            config = FAMILIES[run.model_type](**{"max_position_embeddings": run.block_size} | flags)
    except StrictDataclassError as error:
        raise ValueError(" ".join(str(error).split())) from error
    if run.block_size > config.max_position_embeddings:
        raise ValueError(
            f"block_size={run.block_size} is more than the model's max_position_embeddings="
            f"{config.max_position_embeddings}; give a smaller --block_size"
        )
    if checkpoint:
        saved = AutoConfig.from_pretrained(checkpoint)
        for name in flags:
            # the Trainer would load what fits and leave the rest random
            if getattr(config, name) != getattr(saved, name):
                raise ValueError(
                    f"{checkpoint} has {name}={getattr(saved, name)!r}, not {getattr(config, name)!r}; "
                    "continue with the flags that the run was started with"
                )
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
    return auto_class.from_pretrained(run.model_name_or_path, config=config)


def _load_data(
    run: RunArguments,
    args: PretrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    train: Text | None,
    validation: Text | None,
    streaming: bool,
) -> dict[str, Any]:
    if run.objective != "clm":
        settings = {"block_size": run.block_size, "seed": args.seed, "whole_word_mask": run.whole_word_mask}
        return masked_trainer_arguments(tokenizer, train, validation, run.objective == "mlm+nsp", **settings)
    return {
        "train_dataset": train and _train_windows(train, tokenizer, run.block_size, streaming),
        "eval_dataset": validation and _windows(validation, tokenizer, run.block_size, run.context_window),
        "data_collator": default_data_collator,
        "compute_metrics": validation and language_modeling_metrics(validation),
        "preprocess_logits_for_metrics": token_losses,
    }


def _train_windows(
    text: Text, tokenizer: PreTrainedTokenizerBase, block_size: int, streaming: bool
) -> Windows | IterableDataset:
    if streaming:
        source = {"text": text, "tokenizer": tokenizer, "block_size": block_size}
        return IterableDataset.from_generator(stream_windows, gen_kwargs=source)
    return _windows(text, tokenizer, block_size)


def _windows(text: Text, tokenizer: PreTrainedTokenizerBase, block_size: int, context_window: int = 0) -> Windows:
    return Windows(np.concatenate(list(token_stream(text, tokenizer))), block_size, context_window)


def _optimizer(run: RunArguments, args: PretrainingArguments) -> tuple[type, dict[str, Any]] | None:
    if run.optimizer is None:
        return None
    # takes a second to import
    from sublayers.training.optimizers import NVLamb

    return NVLamb, {"lr": args.learning_rate, "betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}


def _save_loss_curve(history: list[dict[str, float]], folder: Path) -> None:
    # a later entry of the same step, the final evaluation, replaces an earlier one
    curves = {name: {e["step"]: e[name] for e in history if name in e} for name in ("loss", "eval_loss")}
    points = {name: [list(point) for point in sorted(curve.items())] for name, curve in curves.items()}
    (folder / "loss_curve.json").write_text(json.dumps(points, indent=2) + "\n")
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    for name, label in {"loss": "training", "eval_loss": "evaluation"}.items():
        axes.plot(*zip(*points[name], strict=True), marker=".", label=label)
    axes.set(xlabel="step", ylabel="loss (nats per token)")
    axes.legend()
    figure.savefig(folder / "loss_curve.png", dpi=150)
