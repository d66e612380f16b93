"""Models of today's parts, in the order of transformers' models of the same weights, equal these."""

import re

import pytest
import torch
from common import assert_same, gradients, randomize, tokens
from torch import nn
from transformers import (
    Gemma2Config,
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    ModernBertConfig,
    ModernBertModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
)
from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention

from sublayers import PARBertConfig, PARBertModel, SandwichLMConfig, SandwichLMForCausalLM
from sublayers.modeling.attention import SelfAttention

# of all sources, and what is called otherwise here
SIZES = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
SIZES |= {"max_position_embeddings": 64, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
NO_DROPOUT = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
PARTS = {"position_embedding_type": "rotary", "gated_feed_forward": True, "hidden_act": "silu", "final_norm": True}
PARTS |= dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias", "scale_embedding"), False)
PARTS["tie_word_embeddings"] = False
RMS = {"norm_type": "rms", "layer_norm_eps": 1e-6}
NAMES = [
    (r"layers\.(\d+)\.self_attn\.", "s", "mixer."),
    (r"layers\.(\d+)\.input_layernorm\.", "s", "norm."),
    (r"layers\.(\d+)\.post_attention_layernorm\.", "f", "norm."),
    (r"layers\.(\d+)\.mlp\.gate_proj\.", "f", "mixer.gate."),
    (r"layers\.(\d+)\.mlp\.up_proj\.", "f", "mixer.fc1."),
    (r"layers\.(\d+)\.mlp\.down_proj\.", "f", "mixer.fc2."),
]
SCALED = {
    "linear": {"rope_type": "linear", "factor": 2.0},
    # as if it had been trained with fewer tokens than there are here
    "yarn": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8},
    "llama3": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    | {"original_max_position_embeddings": 8, "rope_theta": 100.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
}
# the source, what it is like, and our fields for that
SOURCES = {
    "llama": (LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 2}, RMS | {"num_key_value_heads": 2}),
    "llama with biases": (
        LlamaForCausalLM,
        LlamaConfig,
        {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
        RMS | {"num_key_value_heads": 1, "attention_bias": True, "attention_output_bias": True, "mlp_bias": True},
    ),
    "qwen2": (
        Qwen2ForCausalLM,
        Qwen2Config,
        {"num_key_value_heads": 2},
        RMS | {"num_key_value_heads": 2, "attention_bias": True},
    ),
    "qwen3": (
        Qwen3ForCausalLM,
        Qwen3Config,
        {"num_key_value_heads": 2, "head_dim": 12},
        RMS | {"num_key_value_heads": 2, "head_dim": 12, "qk_norm": True},
    ),
    "gemma": (
        GemmaForCausalLM,
        GemmaConfig,
        {"num_key_value_heads": 1, "head_dim": 16, "tie_word_embeddings": True},
        RMS
        | {"num_key_value_heads": 1, "head_dim": 16, "norm_unit_offset": True, "scale_embedding": True}
        | {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True},
    ),
    "stablelm": (
        StableLmForCausalLM,
        StableLmConfig,
        {"use_qkv_bias": True, "partial_rotary_factor": 0.5, "num_key_value_heads": 4},
        {"attention_bias": True, "rope_parameters": {"partial_rotary_factor": 0.5}},
    ),
} | {
    f"llama {name}": (
        LlamaForCausalLM,
        LlamaConfig,
        {"rope_parameters": rope, "max_position_embeddings": 8 if name == "dynamic" else 64},
        RMS | {"rope_parameters": rope, "max_position_embeddings": 8 if name == "dynamic" else 64},
    )
    for name, rope in SCALED.items()
}


def renamed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of a Llama-like model by the names that they have in an interleaved order."""
    found = {}
    for name, tensor in tensors.items():
        for pattern, letter, ours in NAMES:
            name = re.sub(pattern, lambda m, s=letter, n=ours: f"layers.{2 * int(m[1]) + (s == 'f')}.{n}", name)
        found[name] = tensor
    return found


@pytest.fixture(params=SOURCES)
def pair(request):
    """A model of transformers, and ours of the same weights."""
    source_class, config_class, theirs, fields = SOURCES[request.param]
    options = SIZES | {"num_hidden_layers": 3, "tie_word_embeddings": False, "layer_norm_eps": 1e-5}
    source = randomize(source_class(config_class(**options | theirs)))
    config = SandwichLMConfig(sublayer_order="(sf)3", **SIZES | NO_DROPOUT | PARTS | fields)
    with torch.no_grad():
        for name, parameter in source.named_parameters():
            # gains are around 1
            parameter.sub_(int("norm" in name and config.norm_unit_offset))
    model = SandwichLMForCausalLM(config).eval()
    model.load_state_dict(renamed(source.state_dict()))
    return source, model


def padded(rows: int = 3, length: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and their mask: the second row is padded on its left, the third on its right."""
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[1, :6] = mask[2, -5:] = 0
    return tokens(rows, length), mask


def test_logits_and_hidden_states(pair):
    source, model = pair
    ids, mask = padded()
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        wanted = source(ids, attention_mask=mask, position_ids=places, output_hidden_states=True)
        found = model(ids, attention_mask=mask, output_hidden_states=True)
        scores = model(ids, attention_mask=mask).logits
    real = mask.bool()
    torch.testing.assert_close(found.logits[real], wanted.logits[real], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scores[real], wanted.logits[real], atol=1e-5, rtol=1e-5)
    # theirs are behind whole layers
    for ours, theirs in zip(found.hidden_states[::2], wanted.hidden_states, strict=True):
        # whose sums grow from layer to layer
        scale = max(1, theirs[real].abs().max().item())
        torch.testing.assert_close(ours[real] / scale, theirs[real] / scale, atol=1e-5, rtol=1e-5)


def test_gradients(pair):
    source, model = pair
    ids = tokens(2, 11)
    for network in pair:
        network(ids, labels=ids).loss.backward()
    assert_same(gradients(model), renamed(gradients(source)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("cache", [None, "static"])
def test_greedy_continuations(pair, cache):
    ids = tokens(3, 6)
    ids[1, :2] = ids[2, :4] = 1
    options = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False, "cache_implementation": cache}
    wanted, found = (network.generate(ids, attention_mask=(ids != 1).long(), **options) for network in pair)
    assert torch.equal(found, wanted)


def test_reads_a_few_positions_of_each_row(pair):
    source, model = pair
    ids, mask = padded()
    kept = torch.tensor([[3, 19], [6, 7], [0, 14]])
    with torch.no_grad():
        wanted = source(ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0)).logits
        found = model(ids, attention_mask=mask, logits_to_keep=kept).logits
    torch.testing.assert_close(found, torch.take_along_dim(wanted, kept[..., None], 1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "flex_attention"])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_caps_of_attention(backend):
    options = {"attn_logit_softcapping": 2.0, "num_key_value_heads": 2, "head_dim": 16}
    theirs = Gemma2Config(**SIZES, **options, query_pre_attn_scalar=16, num_hidden_layers=1)
    theirs._attn_implementation = "eager"
    source = Gemma2Attention(theirs, layer_idx=0).eval()
    ours = SandwichLMConfig(**{**SIZES, **NO_DROPOUT, **PARTS, **options, "position_embedding_type": "none"})
    ours._attn_implementation = backend
    attention = SelfAttention(ours, 0, is_causal=False).eval()
    for parameter in source.parameters():
        nn.init.normal_(parameter)
    attention.load_state_dict(source.state_dict())
    states, still = torch.randn(2, 7, 32), (torch.ones(1, 7, 16), torch.zeros(1, 7, 16))
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        wanted, _ = source(states, still, None)
        found, _ = attention(states)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-5)


def test_a_modern_bert_of_global_attention():
    options = SIZES | {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3, "norm_eps": 1e-5}
    options |= {"cls_token_id": 0, "sep_token_id": 2}
    source = randomize(ModernBertModel(ModernBertConfig(**options)))
    fields = SIZES | NO_DROPOUT | PARTS | {"hidden_act": "gelu", "norm_position": "pre", "norm_bias": False}
    rope = {"rope_theta": source.config.rope_parameters["full_attention"]["rope_theta"]}
    config = PARBertConfig(sublayer_order="(sf)3", rope_parameters=rope, layer_norm_eps=1e-5, **fields)
    model = PARBertModel(config, add_pooling_layer=False).eval()
    # theirs has no norm there
    model.layers[0].norm = nn.Identity()
    weights, old = {}, source.state_dict()
    for i in range(3):
        layer, s, f = f"layers.{i}.", f"layers.{2 * i}.", f"layers.{2 * i + 1}."
        for name, part in zip("qkv", old[f"{layer}attn.Wqkv.weight"].chunk(3), strict=True):
            weights[f"{s}mixer.{name}_proj.weight"] = part
        weights[f"{s}mixer.o_proj.weight"] = old[f"{layer}attn.Wo.weight"]
        gate, inner = old[f"{layer}mlp.Wi.weight"].chunk(2)
        weights |= {f"{f}mixer.gate.weight": gate, f"{f}mixer.fc1.weight": inner}
        weights[f"{f}mixer.fc2.weight"] = old[f"{layer}mlp.Wo.weight"]
        weights[f"{f}norm.weight"] = old[f"{layer}mlp_norm.weight"]
        if i:
            weights[f"{s}norm.weight"] = old[f"{layer}attn_norm.weight"]
    weights |= {"embed_tokens.weight": old["embeddings.tok_embeddings.weight"], "norm.weight": old["final_norm.weight"]}
    weights |= {"embed_norm.weight": old["embeddings.norm.weight"], "embed_token_types.weight": torch.zeros(2, 32)}
    model.load_state_dict(weights)
    ids, mask = padded()
    with torch.no_grad():
        wanted = source(ids, attention_mask=mask).last_hidden_state
        found = model(ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(found[mask.bool()], wanted[mask.bool()], atol=1e-5, rtol=1e-5)
