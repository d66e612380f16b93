import math

import pytest
import torch
from common import assert_same, gradients, tokens
from common_naive import NaiveNetwork
from families import ROWS

from sublayers import SandwichCharLMForCausalLM
from sublayers.modeling.mixers.span_attention import QUERIES, STEP

ROW = ROWS["sandwich_char_lm"]


@pytest.mark.parametrize("adaptive", [True, False])
@torch.no_grad()
def test_equals_a_naive_network_in_every_order(adaptive):
    for orders in ROW.orders:
        for span in (5, 64):
            model = ROW.main(*orders, attention_span=span, adaptive_span=adaptive)
            found, expected = model(tokens(1, 9)).logits[0], naive_logits(model, tokens(1, 9)[0])
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


class NaiveCharLM(NaiveNetwork):
    """Attention as the paper has it: masks after the softmax, zeros before the text."""

    def attend(self, inputs, seen, name, kind):
        config, heads, span = self.config, self.heads, self.config.attention_span
        q, k, v = ([self.affine(x, f"{name}.mixer.{p}_proj").view(heads, -1) for x in inputs] for p in "qkv")
        outputs, nothing = [], torch.zeros_like(q[0])
        for i in range(len(inputs)):
            mixed = []
            for h in range(heads):
                scores, masks, values = [], [], []
                for distance in range(1, span + 1):
                    key, value = (k[i - distance], v[i - distance]) if i >= distance else (nothing, nothing)
                    scores.append(q[i][h] @ (key[h] + self.weights["model.positions.table"][span - distance]))
                    share = self.weights[f"{name}.mixer.span"][h] if config.adaptive_span else torch.tensor(math.inf)
                    masks.append(((1 - distance + share * span) / config.span_ramp_size + 1).clamp(0, 1))
                    values.append(value[h])
                kept = (torch.stack(scores) / math.sqrt(len(q[i][h]))).softmax(0) * torch.stack(masks)
                mixed.append(sum(p * x for p, x in zip(kept / kept.sum(), values, strict=True)))
            outputs.append(self.affine(torch.cat(mixed), f"{name}.mixer.o_proj"))
        return outputs


def naive_logits(model, ids):
    naive = NaiveCharLM(model)
    states = [naive.look_up("model", token) for token in ids]
    states = naive.run("model", states, model.config.sublayer_order, is_causal=True)
    return torch.stack([naive.affine(x, "lm_head") for x in states])


def char_lm(spans: list[list[float]], **options) -> SandwichCharLMForCausalLM:
    model = ROW.main("s" * len(spans) + "f", **options)
    with torch.no_grad():
        for attention, span in zip(model.model.span_attentions(), spans, strict=True):
            attention.span.copy_(torch.tensor(span))
    return model


def test_spans_cost_what_the_paper_says_in_training_only():
    model = char_lm([[0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.5, 0.5]], attention_span=100, span_loss=0.01)
    batch = {"input_ids": tokens(2, 9), "labels": tokens(2, 9)}
    plain = model(**batch).loss
    assert model.span_loss().item() == pytest.approx(0.01 * 100 * (0.25 + 0.5))
    torch.testing.assert_close(model.train()(**batch).loss, plain + 0.75)
    # half of the labels of an accumulated batch pay half of it
    torch.testing.assert_close(model(**batch, num_items_in_batch=32).loss, (plain + 0.75) / 2)


def test_the_next_step_brings_shares_back_between_0_and_1():
    model = char_lm([[-0.3, 0.2, 1.7, 0.4]]).train()
    model(tokens(1, 3))
    assert model.model.layers[0].mixer.span.tolist() == pytest.approx([0, 0.2, 1, 0.4])


def test_spans_learn_and_their_gradients_are_those_of_the_paper():
    # no mask ends right at a token, where its slope has two values
    model = char_lm([[0.053, 0.21, 0.33, 0.47]], attention_span=40, span_ramp_size=8)
    ids = tokens(1, 12)
    model(ids).logits.square().sum().backward()
    found = gradients(model)
    model.zero_grad()
    attention = model.model.layers[0].mixer
    weights = dict(model.named_parameters())
    model.state_dict = lambda *_, **__: weights
    naive_logits(model, ids[0]).square().sum().backward()
    assert attention.span.grad.abs().min() > 0
    assert_same(found, gradients(model), atol=1e-4, rtol=1e-4)


def test_a_trained_span_saves_memory_and_time():
    longest = 1024
    model = char_lm([[0.01, 0.0, 0.02, 0.0], [0.0, 0.4, 0.1, 0.2]], attention_span=longest)
    first, second = model.model.span_attentions()
    # as far as the longest head reads, in whole steps from the longest span down
    assert (first.read_length, second.read_length) == (STEP, math.ceil((0.4 * longest + 4) / STEP) * STEP)
    assert (first.memory_length, second.memory_length) == (2 * STEP, second.read_length + STEP)
    seen = []
    second.read = lambda *inputs: seen.append(inputs[-1].shape[0]) or type(second).read(second, *inputs)
    memory = model.empty_memory(1)
    for start in range(0, 1200, 300):
        memory = model(tokens(1, 1200)[:, start : start + 300], memory=memory).memory
    assert [remembered.shape[1] for remembered in memory] == [first.memory_length, second.memory_length]
    cache = model(tokens(1, 1200), use_cache=True).cache
    assert [layer.keys.shape[2] for layer in cache.layers] == [first.read_length, second.read_length]
    assert {*seen} == {second.read_length}


def test_long_texts_are_read_in_parts():
    model = char_lm([[0.0, 0.4, 0.1, 0.2]], attention_span=80)
    ids = tokens(1, QUERIES + 100)
    whole = model(ids).logits
    memory = model(ids[:, :300], memory=model.empty_memory(1)).memory
    torch.testing.assert_close(model(ids[:, 300:], memory=memory).logits, whole[:, 300:], atol=1e-5, rtol=1e-5)


def test_a_memory_that_is_too_short_is_one_of_zeros():
    for orders in ROW.orders:
        model = ROW.main(*orders)
        zeros = [torch.zeros(2, s.memory_length, 16) for s in model.model.span_attentions()]
        expected = model(tokens(2, 9), memory=zeros)
        torch.testing.assert_close(model(tokens(2, 9), memory=model.empty_memory(2)).logits, expected.logits)
