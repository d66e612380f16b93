"""Where a training starts: a new model's configuration, or that of a model or checkpoint."""

from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from sublayers.hub.loading import load


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
