"""Today's parts of sublayers, against an independent computation."""

import pytest
import torch
from common import randomize, tokens
from families import small
from torch import nn
from transformers.activations import ACT2FN

from sublayers import (
    PARBertConfig,
    PARBertModel,
    PARTransformerXLConfig,
    SandwichLMConfig,
    SandwichLMModel,
    SandwichSeq2SeqConfig,
    SandwichSeq2SeqModel,
)


def norms(model: nn.Module) -> list[nn.Module]:
    return [module for name, module in model.named_modules() if "norm" in name.rpartition(".")[2]]


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("kind", "offset"), [("layer", False), ("rms", False), ("rms", True)])
@pytest.mark.parametrize("bias", [True, False])
def test_norms_are_of_the_kind_that_is_asked_for(kind, affine, bias, offset):
    options = {"norm_type": kind, "norm_affine": affine, "norm_bias": bias, "norm_unit_offset": offset}
    if offset and not affine:
        with pytest.raises(ValueError, match="norm_unit_offset=True is of the gain of RMS norms"):
            small(PARBertConfig, **options)
        return
    fresh = PARBertModel(small(PARBertConfig, norm_position="pre", final_norm=True, **options))
    ids = tokens(2, 5)
    # the five sublayers', the one of the embeddings, which always has a gain, and the final one
    assert len(norms(fresh)) == 7
    start = [norm.weight for norm in norms(fresh) if norm.weight is not None]
    assert len(start) == (7 if affine else 1)
    assert all((weight == (0 if offset else 1)).all() for weight in start)
    model = randomize(fresh)
    seen = []
    for norm in norms(model):
        norm.register_forward_hook(lambda norm, args, out: seen.append((norm, args[0], out)))
    model(ids)
    assert len(seen) == 7
    for norm, given, out in seen:
        wanted = given - given.mean(-1, keepdim=True) if kind == "layer" else given
        wanted = wanted / (wanted.square().mean(-1, keepdim=True) + model.config.layer_norm_eps).sqrt()
        parameters = dict(norm.named_parameters())
        assert parameters.keys() <= {"weight", "bias"}
        assert ("bias" in parameters) == (kind == "layer" and bias and "weight" in parameters)
        wanted = wanted * (parameters.get("weight", torch.ones(())) + offset) + parameters.get("bias", torch.zeros(()))
        torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-5)


def test_only_rms_norms_have_an_offset():
    with pytest.raises(ValueError, match="norm_unit_offset=True is of the gain of RMS norms"):
        SandwichLMModel(small(SandwichLMConfig, norm_unit_offset=True))


@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_pytorch_tanh", "relu2"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_gate_weighs_what_feed_forward_maps(act, bias):
    config = small(PARBertConfig, sublayer_order="f", gated_feed_forward=True, hidden_act=act, mlp_bias=bias)
    mixer = randomize(PARBertModel(config)).layers[0].mixer
    weights = dict(mixer.named_parameters())
    assert len(weights) == (6 if bias else 3)
    states = torch.randn(2, 5, 32)
    gate, inner = (
        states @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", torch.zeros(())) for name in ("gate", "fc1")
    )
    wanted = (ACT2FN[act](gate) * inner) @ weights["fc2.weight"].T + weights.get("fc2.bias", torch.zeros(()))
    torch.testing.assert_close(mixer(states)[0], wanted)
    assert config.base_model_tp_plan["layers.*.mixer.gate"] == "colwise"
    assert "layers.*.mixer.gate" not in small(PARBertConfig, sublayer_order="f").base_model_tp_plan


@pytest.mark.parametrize(
    ("option", "maps"),
    [
        ("attention_bias", {"q_proj", "k_proj", "v_proj"}),
        ("attention_output_bias", {"o_proj"}),
        ("mlp_bias", {"fc1", "fc2", "gate"}),
    ],
)
def test_each_kind_of_map_has_a_bias_or_not(option, maps):
    options = {"encoder_sublayer_order": "sf", "decoder_sublayer_order": "scf", "gated_feed_forward": True}
    with torch.device("meta"):
        plain, without = (
            SandwichSeq2SeqModel(small(SandwichSeq2SeqConfig, **options | {option: value})) for value in (True, False)
        )
    missing = {name for name, _ in plain.named_parameters()} - {name for name, _ in without.named_parameters()}
    assert {name.split(".")[-2] for name in missing} == maps
    assert {name.split(".")[-1] for name in missing} == {"bias"}
    # self-attention of both sides and cross-attention; two feed-forward sublayers
    assert len(missing) == (2 if option == "mlp_bias" else 3) * len(maps)


@pytest.mark.parametrize("option", ["attention_bias", "attention_output_bias"])
def test_attention_to_distances_refuses_what_it_does_not_have(option):
    with pytest.raises(ValueError, match=f"{option}=True is nothing for attention to distances; leave it False"):
        small(PARTransformerXLConfig, **{option: True})
