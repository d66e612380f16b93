import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import EvalPrediction, GPT2Config, GPT2LMHeadModel

from sublayers.training.data.corpus import Text
from sublayers.training.data.language_modeling import Windows, token_stream
from sublayers.training.data.tokenizers import train_tokenizer
from sublayers.training.metrics.language_modeling import language_modeling_metrics, recalled, token_losses

TOKENIZER = train_tokenizer([], "byte", 0)


def documents(*texts):
    return Text(Dataset.from_dict({"text": list(texts)}))


def stream(text):
    return np.concatenate(list(token_stream(text, TOKENIZER)))


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
    bits = {"bits_per_byte": 60 / 5, "bits_per_character": 60 / 4}
    assert metrics == pytest.approx({"loss": math.log(1024), "perplexity": 1024} | bits)


def test_an_enormous_loss_does_not_end_the_run():
    labels = np.array([[-100, 1]])
    metrics = language_modeling_metrics(documents("a"))(EvalPrediction(np.array([[0.0, 1e4]]), labels))
    assert metrics["loss"] == 1e4
    assert math.isfinite(metrics["perplexity"])


def test_recalled_tokens_are_those_of_a_pair_seen_before_in_its_window_only():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 24, (6, 60))
    labels[rng.random(labels.shape) < 0.1] = -100
    pairs = [[(a, b) if -100 not in (a, b) else None for a, b in pairwise(row)] for row in labels.tolist()]
    expected = np.zeros(labels.shape, bool)
    for i, row in enumerate(pairs):
        others = [pair for j, other in enumerate(pairs) if j != i for pair in other]
        for position, pair in enumerate(row):
            expected[i, position + 1] = pair is not None and pair in row[:position] and pair not in others
    assert 5 < expected.sum() < 30
    np.testing.assert_array_equal(recalled(labels), expected)


def test_the_recall_loss_is_that_of_recalled_tokens():
    labels = np.array([[-100, 7, 8, 1, 7, 8], [-100, 2, 3, 4, 5, 6]])
    losses = np.array([[0.0, 1, 1, 1, 1, 0.25], [0.0, 1, 1, 1, 1, 1]])
    metrics = language_modeling_metrics(documents("a"))(EvalPrediction(losses, labels))
    assert metrics["recall_loss"] == 0.25
