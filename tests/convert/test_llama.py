"""What is particular to Llama and the decoders that are made as it is: their fields, and decoders of other parts."""

import copy
import json
from dataclasses import fields

import pytest
import torch
import transformers
from common import tokens
from common_convert import convert, make
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedConfig

from sublayers.convert.llama import DECODERS, from_llama
from sublayers.training.commands.convert import main

# of every field of a source, a value that is not its default
CHANGED = dict.fromkeys(("attention_dropout", "hidden_dropout", "initializer_range"), 0.2)
CHANGED |= dict.fromkeys(("rms_norm_eps", "layer_norm_eps"), 0.1)
CHANGED |= {"vocab_size": 67, "hidden_size": 64, "intermediate_size": 40, "num_attention_heads": 2, "head_dim": 6}
CHANGED |= {"num_hidden_layers": 3, "num_key_value_heads": 1, "max_position_embeddings": 32, "hidden_act": "relu"}
CHANGED |= {"pad_token_id": 3, "bos_token_id": 4, "eos_token_id": [5, 6], "tie_word_embeddings": True}
CHANGED |= {"rope_parameters": {"rope_theta": 50.0}, "pretraining_tp": 2, "use_cache": False}
CHANGED |= dict.fromkeys(("attention_bias", "mlp_bias", "use_qkv_bias", "use_sliding_window"), True)
CHANGED |= dict.fromkeys(("qk_layernorm", "use_parallel_residual", "use_bidirectional_attention"), True)
CHANGED |= {"hidden_activation": "relu", "query_pre_attn_scalar": 5}
CHANGED |= dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), 2.0)
CHANGED |= {"sliding_window": 5, "max_window_layers": 1, "layer_types": ["full_attention", "sliding_attention"]}
CHANGED |= dict.fromkeys(("num_experts", "num_local_experts"), 3) | {"num_experts_per_tok": 1, "norm_topk_prob": True}
CHANGED |= dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 20) | {"mlp_only_layers": [0]}
CHANGED |= {"output_router_logits": True, "decoder_sparse_step": 2, "qkv_bias": False, "clip_qkv": 0.5}
CHANGED |= dict.fromkeys(("router_aux_loss_coef", "router_jitter_noise"), 0.3)
CHANGED |= {"linear_conv_kernel_dim": 3, "linear_key_head_dim": 7, "linear_value_head_dim": 5}
CHANGED |= {"linear_num_key_heads": 1, "linear_num_value_heads": 2}
# what else has to change with a field
WITH_IT = {
    ("Qwen3Next", "head_dim"): {"head_dim": 16},
    ("Qwen3Next", "num_hidden_layers"): {"layer_types": ["full_attention"] * 3},
}
FIELDS = [
    (prefix, field.name)
    for prefix in DECODERS.values()
    for field in fields(getattr(transformers, f"{prefix}Config"))
    if field.name not in PreTrainedConfig.__dataclass_fields__
]
REFUSED = {
    ("Qwen2", "layer_types"): "sliding_attention with sliding_window=None cannot be converted",
    ("Qwen3", "layer_types"): "sliding_attention with sliding_window=None cannot be converted",
    ("Gemma", "use_bidirectional_attention"): "=True cannot be converted; only gemma with .*attention=False can",
    ("Gemma2", "use_bidirectional_attention"): "=True cannot be converted; only gemma2 with .*attention=False can",
    ("Gemma2", "query_pre_attn_scalar"): "scalar=5 cannot be converted; only gemma2 with query_pre_attn_scalar=8 can",
    ("Gemma3Text", "query_pre_attn_scalar"): "=5 cannot be converted; only gemma3_text with query_pre_attn_scalar=8",
    # which transformers ignores
    ("Gemma3Text", "attn_logit_softcapping"): "=2.0 cannot be converted; only gemma3_text with .*=None can",
    # the head of a language model
    ("Gemma3Text", "use_bidirectional_attention"): "lm_head.weight of shape .* does not fit into PARBertModel",
    ("Olmoe", "clip_qkv"): "clip_qkv=0.5 cannot be converted; only olmoe with clip_qkv=None can",
    ("Qwen2Moe", "layer_types"): "sliding_attention with sliding_window=None cannot be converted",
    ("Qwen3Next", "hidden_act"): "hidden_act='relu' cannot be converted; only qwen3_next with hidden_act='silu' can",
    ("Qwen3Next", "layer_types"): "sliding_attention with sliding_window=None cannot be converted",
    ("StableLm", "qk_layernorm"): "qk_layernorm=True cannot be converted; only stablelm with qk_layernorm=False can",
    ("StableLm", "use_parallel_residual"): "residual=True cannot be converted; only stablelm with .*residual=False can",
}


def changed(prefix, name):
    """A model of transformers that differs from a plain one in a field."""
    options = {"num_key_value_heads": 2, "tie_word_embeddings": False, name: copy.deepcopy(CHANGED[name])}
    options |= WITH_IT.get((prefix, name), {})
    if prefix in ("Gemma2", "Gemma3Text") and name == "head_dim":
        options["query_pre_attn_scalar"] = CHANGED[name]
    if (prefix, name) == ("Gemma3Text", "rope_parameters"):
        options[name] = {"full_attention": {"rope_theta": 50.0}, "sliding_attention": {"rope_theta": 20.0}}
    return make(f"{prefix}ForCausalLM", **options)


@pytest.mark.parametrize(("prefix", "name"), sorted({*FIELDS} - {*REFUSED}))
@torch.no_grad()
def test_fields_are_taken_over(prefix, name):
    source = changed(prefix, name)
    model, _ = from_llama(source)
    # far less than a field that is lost would change
    torch.testing.assert_close(model(tokens(2, 30)).logits, source(tokens(2, 30)).logits, atol=1e-4, rtol=1e-4)
    if name in model.config.__dataclass_fields__:
        expected = getattr(source.config, name)
        if (prefix, name) == ("Gemma3Text", "rope_parameters"):
            assert model.config.local_rope_theta == expected["sliding_attention"]["rope_theta"]
            expected = expected["full_attention"] | {"rope_type": "default"}
        assert getattr(model.config, name) == expected


@pytest.mark.parametrize(("prefix", "name"), REFUSED)
def test_fields_without_a_counterpart_are_refused(prefix, name):
    with pytest.raises(ValueError, match=REFUSED[prefix, name]):
        from_llama(changed(prefix, name))


@pytest.mark.parametrize(
    ("model_type", "sentence"),
    [
        ("gemma3", "'gemma3', whose images no model here has"),
        ("lfm2_moe", "'lfm2_moe', whose experts with biases no model here has"),
        ("olmo_hybrid", "'olmo_hybrid', whose norms at other places in layers of attention"),
        ("smollm3", "'smollm3', whose layers without rotary positions no model here has"),
        *((name, f"'{name}', whose attention to relative positions with q.*") for name in ("deberta", "deberta-v2")),
        ("llama", "quantized weights; dequantize them and save that first"),
    ],
)
def test_models_of_other_parts_are_refused(model_type, sentence, tmp_path):
    config = {"model_type": model_type, "quantization_config": {"quant_method": "gptq"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"holds {sentence}"):
        main([str(tmp_path), str(tmp_path.with_name("ours"))])


def test_a_classifier_that_averages_scores_is_refused():
    with pytest.raises(ValueError, match="classifier_pooling='late' cannot be converted; only bos and mean can"):
        from_llama(make("EuroBertForSequenceClassification", classifier_pooling="late"))


def test_a_classifier_is_verified_whatever_tokens_are_drawn(tmp_path):
    # it would take one of them for padding
    drawn = torch.randint(61, (4, 13), generator=torch.Generator().manual_seed(0))
    make("LlamaForSequenceClassification", pad_token_id=drawn[0, -1].item()).save_pretrained(tmp_path / "source")
    convert(tmp_path, "--verify")


def test_a_body_that_is_not_tied_gets_a_new_head_and_says_so(tmp_path, capsys):
    make("LlamaModel", tie_word_embeddings=False).save_pretrained(tmp_path / "source")
    convert(tmp_path)
    assert "new, with random weights: lm_head.weight" in capsys.readouterr().out


def test_settings_of_generation_are_taken_along(tmp_path):
    source = make("LlamaForCausalLM")
    source.generation_config.update(do_sample=True, top_k=7, eos_token_id=[2, 5])
    source.save_pretrained(tmp_path / "source")
    convert(tmp_path)
    settings = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").generation_config
    assert (settings.do_sample, settings.top_k, settings.eos_token_id) == (True, 7, [2, 5])


@pytest.mark.parametrize("name", ["GPT2Model", "LlamaModel", "BartModel", "MBartModel", "PegasusModel"])
@torch.no_grad()
def test_a_body_gets_the_head_that_is_tied_to_its_embeddings(name, tmp_path):
    make(name, tie_word_embeddings=True).save_pretrained(tmp_path / "source")
    body = AutoModel.from_pretrained(tmp_path / "source")
    convert(tmp_path, "--verify")
    inputs, auto_class = {"input_ids": tokens(2, 9)}, AutoModelForCausalLM
    if body.config.is_encoder_decoder:
        inputs["decoder_input_ids"], auto_class = tokens(2, 7), AutoModelForSeq2SeqLM
    logits = auto_class.from_pretrained(tmp_path / "ours")(**inputs).logits
    expected = body(**inputs).last_hidden_state @ body.get_input_embeddings().weight.T
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
