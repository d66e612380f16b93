"""Tokenizers beside models: what they give them."""

from collections.abc import Sequence
from math import inf
from pathlib import Path

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from sublayers.configuration.configuration_reordered_bert import ReorderedBertConfig
from sublayers.configuration.configuration_reordered_seq2seq import TARGET_TOKENIZER
from sublayers.configuration.configuration_sublayers import SublayersConfig


def fit_tokenizer(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    """Let a tokenizer give what a model of this package with this `config` reads: no longer texts, no other tensors."""
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


def save_tokenizers(
    tokenizers: Sequence[PreTrainedTokenizerBase], folder: str | Path, config: PreTrainedConfig
) -> None:
    """Save one tokenizer, or that of the sources and in a folder of its own that of the targets, beside a model.

    They are changed as `fit_tokenizer` does for this `config`.
    """
    places = (Path(folder), Path(folder, TARGET_TOKENIZER))
    # the tokenizer of the sources is saved last, so its file says that both are there
    for tokenizer, place in reversed([*zip(tokenizers, places, strict=False)]):
        fit_tokenizer(tokenizer, config)
        tokenizer.save_pretrained(place)
