"""What all rows begin with is computed once, and each row has the scores that it has alone."""

import pytest
import torch
from families import build
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from sublayers.modeling import shared_prefix

ORDERS = ["sfsf", "fsfs", "s2f2", "wfsf", "sfmf"]
POSITIONS = ["sinusoidal", "learned", "rotary"]
PREFIX = torch.arange(5, 17)
RESTS = [[1, 2, 3], [1], [4, 5, 6, 7, 8, 9], [1, 2, 3]]


@pytest.fixture(autouse=True)
def saving(monkeypatch):
    monkeypatch.setattr(shared_prefix, "LEAST_SAVED", 30)


def make(order="sfsf", head=AutoModelForCausalLM, **options):
    options |= {"attention_window": 4} if "w" in order else {}
    return build("sandwich_lm", head, sublayer_order=order, vocab_size=30, pad_token_id=0, **options).eval()


def rows(side, prefix=PREFIX):
    """All rows, padded on a side, and each by itself."""
    alone = [torch.cat([prefix, torch.tensor(rest)])[None] for rest in RESTS]
    longest = max(row.shape[1] for row in alone)
    shape = {"left": lambda gap: (gap, 0), "right": lambda gap: (0, gap)}[side]
    pads = [shape(longest - row.shape[1]) for row in alone]
    ids = torch.cat([torch.nn.functional.pad(row, gap) for row, gap in zip(alone, pads, strict=True)])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}, alone


def count(model):
    """The tokens that the first map of the model sees, call by call."""
    seen = []
    first = next(module for module in model.modules() if type(module) is torch.nn.Linear)
    first.register_forward_hook(lambda _, args, output: seen.append(args[0].shape[:-1].numel()))
    return seen


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_rows_score_as_they_do_alone(order, positions, side):
    model = make(order, position_embedding_type=positions)
    expected = torch.cat([model(row, use_cache=False).logits[:, -1] for row in rows(side)[1]])
    batch = rows(side)[0]
    seen = count(model)
    last = (batch["attention_mask"] * torch.arange(len(batch["input_ids"][0]))).argmax(1, keepdim=True)
    found = model(**batch, logits_to_keep=last, use_cache=False).logits[:, 0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    # one row is the whole of another, and keeps its last token: 12 tokens are shared
    assert sum(seen) <= len(PREFIX) + sum(map(len, RESTS))


@torch.no_grad()
def test_classifiers_and_last_tokens_share_too():
    model = make(head=AutoModelForSequenceClassification)
    batch, alone = rows("right")
    expected = torch.cat([model(row).logits for row in alone])
    states = torch.cat([model.model(row).last_hidden_state[:, -1:] for row in alone])
    seen = count(model)
    torch.testing.assert_close(model(**batch).logits, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.model.forward_last_token(**batch).last_hidden_state, states, rtol=1e-5, atol=1e-5)
    assert sum(seen) == 2 * (len(PREFIX) + sum(map(len, RESTS)))


@torch.no_grad()
def test_equal_rows_keep_a_token_each():
    model = make()
    ids = PREFIX.repeat(5, 1)
    seen = count(model)
    found = model(ids, logits_to_keep=1, use_cache=False).logits
    torch.testing.assert_close(found, model(ids[:1], use_cache=False).logits[:, -1:].expand(5, -1, -1))
    assert seen[:2] == [11, 5]


def between(batch):
    batch["attention_mask"][0, 3] = 0


def padding_is_read(batch):
    batch["attention_mask"][0, -2:] = 0


def another_beginning(batch):
    batch["input_ids"][1] = batch["input_ids"][1].flip(0)


@pytest.mark.parametrize("change", [between, padding_is_read, another_beginning])
@torch.no_grad()
def test_what_does_not_begin_alike_runs_as_it_is(change, monkeypatch):
    model, batch = make(), {"input_ids": PREFIX.repeat(4, 1), "attention_mask": torch.ones(4, 12, dtype=torch.long)}
    change(batch)
    found = model(**batch, logits_to_keep=1, use_cache=False).logits
    seen = count(model)
    model(**batch, logits_to_keep=1, use_cache=False)
    assert len(seen) == 1
    monkeypatch.setattr(shared_prefix, "LEAST_SAVED", 10**6)
    torch.testing.assert_close(found, model(**batch, logits_to_keep=1, use_cache=False).logits)


def test_gradients_caches_and_states_of_all_tokens_are_as_ever():
    model, ids = make(), PREFIX.repeat(5, 1)
    seen = count(model)
    model(ids, logits_to_keep=1, use_cache=False)
    with torch.no_grad():
        assert model(ids, logits_to_keep=1, use_cache=True).cache.get_seq_length() == 12
        model(ids, use_cache=False)
        model(ids, logits_to_keep=1, use_cache=False, output_hidden_states=True)
        model(inputs_embeds=model.get_input_embeddings()(ids), logits_to_keep=1, use_cache=False)
        model(ids, logits_to_keep=1, use_cache=False, position_ids=torch.arange(12)[None])
    assert all(number == 60 for number in seen)


@torch.no_grad()
def test_rows_go_on_from_the_state_of_what_they_share():
    model = build("sandwich_lm", sublayer_order="gfsf", short_kernel_size=3, vocab_size=30, pad_token_id=0).eval()
    batch, alone = rows("right")
    last = (batch["attention_mask"] * torch.arange(len(batch["input_ids"][0]))).argmax(1, keepdim=True)
    found = model(**batch, logits_to_keep=last, use_cache=False).logits[:, 0]
    expected = torch.cat([model(row, use_cache=False).logits[:, -1] for row in alone])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
