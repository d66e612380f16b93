from contextlib import nullcontext

import pytest
import torch
from common import randomize, tokens
from families import FAMILIES, build, inputs
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForSequenceClassification

from sublayers import SandwichLMConfig, SandwichLMForCausalLM
from sublayers.configuration.sublayer_cost import flops
from sublayers.modeling.attention import SelfAttention


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


@pytest.mark.parametrize("length", [7, 40])
@torch.no_grad()
def test_computes_what_an_order_costs(classifier, length):
    classifier.set_attn_implementation("eager")
    config, ids = classifier.config, tokens(1, length)
    counter = FlopCounterMode(display=False)
    # it does not know torch's operators of oneDNN
    with torch.backends.mkldnn.flags(enabled=False), counter:
        classifier(ids)
    sizes = (config.hidden_size, config.intermediate_size, length, 1)
    head = 2 * config.hidden_size * (config.hidden_size + config.num_labels)
    heads = config.num_attention_heads
    assert counter.get_total_flops() == flops(config.sublayer_order, *sizes, num_attention_heads=heads) + head


@pytest.mark.parametrize("training", [True, False])
def test_every_parameter_has_its_gradient(classifier, training):
    classifier.train(training)(tokens(2, 7)).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in last_attention(classifier).parameters())


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
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


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


@torch.no_grad()
def test_a_cache_gets_its_keys():
    sizes = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    model = SandwichLMForCausalLM(SandwichLMConfig(**sizes, max_position_embeddings=16, sublayer_order="sfsf2")).eval()
    text = tokens(2, 10)
    cache = model(text[:, :9], logits_to_keep=1, use_cache=True).past_key_values
    assert [layer.keys.shape[2] for layer in cache.layers] == [9, 9]
    wanted = model(text, use_cache=False).logits[:, -1]
    torch.testing.assert_close(model(text[:, 9:], past_key_values=cache).logits[:, -1], wanted)
    assert torch.allclose(model(text, use_cache=False, logits_to_keep=1).logits[:, -1], wanted, atol=1e-5)
