import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given, strategies as st

from sublayers.training.data.corpus import Text
from sublayers.training.data.language_modeling import Windows, token_stream
from sublayers.training.data.tokenizers import train_tokenizer

TOKENIZER = train_tokenizer([], "byte", 0)
END = TOKENIZER.eos_token_id


def documents(*texts):
    return Text(Dataset.from_dict({"text": list(texts)}))


def lines(*texts):
    return Text(documents(*texts).rows, documents=False)


def stream(text, tokenizer=TOKENIZER):
    return np.concatenate(list(token_stream(text, tokenizer)))


@given(st.integers(2, 60), st.integers(2, 12), st.integers(0, 11))
def test_windows_score_every_token_but_the_first_once_and_with_enough_context(length, block_size, context_window):
    context_window %= block_size
    windows = Windows(np.arange(100, 100 + length, dtype=np.int32), block_size, context_window)
    scored = []
    for index in range(len(windows)):
        window = windows[index]
        ids, labels = window["input_ids"].tolist(), window["labels"].tolist()
        assert len(ids) == len(labels) == block_size
        targets = [position for position, label in enumerate(labels) if label != -100]
        assert [ids[position] for position in targets] == [labels[position] for position in targets]
        assert ids[: targets[-1] + 1] == list(range(ids[0], ids[0] + targets[-1] + 1))
        if index:
            assert targets[0] == max(context_window, 1)
        scored += [labels[position] for position in targets]
    assert scored == list(range(101, 100 + length))


@pytest.mark.parametrize(("block_size", "context_window"), [(8, 8), (8, 9), (8, -1), (1, 0)])
def test_windows_without_targets_are_refused(block_size, context_window):
    with pytest.raises(ValueError, match=f"context_window={context_window} .* block_size={block_size}"):
        Windows(np.arange(10), block_size, context_window)
    with pytest.raises(ValueError, match="no tokens to predict"):
        Windows(np.arange(1), 8)


def test_documents_have_the_end_token_between_them_and_lines_do_not():
    assert TOKENIZER.decode(stream(documents("ab", "c\n", ""))).split("<|endoftext|>") == ["", "ab", "c\n", ""]
    assert stream(documents("ab", "é")).tolist().count(END) == 2
    assert TOKENIZER.decode(stream(lines("ab\n", "\n", " c"))) == "<|endoftext|>ab\n\n c"
    # tokens span lines
    text = ["if a:\n", "    b\n"] * 20
    tokenizer = train_tokenizer(["".join(text)], "bpe", 300)
    assert stream(lines(*text), tokenizer)[1:].tolist() == tokenizer("".join(text)).input_ids


def test_a_tokenizer_without_an_end_token_is_refused():
    tokenizer = train_tokenizer([], "byte", 0)
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="has no eos_token"):
        next(token_stream(documents("a"), tokenizer))
