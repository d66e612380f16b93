"""Today's parts of sublayers, against an independent computation."""

import pytest
import torch
from common import randomize, tokens
from families import build, every_family, inputs, small
from torch import nn
from transformers import AutoModel
from transformers.activations import ACT2FN

from sublayers import (
    PARBertConfig,
    PARBertModel,
    SandwichLMConfig,
    SandwichLMForCausalLM,
    SandwichLMModel,
    SandwichSeq2SeqConfig,
    SandwichSeq2SeqModel,
)
from sublayers.modeling.plan import Plan
from sublayers.modeling.rotary import RotaryEmbedding, rotate
from sublayers.modeling.stack import SublayerStack


def norms(model: nn.Module) -> list[nn.Module]:
    named = [module for name, module in model.named_modules() if "norm" in name.rpartition(".")[2]]
    return [module for module in named if not isinstance(module, nn.Identity)]


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("kind", "offset"), [("layer", False), ("rms", False), ("rms", True)])
@pytest.mark.parametrize("bias", [True, False])
def test_norms_are_of_the_kind_that_is_asked_for(kind, affine, bias, offset):
    options = {"norm_type": kind, "norm_affine": affine, "norm_bias": bias, "norm_unit_offset": offset}
    if offset and not affine:
        with pytest.raises(ValueError, match="norm_unit_offset=True needs RMS norms with a gain"):
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


@pytest.mark.parametrize(
    "told",
    [
        {"embedding_dropout": 1.0},
        {"attention_output_dropout": 1.0},
        {"dropout": 1.0, "embedding_dropout": 0.0, "attention_output_dropout": 0.0},
        # that of all
        {"dropout": 1.0},
    ],
)
@every_family
def test_embeddings_and_attention_may_have_a_dropout_of_their_own(family, told):
    model = build(family, **told).train()
    dropped = {}

    def record(place, states):
        dropped[place] = not states.any()

    for stack in (module for module in model.modules() if isinstance(module, SublayerStack)):
        stack.register_forward_pre_hook(lambda stack, args: record("embedding_dropout", args[0]))
        for letter, layer in zip(stack.order, stack, strict=True):
            place = "dropout" if letter == "f" else "attention_output_dropout"
            layer.dropout.register_forward_hook(lambda layer, args, out, place=place: record(place, out))
    model(**inputs(model), labels=tokens(3, 7 if model.config.is_encoder_decoder else 9))
    assert dropped == {
        name: told.get(name, told.get("dropout", 0.0)) == 1
        for name in ("dropout", "embedding_dropout", "attention_output_dropout")
    }


def rotary(config_class=SandwichLMConfig, **options):
    return small(config_class, position_embedding_type="rotary", **options)


def test_turns_pairs_of_channels_as_complex_numbers_are():
    config = rotary(head_dim=12, rope_parameters={"rope_theta": 100.0, "partial_rotary_factor": 2 / 3})
    places, states = torch.tensor([[0, 3, 50, 7], [1, 2, 3, 4]]), torch.randn(2, 4, 5, 12, dtype=torch.double)
    found = rotate(states, *RotaryEmbedding(config)(states, places))
    first, second, rest = states.split(4, dim=-1)
    angles = places[..., None] / 100.0 ** (torch.arange(4, dtype=torch.double) / 4)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)[:, :, None]
    torch.testing.assert_close(found, torch.cat([turned.real, turned.imag, rest], dim=-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["rotary", "none"])
def test_positions_that_are_no_table_leave_states_as_they_are(kind):
    model = SandwichLMModel(small(SandwichLMConfig, position_embedding_type=kind, scale_embedding=False))
    assert not any("position" in name for name, _ in model.named_parameters())
    seen = []
    model.layers[0].register_forward_pre_hook(lambda layer, args: seen.append(args[0]))
    model.eval()(tokens(2, 5))
    torch.testing.assert_close(seen[0], model.embed_tokens(tokens(2, 5)))


@pytest.mark.parametrize("kind", ["rotary", "none"])
def test_only_self_attention_knows_rotary_positions(kind):
    orders = {"encoder_sublayer_order": "ff", "decoder_sublayer_order": "cfcf"}
    options = {**orders, "position_embedding_type": kind}
    model = randomize(SandwichSeq2SeqModel(small(SandwichSeq2SeqConfig, **options)))
    source, target, order = tokens(2, 5), tokens(2, 4), torch.tensor([2, 0, 3, 1])
    plain = model(source, decoder_input_ids=target).last_hidden_state
    moved = model(source.flip(1), decoder_input_ids=target[:, order]).last_hidden_state
    torch.testing.assert_close(moved, plain[:, order], atol=1e-5, rtol=1e-5)
    model.config.encoder_sublayer_order = "sf"
    attends = randomize(SandwichSeq2SeqModel(model.config))
    plain, moved = (attends(ids, decoder_input_ids=target).last_hidden_state for ids in (source, source.flip(1)))
    assert torch.allclose(plain, moved, atol=1e-4) == (kind == "none")


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("sdpa", {"head_dim": 12}),
        ("eager", {"head_dim": 12, "attention_bias": False, "attention_output_bias": False}),
        ("sdpa", {"qk_norm": True}),
        ("eager", {"num_key_value_heads": 2}),
        ("sdpa", {"num_key_value_heads": 1}),
        ("sdpa", {"position_embedding_type": "rotary"}),
        ("eager", {"attn_logit_softcapping": 1.5}),
    ],
)
@torch.no_grad()
def test_a_single_query_is_read_exactly_with_every_part(backend, options):
    model = randomize(PARBertModel(small(PARBertConfig, sublayer_order="sfsf", **options)))
    model.set_attn_implementation(backend)
    ids, mask, places = tokens(3, 7), torch.ones(3, 7, dtype=torch.long), torch.tensor([[0], [2], [6]])
    mask[0, 4:] = mask[1, :2] = 0
    full = model(ids, attention_mask=mask).last_hidden_state
    read = model(ids, attention_mask=mask, plan=Plan.of(ids, mask, places)).last_hidden_state
    torch.testing.assert_close(read, torch.take_along_dim(full, places[..., None], 1), atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_caps_are_never_left_out():
    config = small(SandwichLMConfig, attn_logit_softcapping=1.5, final_logit_softcapping=2)
    model = randomize(SandwichLMForCausalLM(config))
    assert model.config._attn_implementation == "eager"
    logits = model(tokens(2, 7)).logits
    assert logits.abs().max() < 2
    model.set_attn_implementation("flex_attention")
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(model(tokens(2, 7)).logits, logits, atol=1e-5, rtol=1e-5)
    model.set_attn_implementation("eager")
    model.config.final_logit_softcapping = None
    torch.testing.assert_close((model(tokens(2, 7)).logits / 2).tanh() * 2, logits)
    model.config.attn_logit_softcapping = 1e6
    assert not torch.allclose(model(tokens(2, 7)).logits, logits, atol=1e-2)
    with pytest.raises(ValueError, match="attn_implementation='sdpa' knows no attn_logit_softcapping=1000000"):
        model.set_attn_implementation("sdpa")
    model.set_attn_implementation("paged|eager")
    with pytest.raises(ValueError, match=r"attn_implementation='paged\|eager' knows no attn_logit_softcapping"):
        model(tokens(2, 7))
    with pytest.raises(ValueError, match="attn_implementation='sdpa' knows no attn_logit_softcapping"):
        SandwichLMForCausalLM(small(SandwichLMConfig, attn_logit_softcapping=1.5, attn_implementation="sdpa"))


def test_rope_parameters_are_completed_on_a_copy(tmp_path):
    given = {"rope_type": "yarn", "factor": 4.0}
    config = rotary(rope_parameters=given)
    assert given == {"rope_type": "yarn", "factor": 4.0}
    assert config.rope_parameters == given | {"rope_theta": 10_000.0, "original_max_position_embeddings": 64}
    assert rotary(rope_theta=500.0).rope_parameters == {"rope_type": "default", "rope_theta": 500.0}
    assert small(SandwichLMConfig).rope_parameters is None
    SandwichLMModel(small(SandwichLMConfig)).save_pretrained(tmp_path)
    other = {"position_embedding_type": "rotary", "rope_parameters": {"rope_theta": 7.0}}
    loaded = AutoModel.from_pretrained(tmp_path, **other)
    assert loaded.config.rope_parameters == {"rope_type": "default", "rope_theta": 7.0}
    loaded.save_pretrained(tmp_path / "rotary")
    found = AutoModel.from_pretrained(tmp_path / "rotary")
    torch.testing.assert_close(found(tokens(2, 9))[0], loaded(tokens(2, 9))[0], rtol=0, atol=0)


def test_the_only_limit_is_the_configured_one():
    for kind in ("rotary", "none"):
        model = SandwichLMModel(small(SandwichLMConfig, position_embedding_type=kind)).eval()
        with pytest.raises(ValueError, match="65 tokens does not fit into max_position_embeddings=64"):
            model(tokens(1, 65))
        model.config.max_position_embeddings = 100_000
        assert model(tokens(1, 65))[0].isfinite().all()
    dynamic = SandwichLMModel(rotary(rope_parameters={"rope_type": "dynamic", "factor": 2.0})).eval()
    assert dynamic(tokens(1, 100))[0].isfinite().all()
