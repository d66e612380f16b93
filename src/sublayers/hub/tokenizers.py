"""Tokenizers beside models: how many tokens a text may have."""

from math import inf
from pathlib import Path

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from sublayers.configuration.configuration_sublayers import SublayersConfig


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: str | Path, config: PreTrainedConfig) -> None:
    """Save a tokenizer so that `truncation=True` cuts texts to what a model reads, if one of ours has this `config`."""
    # with memory, a text has no end
    limit = (isinstance(config, SublayersConfig) and config.position_limit) or inf
    if limit < tokenizer.model_max_length:
        tokenizer.model_max_length = int(limit)
    tokenizer.save_pretrained(folder)
