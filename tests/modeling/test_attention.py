from contextlib import nullcontext

import pytest
import torch
from common import randomize, tokens
from families import FAMILIES, build, inputs
from torch import nn
from transformers import AutoModelForSequenceClassification

from sublayers.modeling.mixers.attention import SelfAttention


@pytest.fixture
def classifier():
    model = build("par_bert", AutoModelForSequenceClassification, sublayer_order="sfsf2")
    return randomize(model).eval()


def last_attention(model) -> SelfAttention:
    return [module for module in model.modules() if isinstance(module, SelfAttention)][-1]


@torch.no_grad()
def by_hand(attention, states, mask, position):
    """Keys and values of all states, and the loop over rows and heads that everybody knows."""
    mixed = torch.zeros_like(states[:, 0])
    query, key, value = (proj(states) for proj in (attention.q_proj, attention.k_proj, attention.v_proj))
    for row in range(len(states)):
        for start in range(0, states.shape[-1], attention.head_dim):
            head = slice(start, start + attention.head_dim)
            scores = key[row, :, head] @ query[row, position[row], head] / attention.head_dim**0.5
            weights = scores.masked_fill(mask[row] == 0, -torch.inf).softmax(0)
            mixed[row, head] = weights @ value[row, :, head]
    return attention.o_proj(mixed)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@torch.no_grad()
def test_one_query_needs_no_keys_and_values(classifier, backend, monkeypatch):
    classifier.set_attn_implementation(backend)
    attention = last_attention(classifier)
    mask, position = torch.ones(3, 7), torch.tensor([[0], [2], [6]])
    mask[0, 4:] = mask[1, :2] = 0
    states = torch.randn(3, 7, attention.q_proj.in_features)
    for name in ("k_proj", "v_proj"):
        monkeypatch.setattr(getattr(attention, name), "forward", None)
    visible = mask[:, None, None].bool().expand(3, 1, 7, 7)
    given = visible if backend == "sdpa" else torch.zeros(visible.shape).masked_fill(~visible, -1e9)
    found, _ = attention(states, given, read_positions=position)
    monkeypatch.undo()
    torch.testing.assert_close(found[:, 0], by_hand(attention, states, mask, position[:, 0]), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_whoever_watches_or_replaces_a_map_sees_it_called(classifier):
    seen = []
    wanted = classifier(tokens(2, 7)).logits
    attention = last_attention(classifier)
    for name in ("k_proj", "v_proj"):
        hook = getattr(attention, name).register_forward_hook(lambda *given: seen.append(given[-1].shape))
        torch.testing.assert_close(classifier(tokens(2, 7)).logits, wanted)
        hook.remove()
        assert seen.pop() == (2, 7, attention.k_proj.out_features)
    attention.v_proj = nn.Sequential(attention.v_proj, nn.Identity())
    attention.v_proj[1].register_forward_hook(lambda *given: 2 * given[-1])
    assert not torch.allclose(classifier(tokens(2, 7)).logits, wanted)


class Doubled(nn.Module):
    """What stands in a linear map's place, and has none of its attributes."""

    def __init__(self, layer):
        super().__init__()
        self.inner = layer

    def forward(self, states):
        return 2 * self.inner(states)


def double(model):
    for name, module in [*model.named_modules()]:
        if type(module) is nn.Linear:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, Doubled(module))
    return model


def watch(model):
    for module in model.modules():
        if type(module) is nn.Linear:
            module.register_forward_hook(lambda *given: 2 * given[-1])
    return model


def quantize(model):
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    assert not any(type(module) is nn.Linear for module in quantized.modules())
    return quantized


CLASSIFIERS = ["par_bert", "macaron_bert", "sandwich_lm", "par_transformer_xl"]


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(("replace", "expect", "tolerance"), [(double, watch, 1e-5), (quantize, nn.Module.eval, 0.2)])
@pytest.mark.parametrize("family", [*FAMILIES, *(f"{family} classifier" for family in CLASSIFIERS)])
def test_maps_may_be_replaced_by_anything(family, replace, expect, tolerance, mode):
    name, _, is_classifier = family.partition(" ")
    head = AutoModelForSequenceClassification if is_classifier else None
    expected, replaced = expect(build(name, head)), replace(build(name, head))
    padded = inputs(expected)
    # so few tokens that distances are mapped in another way
    short = {name: rows[:1, :3] for name, rows in padded.items()}
    for batch in (padded, short):
        with mode():
            wanted, found = expected(**batch).logits, replaced(**batch).logits
        assert (found - wanted).norm() / wanted.norm() < tolerance


@pytest.mark.parametrize("trained", ["k_proj.weight", "k_proj.bias", "v_proj.weight", "q_proj.weight"])
def test_what_alone_is_trained_has_its_gradient_in_evaluation(classifier, trained):
    classifier.requires_grad_(False)
    last_attention(classifier).get_parameter(trained).requires_grad_()
    classifier(tokens(2, 7)).logits.sum().backward()
    found = last_attention(classifier).get_parameter(trained).grad
    classifier.zero_grad()
    # nothing is dropped
    classifier.train()(tokens(2, 7)).logits.sum().backward()
    torch.testing.assert_close(found, last_attention(classifier).get_parameter(trained).grad, atol=1e-5, rtol=1e-5)
