"""`sublayers pretrain`: train a language model from scratch or from a checkpoint, and evaluate it exactly."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import transformers
from transformers import PreTrainedConfig

from sublayers.auto_configurations import CONFIGURATION_CLASSES
from sublayers.configuration.configuration_recurrent_lm import RecurrentLMConfig
from sublayers.families import FAMILIES
from sublayers.training.data.corpus import STANDARD_LIBRARY, CorpusArguments
from sublayers.training.data.tokenizers import TokenizerModel
from sublayers.training.flags import config_flags, deciding_flags, expand_settings_file, flag, given_flags, parse_flags
from sublayers.training.trainers.arguments import FromScratchArguments, ModelArguments, default

if TYPE_CHECKING:
    from sublayers.training.trainers.resumable_trainer import ResumableTrainer

USAGE = "sublayers pretrain [RECIPE | SETTINGS.yaml] [--name value ...]"
# printed at the end, as far as the objective has them
SCORES = ["loss", "perplexity", "bits_per_byte", "bits_per_character", "recall_loss", "masked_accuracy"]
SCORES += ["next_sentence_loss", "next_sentence_accuracy"]


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
    vocabulary_file: str | None = flag("a word in each line, most frequent first; default: counted on the corpus")
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
        The metrics of training, such as `train_loss`, and of the last evaluation, with `eval_` before their names.

    Raises:
        FileExistsError: the output folder is not empty and the run does not resume.
        ValueError: bad flags, a corpus that cannot be read, or windows longer than the model's positions.
    """
    run, model_flags, corpus_args, args = parse(argv)
    # this import takes seconds, for which --help does not wait
    from sublayers.training.trainers.run import run as run_training

    return run_training(
        args,
        partial(make_trainer, run, model_flags, corpus_args, args),
        SCORES,
        corpus_args,
        {"name": STANDARD_LIBRARY},
        [run, model_flags],
        command=["pretrain", *argv],
        started_from=run.model_name_or_path,
    )


def make_config(run: RunArguments, model_flags: dict[str, Any]) -> PreTrainedConfig:
    """Make the configuration of the model that is trained. Raises what `load_config` raises."""
    from sublayers.training.trainers.start import load_config

    return load_config(run.model_name_or_path, PRETRAINED[run.model_type], model_flags, **config_defaults(run))


def make_trainer(run: RunArguments, model_flags: dict[str, Any], *others: Any, **options: Any) -> "ResumableTrainer":
    """Make the Trainer of what `parse` returns; see `make_trainer` of `trainers.language_modeling`."""
    from sublayers.training.trainers import language_modeling

    # whatever can be wrong with the flags is said before the first file is written
    config = make_config(run, model_flags)
    if run.model_name_or_path and config.model_type in PRETRAINED:
        check_head(config.model_type, run.objective)
    auto_class = getattr(transformers, OBJECTIVES[run.objective].auto_class)
    return language_modeling.make_trainer(auto_class, config, model_flags, run, *others, **options)


def parse(argv: list[str]) -> tuple[RunArguments, dict[str, Any], CorpusArguments, PretrainingArguments]:
    """Read the command's flags, after an optional recipe or settings file, or raise a ValueError."""
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
    # with memory, texts have no limit
    has_memory = issubclass(PRETRAINED[run.model_type], RecurrentLMConfig)
    return defaults if has_memory else defaults | {"max_position_embeddings": run.block_size}


def choose_family(argv: list[str]) -> tuple[str, list[str]]:
    """Find the family of the model, which decides what flags there are, and the flags that follow from the objective.

    Without `--model_type` or `--objective`, each follows from the other. Raises what `check_head` raises.
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
    """Check that a family has a head for an objective, or raise a ValueError."""
    if objective not in (known := HEADS[model_type]):
        raise ValueError(f"{model_type} has no head for --objective {objective}; choose from {', '.join(known)}")


def check_objective(run: RunArguments, corpus: CorpusArguments) -> None:
    """Check that the flags go with the objective and with each other, or raise a ValueError."""
    for name, (other, *values) in USED_BY.items():
        if (given := vars(run) | vars(corpus))[name] and given[other] not in values:
            raise ValueError(f"--{name} is for --{other} {' or '.join(values)}; choose that or leave it out")
    if run.objective == "clm":
        # this import takes seconds
        from sublayers.training.data.language_modeling import check_windows

        check_windows(run.block_size, run.context_window)
        return
    if run.block_size < 5:
        raise ValueError(f"block_size={run.block_size} has no room for two segments and [CLS], [SEP]; give 5 or more")
    if run.tokenizer_model != "wordpiece":
        without = f"--tokenizer_model {run.tokenizer_model} has no [MASK] for --objective {run.objective}"
        raise ValueError(f"{without}; choose wordpiece")
