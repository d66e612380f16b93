"""Decoders of today, converted by the command, compute what transformers' models of the same weights do."""

import copy
import json
from dataclasses import fields

import pytest
import torch
import transformers
from common import assert_same, gradients, randomize, tokens
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GemmaConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    StableLmConfig,
)

from sublayers.training.commands.convert import main
from sublayers.training.convert.llama import DECODERS, from_llama

SIZES = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
SIZES |= {"num_hidden_layers": 2, "max_position_embeddings": 64, "tie_word_embeddings": False}
SIZES |= {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
GROUPED = SIZES | {"num_key_value_heads": 2}
SCALED = {
    # as transformers 4 wrote it
    "linear": {"type": "linear", "factor": 2.0},
    # as if it had been trained with fewer tokens than there are here
    "yarn": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8},
    "llama3": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    | {"original_max_position_embeddings": 8, "rope_theta": 100.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
}
SOURCES = {
    "llama": LlamaConfig(**GROUPED),
    "llama with biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True, num_key_value_heads=1),
    "mistral": MistralConfig(**GROUPED, head_dim=12, sliding_window=None),
    "mistral of windows": MistralConfig(**GROUPED, sliding_window=5),
    "qwen2": Qwen2Config(**GROUPED),
    "qwen2 of windows": Qwen2Config(**GROUPED, use_sliding_window=True, sliding_window=6, max_window_layers=1),
    "qwen3": Qwen3Config(**GROUPED, head_dim=12),
    # what it calls gelu is the approximation
    "gemma": GemmaConfig(
        **SIZES | {"tie_word_embeddings": True}, num_key_value_heads=1, head_dim=16, hidden_act="gelu"
    ),
    "stablelm": StableLmConfig(**GROUPED, use_qkv_bias=True, partial_rotary_factor=0.5),
} | {
    f"llama {name}": LlamaConfig(
        **GROUPED | {"max_position_embeddings": 8 if name == "dynamic" else 64}, rope_scaling=rope
    )
    for name, rope in SCALED.items()
}


def build(config, head="ForCausalLM"):
    """A model of random weights."""
    source = randomize(getattr(transformers, f"{DECODERS[config.model_type]}{head}")(config))
    with torch.no_grad():
        for name, parameter in source.named_parameters():
            # gains are around 1
            parameter.sub_(int("norm" in name and config.model_type == "gemma"))
    return source


@pytest.fixture(scope="module", params=SOURCES)
def pair(request, tmp_path_factory):
    """A model of transformers, what the command made of it, and its report."""
    folder = tmp_path_factory.mktemp("convert")
    source = build(SOURCES[request.param])
    source.save_pretrained(folder / "source")
    main([str(folder / "source"), str(folder / "ours"), "--verify", "--report", str(folder / "report.json")])
    model = AutoModelForCausalLM.from_pretrained(folder / "ours")
    return source, model, json.loads((folder / "report.json").read_text())


def padded(rows: int = 3, length: int = 20) -> dict[str, torch.Tensor]:
    """Tokens and their mask: the second row is padded on its left, the third on its right."""
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[1, :6] = mask[2, -5:] = 0
    return {"input_ids": tokens(rows, length), "attention_mask": mask}


def places(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Positions that do not count padding, which transformers has to be told."""
    return (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0)


def test_the_report_accounts_for_every_tensor(pair):
    source, model, report = pair
    assert (report["left_out"], report["new"]) == ({}, [])
    assert report["taken_over"].keys() == source.state_dict().keys()
    assert {name for made in report["taken_over"].values() for name in made} == model.state_dict().keys()
    assert model.num_parameters() == source.num_parameters()


@torch.no_grad()
def test_logits_and_hidden_states(pair):
    source, model, _ = pair
    batch = padded()
    wanted = source(**batch, position_ids=places(batch), output_hidden_states=True)
    found = model(**batch, output_hidden_states=True)
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(found.logits[real], wanted.logits[real], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(**batch).logits[real], wanted.logits[real], atol=1e-5, rtol=1e-5)
    # theirs are behind whole layers
    for ours, theirs in zip(found.hidden_states[::2], wanted.hidden_states, strict=True):
        # whose sums grow from layer to layer
        scale = max(1, theirs[real].abs().max().item())
        torch.testing.assert_close(ours[real] / scale, theirs[real] / scale, atol=1e-5, rtol=1e-5)


def test_gradients(pair):
    source, model, report = pair
    ids = tokens(2, 11)
    for network in (source, model):
        network.zero_grad()
        # where none of them drops anything
        network.train()(ids, labels=ids).loss.backward()
        network.eval()
    wanted = {ours: grad for name, grad in gradients(source).items() for ours in report["taken_over"][name]}
    assert_same(gradients(model), wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"num_beams": 3}], ids=str)
def test_continuations(options, pair):
    ids = tokens(3, 6)
    ids[1, :2] = ids[2, :4] = 1
    options = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False} | options
    wanted, found = (network.generate(ids, attention_mask=(ids != 1).long(), **options) for network in pair[:2])
    assert torch.equal(found, wanted)


@torch.no_grad()
def test_reads_a_few_positions_of_each_row(pair):
    source, model, _ = pair
    batch, kept = padded(), torch.tensor([[3, 19], [6, 7], [0, 14]])
    wanted = source(**batch, position_ids=places(batch)).logits
    found = model(**batch, logits_to_keep=kept).logits
    torch.testing.assert_close(found, torch.take_along_dim(wanted, kept[..., None], 1), atol=1e-5, rtol=1e-5)


# of every field of a source, a value that is not its default
CHANGED = dict.fromkeys(("attention_dropout", "hidden_dropout", "initializer_range"), 0.2)
CHANGED |= dict.fromkeys(("rms_norm_eps", "layer_norm_eps"), 0.1)
CHANGED |= {"vocab_size": 67, "hidden_size": 64, "intermediate_size": 40, "num_attention_heads": 2, "head_dim": 6}
CHANGED |= {"num_hidden_layers": 3, "num_key_value_heads": 1, "max_position_embeddings": 32, "hidden_act": "relu"}
CHANGED |= {"pad_token_id": 3, "bos_token_id": 4, "eos_token_id": [5, 6], "tie_word_embeddings": True}
CHANGED |= {"rope_parameters": {"rope_theta": 50.0}, "pretraining_tp": 2, "use_cache": False}
CHANGED |= dict.fromkeys(("attention_bias", "mlp_bias", "use_qkv_bias", "use_sliding_window"), True)
CHANGED |= dict.fromkeys(("qk_layernorm", "use_parallel_residual", "use_bidirectional_attention"), True)
CHANGED |= {"sliding_window": 5, "max_window_layers": 1, "layer_types": ["full_attention", "sliding_attention"]}
CLASSES = {config.model_type: type(config) for config in SOURCES.values()}
FIELDS = [
    (model_type, field.name)
    for model_type, config_class in CLASSES.items()
    for field in fields(config_class)
    if field.name not in PreTrainedConfig.__dataclass_fields__
]
REFUSED = {
    ("qwen2", "layer_types"): "sliding_attention with sliding_window=None cannot be converted",
    ("qwen3", "layer_types"): "sliding_attention with sliding_window=None cannot be converted",
    ("gemma", "use_bidirectional_attention"): "=True cannot be converted; only gemma with .*attention=False can",
    ("stablelm", "qk_layernorm"): "qk_layernorm=True cannot be converted; only stablelm with qk_layernorm=False can",
    ("stablelm", "use_parallel_residual"): "residual=True cannot be converted; only stablelm with .*residual=False can",
}


def changed(model_type, name):
    """A model of transformers that differs from a plain one in a field."""
    return build(CLASSES[model_type](**GROUPED | {name: CHANGED[name]}))


@pytest.mark.parametrize(("model_type", "name"), sorted({*FIELDS} - {*REFUSED}))
@torch.no_grad()
def test_fields_are_taken_over(model_type, name):
    source = changed(model_type, name)
    model, _ = from_llama(source)
    # far less than a field that is lost would change
    torch.testing.assert_close(model(tokens(2, 30)).logits, source(tokens(2, 30)).logits, atol=1e-4, rtol=1e-4)
    if name in model.config.__dataclass_fields__:
        assert getattr(model.config, name) == getattr(source.config, name)


@pytest.mark.parametrize(("model_type", "name"), REFUSED)
def test_fields_without_a_counterpart_are_refused(model_type, name):
    with pytest.raises(ValueError, match=REFUSED[model_type, name]):
        from_llama(changed(model_type, name))


CHUNKS = {"use_sliding_window": True, "sliding_window": 64, "layer_types": ["chunked_attention"] * 2}


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (Qwen3Config(**GROUPED, **CHUNKS), "layers of chunked_attention with sliding_window=64 cannot be converted"),
        (LlamaConfig(**GROUPED, partial_rotary_factor=0.5), "partial_rotary_factor=0.5 cannot be converted; llama"),
        (
            LlamaConfig(
                **GROUPED,
                rope_parameters={"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
            ),
            "rope_type='longrope' is unknown here; choose from",
        ),
    ],
    ids=lambda value: value.model_type if isinstance(value, PreTrainedConfig) else None,
)
def test_parts_that_are_not_covered_are_named(config, sentence, tmp_path):
    build(config).save_pretrained(tmp_path / "source")
    with pytest.raises(ValueError, match=sentence):
        main([str(tmp_path / "source"), str(tmp_path / "ours")])
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("model_type", "part"),
    [
        *((name, "norms behind its sublayers") for name in ("gemma2", "gemma3", "gemma3_text")),
        *((name, "experts") for name in ("mixtral", "qwen2_moe", "qwen3_moe")),
        ("smollm3", "layers without rotary positions"),
    ],
)
def test_decoders_of_other_parts_are_refused(model_type, part, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(ValueError, match=f"holds '{model_type}', whose {part} no model here has"):
        main([str(tmp_path), str(tmp_path.with_name("ours"))])


def test_quantized_weights_are_refused(tmp_path):
    config = {"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="holds quantized weights; dequantize them and save that first"):
        main([str(tmp_path), str(tmp_path.with_name("ours"))])


@pytest.mark.parametrize("model_type", DECODERS)
@torch.no_grad()
def test_classifiers(model_type, tmp_path):
    config = copy.deepcopy(next(config for config in SOURCES.values() if config.model_type == model_type))
    config.id2label, config.label2id = {0: "a", 1: "b", 2: "c"}, {"a": 0, "b": 1, "c": 2}
    config.problem_type = "multi_label_classification"
    source = build(config, "ForSequenceClassification")
    source.save_pretrained(tmp_path / "source")
    main([str(tmp_path / "source"), str(tmp_path / "ours"), "--verify"])
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours")
    batch = padded()
    batch["input_ids"][batch["attention_mask"] == 0] = config.pad_token_id
    found, wanted = model(**batch).logits, source(**batch, position_ids=places(batch)).logits
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    for name in ("id2label", "label2id", "problem_type"):
        assert getattr(model.config, name) == getattr(config, name)


def test_a_classifier_is_verified_whatever_tokens_are_drawn(tmp_path):
    # it would take one of them for padding
    drawn = torch.randint(61, (4, 13), generator=torch.Generator().manual_seed(0))
    config = LlamaConfig(**GROUPED | {"pad_token_id": drawn[0, -1].item()})
    build(config, "ForSequenceClassification").save_pretrained(tmp_path / "source")
    main([str(tmp_path / "source"), str(tmp_path / "ours"), "--verify"])


@torch.no_grad()
def test_half_precision_is_as_near_as_the_sources(pair):
    source, model, _ = pair
    batch = padded()
    wanted = source(**batch, position_ids=places(batch)).logits
    real = batch["attention_mask"].bool()
    theirs = copy.deepcopy(source).bfloat16()(**batch, position_ids=places(batch)).logits
    ours = copy.deepcopy(model).bfloat16()(**batch).logits
    ours_off, theirs_off = ((logits.float() - wanted)[real].square().mean().sqrt() for logits in (ours, theirs))
    assert ours_off < 1.2 * theirs_off


def test_another_order_takes_the_sublayers_of_each_kind_in_turn(tmp_path):
    source = build(SOURCES["qwen3"])
    source.save_pretrained(tmp_path / "source")
    main([str(tmp_path / "source"), str(tmp_path / "ours"), "--sublayer_order", "ssff"])
    layers = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").model.layers
    for i, layer in enumerate(source.model.layers):
        assert torch.equal(layers[i].mixer.q_norm.weight, layer.self_attn.q_norm.weight)
        assert torch.equal(layers[i].norm.weight, layer.input_layernorm.weight)
        assert torch.equal(layers[2 + i].mixer.gate.weight, layer.mlp.gate_proj.weight)
        assert torch.equal(layers[2 + i].norm.weight, layer.post_attention_layernorm.weight)
    with pytest.raises(ValueError, match="the order 'sf5' does not fit a checkpoint with 2 s, 2 f"):
        main([str(tmp_path / "source"), str(tmp_path / "longer"), "--sublayer_order", "sf5"])


def test_a_body_that_is_not_tied_gets_a_new_head_and_says_so(tmp_path, capsys):
    LlamaModel(LlamaConfig(**GROUPED)).save_pretrained(tmp_path / "body")
    main([str(tmp_path / "body"), str(tmp_path / "ours")])
    assert "new, with random weights: lm_head.weight" in capsys.readouterr().out


def test_settings_of_generation_are_taken_along(tmp_path):
    source = LlamaForCausalLM(LlamaConfig(**GROUPED))
    source.generation_config.update(do_sample=True, top_k=7, eos_token_id=[2, 5])
    source.save_pretrained(tmp_path / "source")
    main([str(tmp_path / "source"), str(tmp_path / "ours")])
    settings = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").generation_config
    assert (settings.do_sample, settings.top_k, settings.eos_token_id) == (True, 7, [2, 5])
