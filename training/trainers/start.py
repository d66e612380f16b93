"""Where a training starts: configuration, tokenizers and weights, new ones or those of a model or checkpoint."""

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from sublayers.hub.loading import load
from sublayers.tasks.windows import longest_input
from sublayers.training.trainers.arguments import ModelArguments


def load_config(
    model_name_or_path: str | None, new: type[PreTrainedConfig], flags: dict[str, Any], **defaults: Any
) -> PreTrainedConfig:
    """Load a model's configuration with some fields replaced, or without a model make a new one.

    Args:
        model_name_or_path: model whose configuration it is.
        new: class of a new configuration.
        flags: fields.
        defaults: fields of a new configuration that flags override.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: a value that the configuration refuses.
    """
    if not model_name_or_path:
        return new(**defaults | flags)
    config = load(AutoConfig, model_name_or_path, **flags)
    config.validate()
    return config


def check_unchanged(config: PreTrainedConfig, flags: dict[str, Any], checkpoint: str) -> None:
    """Check that a checkpoint has the fields that the flags ask for.

    Raises:
        ValueError: one differs.
    """
    saved = load(AutoConfig, checkpoint)
    for name in flags:
        # the Trainer would load what fits and leave the rest random
        if getattr(config, name) != (found := getattr(saved, name, None)):
            raise ValueError(
                f"{checkpoint} has {name}={found!r}, not {getattr(config, name)!r}; "
                "continue with the flags that the run was started with"
            )


def check_positions(config: PreTrainedConfig, flags: Any, *names: str, unread: int = 0) -> None:
    """Check that a model has positions for as many tokens as flags say.

    Args:
        config: of the model.
        flags: a dataclass.
        names: those of its fields that are to be checked, numbers of tokens or None.
        unread: how many of these tokens the model does not read.

    Raises:
        ValueError: there are too few.
    """
    # relative positions have no end
    positions = getattr(config, "max_position_embeddings", None) or inf
    for name in names:
        if (length := getattr(flags, name)) is not None and length > positions + unread:
            raise ValueError(
                f"{name}={length} is more than the model has room for with max_position_embeddings={positions}; "
                f"give a smaller --{name}"
            )


def check_length(
    name: str, length: int, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, least: int = 1
) -> None:
    """Check that a model that is there reads as many tokens as a flag says.

    Args:
        name: of the flag.
        length: its value.
        config: of the model.
        tokenizer: that of the model.
        least: tokens, without which nothing of a text is left.

    Raises:
        ValueError: the model reads fewer at once, or the flag has too few.
    """
    longest = longest_input(config, tokenizer)
    if not least <= length <= longest:
        raise ValueError(f"{name}={length} is not between {least} and the model's {longest}; give another --{name}")


def find_tokenizer(
    run: ModelArguments, args: TrainingArguments, checkpoint: str | None, train: Callable[[str], None]
) -> str:
    """Find where the tokenizer of a run is; for a new model that is the output folder, after it was trained.

    A run that was stopped before its first checkpoint goes on with the one that it left there.

    Args:
        run: names of a tokenizer or model, if any.
        args: of the training.
        checkpoint: from which the run goes on, if any.
        train: makes a tokenizer and saves it in a folder.
    """
    if source := run.tokenizer_name_or_path or checkpoint or run.model_name_or_path:
        return source
    # tokenizer.json is written last
    if args.process_index == 0 and not Path(str(args.output_dir), "tokenizer.json").exists():
        train(str(args.output_dir))
    return str(args.output_dir)


def new_model(auto_class: Any, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Make a model that writes the tokens of a tokenizer, with random weights.

    Raises:
        ValueError: a value that does not go with the tokenizer.
    """
    config.vocab_size = len(tokenizer)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, name, getattr(tokenizer, name))
    config.validate()
    return auto_class.from_config(config)


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    """Check that a model's vocabulary, of this size, has room for a tokenizer.

    Raises:
        ValueError: it has not.
    """
    if len(tokenizer) > size:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} tokens, more than the {size} of the model; "
            "give the model's own as --tokenizer_name_or_path"
        )
