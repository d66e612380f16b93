"""Causal language modelling: a stream of tokens, and windows over it."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from sublayers.modeling.losses import IGNORED
from sublayers.training.data.corpus import Text, join_lines
from sublayers.training.data.tokenizers import check_known


class Windows(Dataset):
    """Windows of equal length over a stream of tokens, in which every token but the first is a target exactly once.

    Neighbours overlap by `max(context_window, 1)` tokens, which in the later one are context only; the last window is
    padded on the right. A context window of 0 is evaluation in blocks that share only the token that predicts the first
    target; the evaluation of Baevski and Auli (2019), section 4.3, has 2560 in blocks of 3072.

    Args:
        tokens: whole stream, (number of tokens,).
        block_size: tokens in a window.
        context_window: least number of tokens before a target, except near the start of the stream.

    Raises:
        ValueError: a context window that leaves no targets, or a stream without a target.
    """

    def __init__(self, tokens: np.ndarray, block_size: int, context_window: int = 0):
        check_windows(block_size, context_window)
        check_stream(tokens)
        self.tokens = tokens
        self.block_size = block_size
        self.overlap = max(context_window, 1)

    def __len__(self) -> int:
        return max(1, math.ceil((len(self.tokens) - self.overlap) / (self.block_size - self.overlap)))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start = index * (self.block_size - self.overlap)
        tokens = torch.from_numpy(self.tokens[start : start + self.block_size].astype(np.int64))
        labels = tokens.clone()
        labels[: self.overlap if index else 1] = IGNORED
        padding = (0, self.block_size - len(tokens))
        # causal attention never looks right, so that any token will do as padding
        return {"input_ids": F.pad(tokens, padding), "labels": F.pad(labels, padding, value=IGNORED)}


def check_stream(tokens: np.ndarray) -> None:
    """Check that there is a token to predict.

    Raises:
        ValueError: there is none.
    """
    if len(tokens) < 2:
        raise ValueError("the corpus has no tokens to predict; is its text empty for this tokenizer?")


def check_windows(block_size: int, context_window: int) -> None:
    """Check that windows of this many tokens have targets beside their context.

    Raises:
        ValueError: they have none.
    """
    if not 0 <= context_window < block_size or block_size < 2:
        raise ValueError(
            f"context_window={context_window} should be at least 0 and less than block_size={block_size}, "
            "which should be at least 2"
        )


def token_stream(text: Text, tokenizer: PreTrainedTokenizerBase) -> Iterator[np.ndarray]:
    """Iterate over the tokens of a corpus in arrays of any length; each document has the end token before it.

    Raises:
        ValueError: a tokenizer without an end token.
    """
    for tokens, _ in token_pieces(text, tokenizer):
        yield tokens


def token_pieces(
    text: Text, tokenizer: PreTrainedTokenizerBase, first: int = 0
) -> Iterator[tuple[np.ndarray, list[int]]]:
    """Iterate over the tokens of a corpus from one of its pieces on, several at a time.

    A piece is a document after its end token; of lines, the end token is the first piece, and then a run of lines is
    one. Pieces before the first are not tokenized.

    Returns:
        An iterator over tokens, and how many each of their pieces has. Raises what `token_stream` raises.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError(f"tokenizer {tokenizer.name_or_path!r} has no eos_token to put between documents")
    if text.documents:
        text = text.skip(first)
    elif first:
        text = text.skip((first - 1) * text.batch_size)
    else:
        yield np.array([tokenizer.eos_token_id]), [1]
    for table in text.tokenized(_tokenize, {"tokenizer": tokenizer, "documents": text.documents}):
        ids = table["input_ids"].combine_chunks()
        yield ids.flatten().to_numpy(), ids.value_lengths().to_pylist()


def all_tokens(text: Text, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Read the tokens of a corpus as a whole. Raises what `token_stream` and `check_known` raise."""
    tokens = np.concatenate(list(token_stream(text, tokenizer)))
    check_known(tokens, tokenizer)
    return tokens


def _tokenize(batch: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase, documents: bool) -> dict[str, list[Any]]:
    encoded = tokenizer(join_lines(batch["text"], documents), add_special_tokens=False, verbose=False)
    before = [tokenizer.eos_token_id] if documents else []
    return {"input_ids": [np.array(before + ids, dtype=np.int32) for ids in encoded.input_ids]}
