"""The texts that teacher and student read."""

import copy
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, IterableDataset
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

from sublayers.training.data.corpus import Text, join_lines
from sublayers.training.data.files import Rows
from sublayers.training.data.language_modeling import all_tokens, check_stream, token_stream
from sublayers.training.data.masked_language_modeling import MASKED_SHARE, SENTENCES

# of the choice of masked words
SEED = 0


def encode_texts(text: Text, tokenizer: PreTrainedTokenizerBase, max_length: int, by_sentence: bool) -> Rows:
    """Tokenize a corpus by sentences, or else by rows (lines of a .txt); what is empty is left out.

    A row with a tab in it is a pair of texts.

    Args:
        text: the corpus.
        tokenizer: of the teacher.
        max_length: tokens of a text or pair, special ones included; the longer text is cut first.
        by_sentence: what ends a sentence is said in `tokenize_sentences`.

    Returns:
        Rows with the tokenizer's own columns but the mask.

    Raises:
        ValueError: there is nothing but empty texts.
    """
    names, documents = [name for name in tokenizer("") if name != "attention_mask"], text.documents

    def encode(batch: dict[str, list[str | None]]) -> dict[str, list[list[int]]]:
        encoded: dict[str, list[list[int]]] = {name: [] for name in names}
        rows = ((text or "").split("\t", 1) for text in batch["text"])
        for parts in _sentences(batch["text"], documents) if by_sentence else rows:
            row = tokenizer(*parts, truncation=True, max_length=max_length)
            if len(row["input_ids"]) > tokenizer.num_special_tokens_to_add(pair=len(parts) > 1):
                for name in names:
                    encoded[name].append(row[name])
        return encoded

    rows = _map(text.rows, encode, "Tokenizing texts", True, batch_size=text.batch_size, remove_columns=["text"])
    if next(iter(rows), None) is None:
        raise ValueError("the text has no sentences; is it empty for the teacher's tokenizer?")
    return rows


def cut_stream(text: Text, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Rows:
    """Cut a corpus into windows of `max_length` tokens, as `Windows` does; the last one may be shorter.

    Raises:
        ValueError: what `all_tokens` refuses, or a corpus without a token to predict.
    """
    if isinstance(text.rows, IterableDataset):
        source = {"text": text, "tokenizer": tokenizer, "max_length": max_length}
        return IterableDataset.from_generator(_windows, gen_kwargs=source)
    tokens = all_tokens(text, tokenizer)
    check_stream(tokens)
    # the last token of a window is the first one of the next, so that each is predicted once
    starts = range(0, len(tokens) - 1, max_length - 1)
    return Dataset.from_dict({"input_ids": [tokens[start : start + max_length] for start in starts]})


def padding(tokenizer: PreTrainedTokenizerBase) -> Any:
    """Make what pads texts to a batch: with any token where the tokenizer has none for that, as none is read."""
    if tokenizer.pad_token is None:
        # a copy shares its backend
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.pad_token = tokenizer.eos_token
    return DataCollatorWithPadding(tokenizer)


def mask_words(rows: Rows, tokenizer: PreTrainedTokenizerBase) -> Rows:
    """Put [MASK] in the place of 15 % of the tokens of each row, and of one at least, that are not [CLS] or [SEP].

    Which ones follows from the row's number alone, so that all students see the same.
    """
    kept = {tokenizer.cls_token_id, tokenizer.sep_token_id}

    def mask(ids: list[int], index: int) -> dict[str, list[int]]:
        places = [place for place, token in enumerate(ids) if token not in kept]
        number = max(1, round(MASKED_SHARE * len(places)))
        masked = {*np.random.default_rng((SEED, index)).permutation(places)[:number].tolist()}
        return {"input_ids": [tokenizer.mask_token_id if i in masked else token for i, token in enumerate(ids)]}

    return _map(rows, mask, "Masking words", with_indices=True, input_columns="input_ids")


def count_answers(rows: IterableDataset, count: Callable[[Any], np.ndarray]) -> IterableDataset:
    """Add to each text of a stream its number of answers, as `counts`, and begin again where the stream ends."""
    # a run that goes on leaves out as many texts as it has read, also where it has read some twice
    return rows.map(lambda texts: {"counts": count(texts)}, batched=True).repeat(None)


def hash_rows(rows: Dataset) -> str:
    """Hash the tokens of rows, and those of their targets."""
    digest = hashlib.sha256()
    for table in rows.with_format("arrow").iter(batch_size=1000):
        for name in [name for name in ("input_ids", "labels") if name in table.column_names]:
            ids = table[name].combine_chunks()
            for numbers in (pc.list_value_length(ids), ids.flatten()):
                digest.update(numbers.to_numpy().astype("int64").tobytes())
    return digest.hexdigest()


def _map(rows: Rows, function: Callable[..., Any], what: str, batched: bool = False, **options: Any) -> Any:
    # a stream is mapped while it is read, and has no bar
    bar = {"desc": what} if isinstance(rows, Dataset) else {}
    return rows.map(function, batched=batched, **options, **bar)


def _windows(text: Text, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Iterator[dict[str, np.ndarray]]:
    rest = np.empty(0, np.int64)
    for tokens in token_stream(text, tokenizer):
        rest = np.concatenate([rest, tokens])
        while len(rest) >= max_length:
            yield {"input_ids": rest[:max_length]}
            rest = rest[max_length - 1 :]
    if len(rest) > 1:
        yield {"input_ids": rest}


def _sentences(texts: list[str | None], documents: bool) -> Iterator[list[str]]:
    for piece in join_lines(texts, documents):
        for sentence, _ in SENTENCES.pre_tokenize_str(piece):
            if stripped := sentence.strip():
                yield [stripped]
