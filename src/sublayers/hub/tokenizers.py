"""Tokenizers beside models: what they give them."""

from math import inf
from pathlib import Path

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from sublayers.configuration.configuration_reordered_bert import ReorderedBertConfig
from sublayers.configuration.configuration_sublayers import SublayersConfig


def fit_tokenizer(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    """Let a tokenizer give what a model reads, if one of ours has this `config`: no longer texts, no other tensors."""
    if not isinstance(config, SublayersConfig):
        return
    # with memory, a text has no end
    limit = config.position_limit or inf
    if limit < tokenizer.model_max_length:
        tokenizer.model_max_length = int(limit)
    if not isinstance(config, ReorderedBertConfig):
        names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
        # what was given is what is saved
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: str | Path, config: PreTrainedConfig) -> None:
    """Save a tokenizer beside a model with this `config`, see `fit_tokenizer`."""
    fit_tokenizer(tokenizer, config)
    tokenizer.save_pretrained(folder)
