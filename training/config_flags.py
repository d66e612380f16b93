"""Flags made from the fields of a configuration class, and configurations made from flags."""

from collections.abc import Collection
from dataclasses import MISSING, field, fields, make_dataclass
from typing import Any, get_args, get_origin

from transformers import AutoConfig, PreTrainedConfig, TrainingArguments

from sublayers.loading import load


def config_flags(config_class: type[PreTrainedConfig], run: type, decided: Collection[str] = ()) -> type:
    """Make a dataclass of flags from the fields of a configuration class.

    Args:
        config_class: configuration of a new model.
        run: dataclass of the command's own flags, which take precedence over fields of the same name.
        decided: fields that are no flags because the command or the tokenizer decides on them.
    """
    taken = {f.name for base in (PreTrainedConfig, TrainingArguments, run) for f in fields(base)} | {*decided}
    flags = []
    for f in fields(config_class):
        # the tokenizer decides on the special tokens as well as on vocab_size
        if f.name not in taken and not f.name.endswith("_token_id") and get_origin(f.type) is not dict:
            # argparse turns text into one type only
            kind: Any = float if {float, int} <= {*get_args(f.type)} else f.type
            bare = {"nargs": "?", "const": True} if kind is bool else {}
            default = f.default if f.default_factory is MISSING else f.default_factory()
            help_text = f"{default!r} when not given"
            flags.append((f.name, kind | None, field(default=None, metadata={"help": help_text, **bare})))
    group = {"_argument_group_name": f"{config_class.__name__} of a new model"}
    return make_dataclass("ConfigFlags", flags, namespace=group)


def given_flags(flags: Any) -> dict[str, Any]:
    """Choose the flags that were given."""
    return {name: value for name, value in vars(flags).items() if value is not None}


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
        if getattr(config, name) != getattr(saved, name):
            raise ValueError(
                f"{checkpoint} has {name}={getattr(saved, name)!r}, not {getattr(config, name)!r}; "
                "continue with the flags that the run was started with"
            )
