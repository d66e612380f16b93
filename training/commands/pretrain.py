"""`sublayers pretrain`: train a language model from scratch or from a checkpoint, and evaluate it exactly."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import transformers
from transformers import PreTrainedConfig, set_seed

from sublayers.auto_configurations import CONFIGURATION_CLASSES
from sublayers.configuration.configuration_par_transformer_xl import PARTransformerXLConfig
from sublayers.configuration.configuration_recurrent_lm import RecurrentLMConfig
from sublayers.families import FAMILIES
from sublayers.training.data.corpus import STANDARD_LIBRARY, CorpusArguments, load_corpus
from sublayers.training.data.tokenizers import TokenizerModel, read_words, sample, train_tokenizer
from sublayers.training.flags import config_flags, deciding_flags, expand_settings_file, flag, given_flags, parse_flags
from sublayers.training.trainers.arguments import FromScratchArguments, ModelArguments, default

if TYPE_CHECKING:
    from sublayers.training.trainers.resumable_trainer import ResumableTrainer

USAGE = "sublayers pretrain [RECIPE | SETTINGS.yaml] [--name value ...]"
# printed at the end, as far as the objective has them
LANGUAGE_MODEL_SCORES = (
    "loss",
    "perplexity",
    "bits_per_byte",
    "bits_per_character",
    "masked_accuracy",
    "next_sentence_loss",
    "next_sentence_accuracy",
)


class Objective(NamedTuple):
    """What differs by objective: the Auto class of the models, and the defaults for a new one."""

    auto_class: str
    model_type: str
    tokenizer_model: TokenizerModel


OBJECTIVES = {
    "clm": Objective("AutoModelForCausalLM", "sandwich_lm", "bpe"),
    "mlm": Objective("AutoModelForMaskedLM", "par_bert", "wordpiece"),
    "mlm+nsp": Objective("AutoModelForPreTraining", "par_bert", "wordpiece"),
}
# flags that only some values of another flag have a use for
USED_BY = {
    "max_tensor_grad_norm": ("optimizer", "adagrad"),
    "vocabulary_file": ("tokenizer_model", "word"),
    "whole_word_mask": ("objective", "mlm", "mlm+nsp"),
    "context_window": ("objective", "clm"),
    "streaming": ("objective", "clm"),
}
# the objectives of each family that has any
HEADS = {
    model_type: known
    for model_type, family in FAMILIES.items()
    if (known := [name for name, objective in OBJECTIVES.items() if objective.auto_class in family.models])
}
PRETRAINED = {model_type: CONFIGURATION_CLASSES[model_type] for model_type in HEADS}


@dataclass
class RunArguments(ModelArguments):
    """Flags for what is trained on how much."""

    _argument_group_name: ClassVar[str] = "model, tokenizer and windows"

    model_type: str = flag("family of a new model; par_bert for mlm", "sandwich_lm")
    tokenizer_model: TokenizerModel = flag("kind of tokenizer to train; wordpiece for mlm", "bpe")
    vocabulary_file: str | None = flag(
        ".txt with a word in each line, the most frequent first; default: counted on the corpus"
    )
    objective: Literal["clm", "mlm", "mlm+nsp"] = flag(
        "causal or masked language modelling, or the latter with next-sentence prediction; "
        "default for a --model_type that is not causal: mlm",
        "clm",
    )
    whole_word_mask: bool = flag("mask whole words", False)
    optimizer: Literal["lamb", "jitlamb", "adagrad"] | None = flag(
        "takes the place of --optim; NVIDIA's LAMB for BERT or for Transformer-XL, or Adagrad"
    )
    max_tensor_grad_norm: float | None = flag("clip the gradient of each tensor by itself; needs --optimizer adagrad")
    block_size: int = flag("tokens in a window, in a segment of a model with memory, or in a pair of segments", 512)
    context_window: int = flag("least context of a token in evaluation; Baevski and Auli: 2560 in blocks of 3072", 0)
    evaluation_length: int | None = flag("tokens in a segment in evaluation with memory; default: --block_size")
    evaluation_memory_length: int | None = flag("memory_length in evaluation; every token then sees as many tokens")
    evaluation_clamp_length: int | None = flag("clamp_length in evaluation")
    max_train_samples: int | None = flag("use the first documents only (lines of a .txt)")
    max_eval_samples: int | None = flag("as --max_train_samples")


@dataclass
class PretrainingArguments(FromScratchArguments):
    """The Trainer's arguments for training a small language model; train and evaluate by default."""

    output_dir: str = default("output_dir", "runs/pretrain")


FLAGS = (RunArguments, CorpusArguments, PretrainingArguments)


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
    # models and Trainers take seconds to import, for which --help does not wait
    from sublayers.training.trainers.run import run as run_training

    return run_training(
        args,
        partial(make_trainer, run, model_flags, corpus_args, args),
        LANGUAGE_MODEL_SCORES,
        corpus_args,
        {"name": STANDARD_LIBRARY},
        command=["pretrain", *argv],
        started_from=run.model_name_or_path,
    )


def make_config(run: RunArguments, model_flags: dict[str, Any]) -> PreTrainedConfig:
    """Make the configuration of the model that is trained. Raises what `load_config` raises."""
    from sublayers.training.trainers.start import load_config

    return load_config(run.model_name_or_path, PRETRAINED[run.model_type], model_flags, **config_defaults(run))


def make_trainer(
    run: RunArguments,
    model_flags: dict[str, Any],
    corpus_args: CorpusArguments,
    args: PretrainingArguments,
    checkpoint: str | None = None,
    trainer_class: Callable[..., Any] | None = None,
) -> "ResumableTrainer":
    """Read corpus and tokenizer or train one, and make the Trainer of what `parse` returns.

    The run goes on from a checkpoint, if any. `trainer_class` makes another Trainer of a model without memory.

    Raises:
        ValueError: flags that do not go together, or a corpus that cannot be read.
    """
    from transformers import AutoTokenizer

    from sublayers.hub.loading import load
    from sublayers.training.trainers import language_modeling, start
    from sublayers.training.trainers.resumable_trainer import ResumableTrainer
    from sublayers.training.trainers.stream_trainer import StreamTrainer
    from sublayers.training.trainers.window_trainer import WindowTrainer

    # whatever can be wrong with the flags is said before the first file is written
    config = make_config(run, model_flags)
    if run.model_name_or_path and config.model_type in PRETRAINED:
        check_head(config.model_type, run.objective)
    start.check_positions(config, run, "block_size")
    check_memory(config, run, corpus_args.streaming, args)
    if trainer_class and corpus_args.streaming:
        raise ValueError("a search reads its texts before it trains; leave --streaming out")
    if checkpoint:
        start.check_unchanged(config, model_flags, checkpoint)
    with args.main_process_first(local=False, desc="reading and tokenizing the corpus"):
        corpus = load_corpus(corpus_args)
        if args.do_train and "train" not in corpus:
            raise ValueError("there is nothing to train on; give --train_file, or --do_eval to evaluate only")

        def train_into(folder: str) -> None:
            if run.vocabulary_file:
                tokenizer = read_words(run.vocabulary_file)
            else:
                texts = sample(corpus["train"], run.tokenizer_model)
                tokenizer = train_tokenizer(texts, run.tokenizer_model, run.vocab_size)
            tokenizer.save_pretrained(folder)

        tokenizer = load(AutoTokenizer, start.find_tokenizer(run, args, checkpoint, train_into))
        train = corpus["train"].take(run.max_train_samples) if args.do_train else None
        validation = corpus["validation"].take(run.max_eval_samples) if args.do_eval else None
        if isinstance(config, RecurrentLMConfig):
            trainer_class = StreamTrainer
            rows = args.train_batch_size * args.world_size
            length = run.evaluation_length or run.block_size
            windows = language_modeling.stream_trainer_arguments(
                tokenizer, train, validation, run.block_size, length, rows
            )
            windows["evaluation_settings"] = evaluation_settings(config, run)
        elif run.objective == "clm":
            if train and corpus_args.streaming:
                trainer_class = WindowTrainer
            windows = language_modeling.causal_trainer_arguments(
                tokenizer, train, validation, run.block_size, run.context_window, corpus_args.streaming
            )
        else:
            settings = {"block_size": run.block_size, "seed": args.seed, "whole_word_mask": run.whole_word_mask}
            windows = language_modeling.masked_trainer_arguments(
                tokenizer, train, validation, run.objective == "mlm+nsp", **settings
            )
    set_seed(args.seed)
    auto_class = getattr(transformers, OBJECTIVES[run.objective].auto_class)
    if run.model_name_or_path:
        start.check_vocabulary(tokenizer, config.vocab_size)
        model = load(auto_class, run.model_name_or_path, config=config)
    else:
        model = start.new_model(auto_class, config, tokenizer)
    trainer = (trainer_class or ResumableTrainer)(
        model=model,
        args=args,
        processing_class=tokenizer,
        optimizer_cls_and_kwargs=_optimizer(run, args),
        **windows,
    )
    trainer.about["used"] = {split: text.used for split, text in (("train", train), ("validation", validation)) if text}
    if run.optimizer:
        trainer.about["settings"] = {"optimizer": run.optimizer}
    return trainer


def parse(argv: list[str]) -> tuple[RunArguments, dict[str, Any], CorpusArguments, PretrainingArguments]:
    """Read the command's flags, after an optional recipe or settings file.

    Raises:
        ValueError: unknown flags, a family without the objective, or a stream or a model that the flags do not go with.
    """
    argv = expand_settings_file(argv, "pretrain")
    model_type, defaults = choose_family(argv)
    model_flags = config_flags(PRETRAINED[model_type], RunArguments)
    run, corpus, args, config = parse_flags(defaults + argv, [*FLAGS, model_flags], USAGE)
    check_objective(run, corpus)
    if corpus.streaming and args.do_train and args.max_steps < 1:
        raise ValueError("a stream has no length; give --max_steps with --streaming")
    if not args.do_train and not run.model_name_or_path:
        raise ValueError("there is no model to evaluate; give --model_name_or_path")
    return run, given_flags(config), corpus, args


def config_defaults(run: RunArguments, **defaults: Any) -> dict[str, Any]:
    """Add to defaults of a new configuration what follows from the flags."""
    if issubclass(PRETRAINED[run.model_type], RecurrentLMConfig):
        # with memory, texts have no limit
        return defaults
    return defaults | {"max_position_embeddings": run.block_size}


def choose_family(argv: list[str]) -> tuple[str, list[str]]:
    """Find the family of the model, which decides what flags there are, and the flags that follow from the objective.

    Args:
        argv: flags; without `--model_type` or `--objective` each follows from the other.

    Raises:
        ValueError: an unknown family or objective, or a family without a head for the objective.
    """
    given = deciding_flags(argv, model_type=PRETRAINED, objective=OBJECTIVES)
    model_type = given.get("model_type")
    objective = given.get("objective") or (HEADS[model_type] if model_type else [*OBJECTIVES])[0]
    _, default_type, tokenizer_model = OBJECTIVES[objective]
    model_type = model_type or default_type
    check_head(model_type, objective)
    decided = {"model_type": model_type, "objective": objective, "tokenizer_model": tokenizer_model}
    return model_type, [f"--{name}={value}" for name, value in decided.items()]


def check_head(model_type: str, objective: str) -> None:
    """Check that a family has a head for an objective.

    Raises:
        ValueError: it has none.
    """
    if objective not in HEADS[model_type]:
        known = ", ".join(HEADS[model_type])
        raise ValueError(f"{model_type} has no head for --objective {objective}; choose from {known}")


def check_objective(run: RunArguments, corpus: CorpusArguments) -> None:
    """Check that the flags go with the objective, and with each other.

    Raises:
        ValueError: they do not.
    """
    given = vars(run) | vars(corpus)
    for name, (other, *values) in USED_BY.items():
        if given[name] and given[other] not in values:
            raise ValueError(f"--{name} is for --{other} {' or '.join(values)}; choose that or leave it out")
    if run.objective == "clm":
        # this import takes seconds
        from sublayers.training.data.language_modeling import check_windows

        check_windows(run.block_size, run.context_window)
        return
    if run.block_size < 5:
        raise ValueError(f"block_size={run.block_size} has no room for two segments and [CLS], [SEP]; give 5 or more")
    if run.tokenizer_model != "wordpiece":
        raise ValueError(
            f"--tokenizer_model {run.tokenizer_model} has no [MASK] for --objective {run.objective}; choose wordpiece"
        )


def check_memory(config: PreTrainedConfig, run: RunArguments, streaming: bool, args: PretrainingArguments) -> None:
    """Check that the flags go with a model that has memory, or has none.

    Raises:
        ValueError: they do not.
    """
    if not isinstance(config, RecurrentLMConfig):
        for name in ("evaluation_length", "evaluation_memory_length", "evaluation_clamp_length"):
            if getattr(run, name) is not None:
                raise ValueError(f"{config.model_type} has no memory to evaluate with; leave --{name} out")
        return
    accelerator: Any = args.accelerator_config
    refused = {
        "context_window": run.context_window,
        "streaming": streaming,
        "label_smoothing_factor": args.label_smoothing_factor,
        "auto_find_batch_size": args.auto_find_batch_size,
        "accelerator_config": accelerator.split_batches,
    }
    for name, value in refused.items():
        if value:
            raise ValueError(
                f"{config.model_type} reads one stream in rows that never change; leave --{name} out of its flags"
            )
    for name in ("block_size", "evaluation_length"):
        if (length := getattr(run, name)) is not None and length < 1:
            raise ValueError(f"a segment has at least one token, not {name}={length}; give a larger --{name}")
    if not isinstance(config, PARTransformerXLConfig):
        for name in ("evaluation_memory_length", "evaluation_clamp_length"):
            if getattr(run, name) is not None:
                raise ValueError(f"{config.model_type} learns how far back it looks; leave --{name} out")


def evaluation_settings(config: RecurrentLMConfig, run: RunArguments) -> dict[str, Any]:
    """Say what differs in evaluation; in Transformer-XL's every token sees as many as every other."""
    lengths = {"memory_length": run.evaluation_memory_length, "clamp_length": run.evaluation_clamp_length}
    settings: dict[str, Any] = {name: length for name, length in lengths.items() if length is not None}
    if isinstance(config, PARTransformerXLConfig) and (settings or run.evaluation_length):
        settings["same_length"] = True
    return settings


def _optimizer(run: RunArguments, args: PretrainingArguments) -> tuple[type, dict[str, Any]] | None:
    if run.optimizer is None:
        return None
    # this import takes a second
    from sublayers.training.trainers.optimizers import ClippingAdagrad, JITLamb, NVLamb

    if run.optimizer == "adagrad":
        return ClippingAdagrad, {"lr": args.learning_rate, "max_tensor_grad_norm": run.max_tensor_grad_norm}
    lamb = {"lamb": NVLamb, "jitlamb": JITLamb}[run.optimizer]
    return lamb, {"lr": args.learning_rate, "betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
