"""Masked language modelling as in BERT: sentences of documents, pairs of them, and masks."""

import math
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
import torch
from tokenizers import Regex, pre_tokenizers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from sublayers.modeling.losses import IGNORED
from sublayers.training.data.corpus import Text

MASKED_SHARE = 0.15
# opening (Ps, Pi) and closing (Pe, Pf) punctuation belongs to the sentence that it surrounds
SENTENCES = pre_tokenizers.Split(
    Regex(r"""(?<=[.!?])["'\p{Pe}\p{Pf}]*\s+(?=["'\p{Ps}\p{Pi}]*\p{Lu})|\n+"""), behavior="merged_with_previous"
)


class Sentences(NamedTuple):
    """Tokens of a corpus, with the positions at which sentences and documents start and the number of tokens."""

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray


def tokenize_sentences(text: Text, tokenizer: PreTrainedTokenizerBase) -> Sentences:
    """Tokenize a corpus, and find its sentences and documents.

    A sentence ends with its line, or after a full stop, question or exclamation mark before a capital. Lines (`.txt`)
    are documents between blank lines.

    Raises:
        ValueError: a corpus without tokens.
    """
    parts = []
    for table in text.tokenized(_tokenize, {"tokenizer": tokenizer}, desc="Tokenizing sentences"):
        ids, lengths = (table[name].combine_chunks() for name in ("input_ids", "sentence_lengths"))
        parts.append([array.to_numpy() for array in (ids.flatten(), lengths.flatten(), pc.list_value_length(ids))])
    tokens, sentence_lengths, row_lengths = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    if not len(tokens):
        raise ValueError("the corpus has no tokens to mask; is its text empty for this tokenizer?")
    row_ends = np.cumsum(row_lengths)
    document_ends = row_ends if text.documents else row_ends[row_lengths == 0]
    # sentences and documents without tokens are left out
    sentences = np.unique(np.concatenate([[0], np.cumsum(sentence_lengths)]))
    return Sentences(tokens, sentences, np.unique(np.concatenate([[0], document_ends, [len(tokens)]])))


class MaskedExamples(ABC, Dataset):
    """Examples whose random choices follow from the seed, the epoch and the index alone.

    So a resumed run sees what it would have seen, every evaluation masks the same tokens, and neither depends on the
    batch size or on the number of processes. Of the tokens 15 % are chosen, of which 80 % become [MASK], 10 % a random
    one and 10 % stay (Devlin et al., 2019, section 3.1).

    Args:
        corpus: what to learn from.
        tokenizer: one that `check_tokenizer` accepts.
        block_size: most tokens in an example, special ones included.
        seed: of all random choices.
        whole_word_mask: choose whole words, the last of which may exceed the 15 %.
    """

    def __init__(
        self,
        corpus: Sentences,
        tokenizer: PreTrainedTokenizerBase,
        block_size: int,
        seed: int = 0,
        whole_word_mask: bool = False,
    ):
        self.tokens, self.sentences, self.documents = corpus
        self.block_size = block_size
        self.seed = seed
        self.cls, self.sep, self.mask = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id
        vocabulary = tokenizer.get_vocab()
        self.ordinary = np.setdiff1d(list(vocabulary.values()), tokenizer.all_special_ids)
        self.starts_word = np.ones(max(vocabulary.values()) + 1, dtype=bool)
        if whole_word_mask:
            self.starts_word[[number for token, number in vocabulary.items() if token.startswith("##")]] = False
        # workers that live on from epoch to epoch should see it change
        self.epoch = torch.zeros((), dtype=torch.long).share_memory_()

    def __getitem__(self, index: int) -> dict[str, Any]:
        rng = np.random.default_rng((self.seed, int(self.epoch), index))
        example = self.draw(index, rng)
        return example | self.masked(example["input_ids"], rng)

    @abstractmethod
    def draw(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """Return an example before it is masked, with `input_ids`, (length,)."""

    def masked(self, tokens: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Mask tokens, (length,), and return them as `input_ids` with `labels`, -100 where nothing is masked."""
        ordinary = np.flatnonzero((tokens != self.cls) & (tokens != self.sep))
        starts = self.starts_word[tokens[ordinary]]
        # an example may start within a word
        starts[:1] = True
        words = np.flatnonzero(starts)
        lengths = np.diff(words, append=len(ordinary))
        order = rng.permutation(len(words))
        before = np.cumsum(lengths[order]) - lengths[order]
        chosen_words = np.zeros(len(words), dtype=bool)
        chosen_words[order[before < max(1, round(MASKED_SHARE * len(ordinary)))]] = True
        chosen = ordinary[np.repeat(chosen_words, lengths)]
        labels = np.full_like(tokens, IGNORED)
        labels[chosen] = tokens[chosen]
        inputs = tokens.copy()
        fate = rng.random(len(chosen))
        inputs[chosen[fate < 0.8]] = self.mask
        replaced = chosen[fate >= 0.9]
        inputs[replaced] = self.ordinary[rng.integers(len(self.ordinary), size=len(replaced))]
        return {"input_ids": inputs, "labels": labels}


class TokenWindows(MaskedExamples):
    """Windows that hold every token once, with [SEP] between documents (FULL-SENTENCES of Liu et al., 2019, 4.2)."""

    def __init__(self, corpus: Sentences, tokenizer: PreTrainedTokenizerBase, block_size: int, **settings: Any):
        super().__init__(corpus, tokenizer, block_size, **settings)
        self.tokens = np.insert(self.tokens, self.documents[1:-1], self.sep)

    def __len__(self) -> int:
        return math.ceil(len(self.tokens) / (self.block_size - 2))

    def draw(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """Return the window as `input_ids`."""
        start = index * (self.block_size - 2)
        window = self.tokens[start : start + self.block_size - 2]
        return {"input_ids": np.concatenate([[self.cls], window, [self.sep]])}


class SentencePairs(MaskedExamples):
    """Pairs of segments, of which the second follows the first or else is from another document (label 1).

    The segments are runs of whole sentences of one document (Devlin et al., 2019, appendix A.2). Each example has a run
    of its own, of as many sentences as fit. Each epoch draws anew where the run is cut in two and, in half of the
    examples, what stands there instead of its second part: as many sentences from a random one on as fit, of
    another document or, where there is only one, from outside the run.

    Sentences longer than a pair are cut at its end, and those alone in their run in the middle.

    Raises:
        ValueError: a corpus without a second place to draw from.
    """

    def __init__(self, corpus: Sentences, tokenizer: PreTrainedTokenizerBase, block_size: int, **settings: Any):
        super().__init__(corpus, tokenizer, block_size, **settings)
        self.room = block_size - 3
        runs = np.array([run for start, end in pairwise(self.documents) for run in self._runs(start, end)])
        # one token is no pair
        self.runs = runs[runs[:, 1] - runs[:, 0] > 1]
        if len(self.runs) < 2:
            raise ValueError(
                f"the corpus is too small for pairs of segments in blocks of {block_size} tokens; "
                "give more text, a smaller --block_size or --objective mlm"
            )
        within = np.searchsorted(self.sentences, self.runs)
        alone = self.runs[within[:, 1] - within[:, 0] < 2]
        self.sentences = np.unique(np.concatenate([self.sentences, runs.ravel(), alone.sum(axis=1) // 2]))

    def __len__(self) -> int:
        return len(self.runs)

    def draw(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """Return a pair as `input_ids` and `token_type_ids`, with a `next_sentence_label`."""
        start, end = self.runs[index]
        first, last = np.searchsorted(self.sentences, (start, end))
        cut = self.sentences[rng.integers(first + 1, last)]
        is_random = int(rng.integers(2))
        following = self._elsewhere(start, end, self.room - (cut - start), rng) if is_random else slice(cut, end)
        a, b = self.tokens[start:cut], self.tokens[following]
        return {
            "input_ids": np.concatenate([[self.cls], a, [self.sep], b, [self.sep]]),
            "token_type_ids": np.repeat([0, 1], [len(a) + 2, len(b) + 1]),
            "next_sentence_label": is_random,
        }

    def _elsewhere(self, start: int, end: int, room: int, rng: np.random.Generator) -> slice:
        if len(self.documents) > 2:
            document = np.searchsorted(self.documents, start, side="right")
            start, end = self.documents[document - 1 : document + 1]
        first, last = np.searchsorted(self.sentences, (start, end))
        # the end of the last sentence starts none
        choice = rng.integers(len(self.sentences) - 1 - (last - first))
        begin = self.sentences[choice if choice < first else choice + last - first]
        limit = start if begin < start else len(self.tokens)
        limit = min(limit, self.documents[np.searchsorted(self.documents, begin, side="right")])
        return slice(begin, self._fit(begin, min(limit, begin + room)))

    def _runs(self, start: int, end: int) -> list[tuple[int, int]]:
        runs = []
        while start < end:
            stop = self._fit(start, min(end, start + self.room))
            runs.append((start, stop))
            start = stop
        return runs

    def _fit(self, start: int, limit: int) -> int:
        # whole sentences if there is room for one
        stop = self.sentences[np.searchsorted(self.sentences, limit, side="right") - 1]
        return stop if stop > start else limit


def pad_examples(examples: list[dict[str, Any]], pad_token_id: int) -> dict[str, Tensor]:
    """Make a batch of masked examples, padded on the right to the longest; `tokenizer.pad` takes 20 times as long."""
    examples = [example | {"attention_mask": np.ones_like(example["input_ids"])} for example in examples]
    padding = {"input_ids": pad_token_id, "token_type_ids": 0, "attention_mask": 0, "labels": IGNORED}
    batch = {
        name: pad_sequence([torch.from_numpy(example[name]) for example in examples], True, padding[name])
        for name in padding.keys() & examples[0].keys()
    }
    if "next_sentence_label" in examples[0]:
        batch["next_sentence_label"] = torch.tensor([example["next_sentence_label"] for example in examples])
    return batch


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, whole_word_mask: bool) -> None:
    """Check that a tokenizer has what masked examples are made of.

    Raises:
        ValueError: it lacks [CLS], [SEP], [MASK] or [PAD], or for whole words tokens that say that they continue one.
    """
    needed = ("cls_token", "sep_token", "mask_token", "pad_token")
    missing = [name for name in needed if getattr(tokenizer, name) is None]
    if missing:
        raise ValueError(
            f"tokenizer {tokenizer.name_or_path!r} has no {' and no '.join(missing)}; "
            "give one of BERT's kind, as --tokenizer_model wordpiece trains it"
        )
    if whole_word_mask and not any(token.startswith("##") for token in tokenizer.get_vocab()):
        raise ValueError(
            f"--whole_word_mask needs a WordPiece tokenizer, and {tokenizer.name_or_path!r} has no tokens "
            "that start with ##"
        )


def _tokenize(batch: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Any]]:
    texts = [text or "" for text in batch["text"]]
    encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    lengths = []
    for text, offsets in zip(texts, encoded.offset_mapping, strict=True):
        ends = [end for _, (_, end) in SENTENCES.pre_tokenize_str(text)]
        # a token belongs to the sentence in which it starts
        before = np.searchsorted(np.array([start for start, _ in offsets]), ends)
        lengths.append(np.diff(before, prepend=0).astype(np.int32))
    ids = [np.array(ids, dtype=np.int32) for ids in encoded.input_ids]
    return {"input_ids": ids, "sentence_lengths": lengths}
