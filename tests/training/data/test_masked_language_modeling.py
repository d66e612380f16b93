import math

import datasets
import numpy as np
import pytest
import torch
from number_words import SPECIAL, numbers_tokenizer, rows
from torch.utils.data import DataLoader
from transformers import DataCollatorForTokenClassification

from sublayers.training.data.corpus import Text
from sublayers.training.data.masked_language_modeling import (
    SentencePairs,
    Sentences,
    TokenWindows,
    check_tokenizer,
    pad_examples,
    tokenize_sentences,
)
from sublayers.training.data.tokenizers import BERT_SPECIAL_TOKENS, train_tokenizer

TOKENIZER = numbers_tokenizer(4000)


def corpus(*documents: list[int]) -> Sentences:
    """Sentences of these lengths, whose tokens are all different."""
    lengths = [length for document in documents for length in document]
    ends = np.cumsum([sum(document) for document in documents])
    tokens = np.arange(sum(lengths), dtype=np.int32) + len(SPECIAL)
    return Sentences(tokens, np.concatenate([[0], np.cumsum(lengths)]), np.concatenate([[0], ends]))


def drawn(examples, epoch: int = 0) -> list[dict]:
    """The examples of an epoch without their masks."""
    examples.epoch.fill_(epoch)
    plain = []
    for index in range(len(examples)):
        example = examples[index]
        masked = example["labels"] != -100
        plain.append(example | {"input_ids": np.where(masked, example["labels"], example["input_ids"])})
    return plain


def segments(pair: dict) -> tuple[np.ndarray, np.ndarray]:
    """Positions in the corpus of the tokens of A and of B."""
    tokens, types = pair["input_ids"], pair["token_type_ids"]
    a, b = tokens[types == 0], tokens[types == 1]
    assert (a[0], a[-1], b[-1]) == (SPECIAL["cls"], SPECIAL["sep"], SPECIAL["sep"])
    return a[1:-1] - len(SPECIAL), b[:-1] - len(SPECIAL)


def test_sentences_and_documents_are_found():
    tokenizer = train_tokenizer(["abcdefghijklmnopqrstuvwxyz ABC .!?\"'“”()1234567890 é É"], "wordpiece", 90)
    # the abbreviation before a small letter ends nothing
    sentences = ['He said "go." ', "“Is it?” ", "(Écoute!) ", "She left at 3.50 p.m. yesterday. e.g. so\n\n"]
    sentences += ["  next line", "é"]
    found = tokenize_sentences(rows("".join(sentences[:-1]), "", sentences[-1]), tokenizer)
    flat = [tokenizer(text, add_special_tokens=False).input_ids for text in sentences]
    assert found.tokens.tolist() == [token for ids in flat for token in ids]
    assert found.sentences.tolist() == [0, *np.cumsum([len(ids) for ids in flat])]
    assert found.documents.tolist() == [0, sum(map(len, flat[:-1])), sum(map(len, flat))]


def test_blank_lines_divide_lines_into_documents():
    lines = ["0 1\n", "2\n", "\n", "4\n", " \n", "\n", "6\n", "8"]
    text = Text(datasets.Dataset.from_dict({"text": lines}), documents=False)
    found = tokenize_sentences(text, TOKENIZER)
    assert found.documents.tolist() == [0, 3, 4, 6]
    assert found.sentences.tolist() == [0, 2, 3, 4, 5, 6]
    with pytest.raises(ValueError, match="has no tokens to mask"):
        tokenize_sentences(rows(" ", "\n"), TOKENIZER)


def test_windows_hold_every_token_once():
    text = corpus([3, 4], [9, 1, 1], [2])
    windows = TokenWindows(text, TOKENIZER, 5)
    # short examples, too, have a mask
    assert {int((windows[index]["labels"] != -100).sum()) for index in range(len(windows))} == {1}
    inner = []
    for window in drawn(windows):
        first, *tokens, last = window["input_ids"].tolist()
        assert (first, last) == (SPECIAL["cls"], SPECIAL["sep"])
        inner += tokens
    expected = []
    for start, end in zip(text.documents, text.documents[1:], strict=False):
        expected += [SPECIAL["sep"], *text.tokens[start:end].tolist()]
    assert inner == expected[1:]


@pytest.mark.parametrize("block_size", [5, 16, 64])
def test_pairs_are_the_next_or_random_sentences_of_another_document(block_size):
    rng = np.random.default_rng(0)
    # also sentences longer than a block, documents of one sentence and of one token
    text = corpus(*[rng.integers(1, 20, size=n).tolist() for n in (40, 1, 60, 7)], [1], [2], [100, 3])
    pairs = SentencePairs(text, TOKENIZER, block_size)
    document = np.searchsorted(text.documents, np.arange(len(text.tokens)), side="right")
    labels, seen, random_documents = [], np.zeros(len(text.tokens), dtype=bool), set()
    for epoch in range(8):
        for pair in drawn(pairs, epoch):
            a, b = segments(pair)
            assert len(pair["input_ids"]) <= block_size
            for segment in (a, b):
                assert (np.diff(segment) == 1).all()
                # of one document, and not empty
                assert len(set(document[segment])) == 1
            labels.append(pair["next_sentence_label"])
            if labels[-1] == 0:
                assert b[0] == a[-1] + 1
                assert document[a[0]] == document[b[0]]
                seen[a] = seen[b] = True
            else:
                assert document[a[0]] != document[b[0]]
                random_documents.add(document[b[0]])
    assert np.mean(labels) == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(len(labels)))
    # what is not seen are runs of one token
    assert seen.sum() >= len(seen) - len(pairs.runs)
    assert random_documents >= {1, 3, 7}


def test_pairs_consist_of_whole_sentences_and_fill_the_block():
    text = corpus([3] * 48, [4] * 50)
    starts = set(text.sentences.tolist())
    pairs = drawn(SentencePairs(text, TOKENIZER, 24))
    assert pairs
    for pair in pairs:
        a, b = segments(pair)
        assert {a[0], a[-1] + 1, b[0]} <= starts
        # only a sentence that does not fit is cut
        assert b[-1] + 1 in starts or (len(b) < 4 and len(a) + len(b) == 24 - 3)
        ends = {text.documents[1] - 1, text.documents[2] - 1}
        assert b[-1] in ends or a[-1] in ends or len(a) + len(b) > 24 - 3 - 4


def test_a_single_document_gives_random_sentences_from_outside_the_run():
    text = corpus([3, 5, 2] * 20)
    pairs = SentencePairs(text, TOKENIZER, 24)
    for epoch in range(50):
        for (start, end), pair in zip(pairs.runs, drawn(pairs, epoch), strict=True):
            _, b = segments(pair)
            assert pair["next_sentence_label"] == (not (start <= b[0] < end))
            assert not pair["next_sentence_label"] or not np.isin(b, np.arange(start, end)).any()
    with pytest.raises(ValueError, match="too small for pairs of segments in blocks of 512 tokens"):
        SentencePairs(text, TOKENIZER, 512)


def test_every_epoch_draws_anew_and_the_same_whenever_it_is_asked():
    text = corpus([3, 5, 2] * 40, [4] * 40)

    def epoch(number: int, seed: int) -> list[list[int]]:
        pairs = SentencePairs(text, TOKENIZER, 32, seed=seed)
        pairs.epoch.fill_(number)
        return [pairs[index]["input_ids"].tolist() for index in reversed(range(len(pairs)))][::-1]

    assert epoch(0, 0) == epoch(0, 0)
    assert sum(a == b for a, b in zip(epoch(0, 0), epoch(1, 0), strict=True)) == 0
    assert sum(a == b for a, b in zip(epoch(0, 0), epoch(0, 1), strict=True)) == 0


def test_workers_that_live_on_see_the_epoch():
    windows = TokenWindows(corpus([50]), TOKENIZER, 16)
    loader = DataLoader(windows, batch_size=None, num_workers=1, persistent_workers=True)
    for epoch in range(2):
        windows.epoch.fill_(epoch)
        for index, window in enumerate(loader):
            assert np.array_equal(window["input_ids"], windows[index]["input_ids"])


def test_masks_are_80_10_10_of_15_percent():
    windows = TokenWindows(corpus([4000]), TOKENIZER, 102)
    fates = {"mask": 0, "random": 0, "same": 0}
    chosen = np.zeros(4000)
    for epoch in range(25):
        windows.epoch.fill_(epoch)
        for index in range(len(windows)):
            example = windows[index]
            original = windows.draw(index, np.random.default_rng())["input_ids"]
            masked = example["labels"] != -100
            assert masked.sum() == 15
            assert np.array_equal(example["labels"][masked], original[masked])
            assert np.array_equal(example["input_ids"][~masked], original[~masked])
            chosen[original[masked] - len(SPECIAL)] += 1
            for new, old in zip(example["input_ids"][masked], original[masked], strict=True):
                fates["mask" if new == SPECIAL["mask"] else "same" if new == old else "random"] += 1
                assert new >= SPECIAL["mask"]
    total = sum(fates.values())
    for fate, share in {"mask": 0.8, "random": 0.1, "same": 0.1}.items():
        assert fates[fate] / total == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / total))
    # each token is as likely as any other
    assert chosen.max() < 15
    assert chosen.var() == pytest.approx(25 * 0.15 * 0.85, rel=0.15)


def test_whole_words_are_masked_each_token_by_itself():
    windows = TokenWindows(corpus([3999]), TOKENIZER, 101, whole_word_mask=True)
    mixed, shares = 0, []
    for index in range(len(windows)):
        example = windows[index]
        original = windows.draw(index, np.random.default_rng())["input_ids"] - len(SPECIAL)
        masked = example["labels"] != -100
        shares.append(masked[1:-1].mean())
        pairs = [(i, i + 1) for i in range(1, len(original) - 2) if original[i] % 2 == 0]
        for first, second in pairs:
            assert masked[first] == masked[second]
            is_mask = example["input_ids"][[first, second]] == SPECIAL["mask"]
            mixed += is_mask.sum() == 1
    assert 0.15 <= np.mean(shares) <= 0.165
    assert mixed > 0
    assert not masked[[0, -1]].any()


def test_batches_are_padded_as_by_transformers():
    pairs = SentencePairs(corpus([3, 5, 2] * 10, [4] * 7), TOKENIZER, 32)
    examples = [pairs[index] for index in range(len(pairs))]
    assert len({len(example["input_ids"]) for example in examples}) > 1
    expected = DataCollatorForTokenClassification(TOKENIZER)([dict(example) for example in examples])
    batch = pad_examples(examples, TOKENIZER.pad_token_id)
    assert batch.keys() == expected.keys()
    for name, tensor in batch.items():
        assert torch.equal(tensor, expected[name]), name


def test_unfit_tokenizers_are_refused():
    byte = train_tokenizer([], "byte", 0)
    with pytest.raises(ValueError, match="has no cls_token and no sep_token and no mask_token"):
        check_tokenizer(byte, whole_word_mask=False)
    byte.add_special_tokens(
        {name: text for name, text in BERT_SPECIAL_TOKENS.items() if name[:3] in ("cls", "sep", "mas")}
    )
    check_tokenizer(byte, whole_word_mask=False)
    with pytest.raises(ValueError, match="--whole_word_mask needs a WordPiece tokenizer"):
        check_tokenizer(byte, whole_word_mask=True)
