import math

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings, strategies as st
from transformers import EvalPrediction, GPT2Config, GPT2LMHeadModel

from sublayers.training.data.corpus import Text
from sublayers.training.data.language_modeling import (
    Windows,
    language_modeling_metrics,
    stream_windows,
    token_losses,
    token_stream,
)
from sublayers.training.data.tokenizers import train_tokenizer

TOKENIZER = train_tokenizer([], "byte", 0)
END = TOKENIZER.eos_token_id


@pytest.fixture(autouse=True)
def one_thread():
    # threads that wait for each other make tiny models slow
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def documents(*texts):
    return Text(Dataset.from_dict({"text": list(texts)}))


def lines(*texts):
    return Text(Dataset.from_dict({"text": list(texts)}), documents=False)


def stream(text):
    return np.concatenate(list(token_stream(text, TOKENIZER)))


@st.composite
def sizes(draw):
    block_size = draw(st.integers(2, 12))
    return draw(st.integers(2, 60)), block_size, draw(st.integers(0, block_size - 1))


@given(sizes())
def test_windows_score_every_token_but_the_first_once_and_with_enough_context(case):
    length, block_size, context_window = case
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
    assert bytes(TOKENIZER.decode(stream(documents("ab", "c\n", ""))), "utf-8").split(b"<|endoftext|>") == [
        b"",
        b"ab",
        b"c\n",
        b"",
    ]
    assert stream(documents("ab", "é")).tolist().count(END) == 2
    assert TOKENIZER.decode(stream(lines("ab\n", "\n", " c"))) == "<|endoftext|>ab\n\n c"


def test_tokens_span_lines():
    text = ["if a:\n", "    b\n"] * 20
    tokenizer = train_tokenizer(["".join(text)], "bpe", 300)
    tokens = np.concatenate(list(token_stream(lines(*text), tokenizer)))
    assert tokens[1:].tolist() == tokenizer("".join(text)).input_ids


@settings(deadline=None, max_examples=30)
@given(st.lists(st.text("abc", max_size=30), min_size=1, max_size=5), st.integers(2, 20))
def test_streamed_windows_are_the_same_as_those_over_the_whole(texts, block_size):
    text = documents("a", *texts)
    whole = Windows(stream(text), block_size)
    streamed = list(stream_windows(Text(text.rows.to_iterable_dataset()), TOKENIZER, block_size))
    assert len(streamed) == len(whole)
    for index, window in enumerate(streamed):
        assert all(torch.equal(window[name], whole[index][name]) for name in ("input_ids", "labels"))


def test_a_tokenizer_without_an_end_token_is_refused():
    tokenizer = train_tokenizer([], "byte", 0)
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="has no eos_token"):
        next(token_stream(documents("a"), tokenizer))


@pytest.mark.parametrize(("block_size", "context_window"), [(16, 0), (16, 1), (16, 11), (16, 15), (64, 0)])
def test_the_loss_is_that_of_scoring_token_by_token(block_size, context_window):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(TOKENIZER), n_positions=64, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5
    )
    model = GPT2LMHeadModel(config).eval()
    text = documents("a tiny corpus", "…with a document of two")
    tokens = stream(text)
    losses = []
    # the windows as the papers describe them: this many new tokens at a time, each with what went before in its window
    fresh = block_size - max(context_window, 1)
    starts = [0] * (block_size - 1) + [s for n in range(1, len(tokens)) for s in [n * fresh] * fresh]
    with torch.no_grad():
        for position in range(1, len(tokens)):
            context = torch.from_numpy(tokens[starts[position - 1] : position]).long()
            losses.append(-model(context[None]).logits[0, -1].log_softmax(-1)[tokens[position]].item())
        windows = Windows(tokens, block_size, context_window)
        batches = [{k: v[None] for k, v in windows[index].items()} for index in range(len(windows))]
        per_token = torch.cat([token_losses(model(b["input_ids"]).logits, b["labels"]) for b in batches])
    labels = torch.cat([b["labels"] for b in batches])
    torch.testing.assert_close(per_token[labels != -100], torch.tensor(losses), atol=1e-5, rtol=1e-5)
    metrics = language_modeling_metrics(text)(EvalPrediction(per_token.numpy(), labels.numpy()))
    assert metrics["loss"] == pytest.approx(np.mean(losses), abs=1e-6)
    assert metrics["perplexity"] == pytest.approx(math.exp(np.mean(losses)), rel=1e-5)


def test_the_bits_of_a_uniform_model():
    text = documents("é", "abc")
    windows = Windows(stream(text), 4)
    labels = torch.stack([windows[index]["labels"] for index in range(len(windows))])
    losses = token_losses(torch.zeros(*labels.shape, 1024), labels)
    metrics = language_modeling_metrics(text)(EvalPrediction(losses.numpy(), labels.numpy()))
    # 5 bytes, 4 characters and the end between the documents, each 10 bits; the first end is given
    assert metrics == pytest.approx(
        {"loss": math.log(1024), "perplexity": 1024, "bits_per_byte": 60 / 5, "bits_per_character": 60 / 4}
    )


def test_an_enormous_loss_does_not_end_the_run():
    labels = np.array([[-100, 1]])
    metrics = language_modeling_metrics(documents("a"))(EvalPrediction(np.array([[0.0, 1e4]]), labels))
    assert metrics["loss"] == 1e4
    assert math.isfinite(metrics["perplexity"])
