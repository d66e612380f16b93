"""Llamas of which some layers lack attention or feed-forward, read from and written to what others have for them."""

import json
import re

import pytest
import torch
from common import tokens
from common_convert import convert, edit, make
from safetensors.torch import load_file, save_file
from torch.nn.functional import embedding, rms_norm, scaled_dot_product_attention, silu
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from sublayers.configuration.sublayer_order import expand
from sublayers.convert.llama import from_llama
from sublayers.convert.optimize import optimize
from sublayers.training.commands.convert import main
from sublayers.training.distill.subsets import take_subset

# what the layers of a source have, and the order that they are
LAYERS = ["f", "sf", "s", "", "sf", "s"]
ORDER = "fsfssfs"
SKIP = {"0": {"skip": ["attention"]}, "2": {"skip": ["mlp"]}, "3": {"skip": ["mlp", "attention"]}}
SKIP["5"] = {"skip": ["mlp"]}
SIZES = {"num_hidden_layers": len(LAYERS), "num_key_value_heads": 2, "intermediate_size": 256}
BLOCKS = {"attention": "self_attn", "mlp": "mlp"}
# orders that are written, with the letters of their layers
WRITTEN = {
    "ffsfs": ["f", "f", "sf", "s"],
    "sffssf": ["sf", "f", "s", "sf"],
    "sfsf": ["sf", "sf"],
    "sss": ["s", "s", "s"],
    "ff": ["f", "f"],
}
FORMS = ["transformers", "nemotron-nas", "executorch"]
FAMILIES = ["Llama", "Mistral", "Qwen2", "Qwen3", "Gemma2", "StableLm"]


def silence(model, layers=LAYERS):
    """Let transformers' own model compute as if its layers lacked what they skip, whose last maps become zero."""
    for layer, letters in zip(model.model.layers, layers, strict=True):
        for letter, last in (("s", layer.self_attn.o_proj), ("f", layer.mlp.down_proj)):
            if letter not in letters:
                last.weight.data.zero_()
    return model


def save(model, folder, **settings):
    """Save a model with other settings, and without the blocks that its layers skip."""
    model.save_pretrained(folder)
    edit(folder / "config.json", **settings)
    skipped = tuple(f"model.layers.{i}.{BLOCKS[part]}." for i, layer in SKIP.items() for part in layer["skip"])
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if not name.startswith(skipped)}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return kept


def assert_equal(model, expected):
    with torch.no_grad():
        torch.testing.assert_close(model(tokens(2, 20)).logits, expected, atol=1e-4, rtol=1e-4)


def turn(x, theta, halves):
    """Turn the heads of shape (batch, heads, length, width), in pairs of neighbours or of the two halves."""
    width = x.shape[-1]
    angles = torch.arange(x.shape[-2])[:, None] * theta ** -(torch.arange(0, width, 2) / width)
    a, b = x.chunk(2, -1) if halves else (x[..., ::2], x[..., 1::2])
    pair = [a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()]
    return torch.cat(pair, -1) if halves else torch.stack(pair, -1).flatten(-2)


def executorch(folder, ids):
    """Compute the logits of ExecuTorch's Llama, as its code says."""
    params = json.loads((folder / "params.json").read_text())
    weights = torch.load(folder / "consolidated.00.pth")

    def heads(x, name):
        return (x @ weights[name].T).unflatten(-1, (-1, params["dim"] // params["n_heads"])).transpose(1, 2)

    x = embedding(ids, weights["tok_embeddings.weight"])
    for i in range(params["n_layers"]):
        layer = f"layers.{i}"
        if params["layer_types"][i] != "skip_attention":
            y = rms_norm(x, x.shape[-1:], weights[f"{layer}.attention_norm.weight"], params["norm_eps"])
            q, k = (
                turn(heads(y, f"{layer}.attention.w{name}.weight"), params["rope_theta"], params["use_hf_rope"])
                for name in "qk"
            )
            v = heads(y, f"{layer}.attention.wv.weight")
            y = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + y.transpose(1, 2).flatten(2) @ weights[f"{layer}.attention.wo.weight"].T
        if params["mlp_type"][i] != "skip":
            y = rms_norm(x, x.shape[-1:], weights[f"{layer}.ffn_norm.weight"], params["norm_eps"])
            w1, w2, w3 = (weights[f"{layer}.feed_forward.w{j}.weight"].T for j in (1, 2, 3))
            x = x + (silu(y @ w1) * (y @ w3)) @ w2
    return rms_norm(x, x.shape[-1:], weights["norm.weight"], params["norm_eps"]) @ weights["output.weight"].T


def block_configs(layers=LAYERS, heads=2, ffn_mult=23.95):
    """Blocks as NVIDIA's folders have them."""
    return [
        {
            "attention": {"n_heads_in_group": heads if "s" in layer else None, "no_op": "s" not in layer}
            | {"replace_with_linear": False, "sparsify": None, "window_length": None},
            "ffn": {"ffn_mult": ffn_mult if "f" in layer else None, "no_op": "f" not in layer},
        }
        for layer in layers
    ]


NAS = {"model_type": "nemotron-nas", "architectures": ["DeciLMForCausalLM"], "block_configs": block_configs()}
NAS |= {"intermediate_size": None, "num_key_value_heads": None, "rope_parameters": None, "rope_theta": 500.0}
NAS |= {"auto_map": {"AutoConfig": "configuration_decilm.DeciLMConfig"}}


@pytest.fixture
def pruned(tmp_path):
    """Save a pruned language model: function(order, ...) -> model."""

    def save_it(order, **options):
        model, _ = from_llama(make("LlamaForCausalLM", **SIZES | options))
        places = []
        for letter in order:
            places.append(next(i for i in range(places[-1] + 1 if places else 0, 12) if "sf"[i % 2] == letter))
        smaller = take_subset(model, tuple(places))
        smaller.generation_config.max_new_tokens = 7
        smaller.save_pretrained(tmp_path / "pruned")
        return smaller

    return save_it


def write(folder, form, *flags):
    main([str(folder / "pruned"), str(folder / form), "--to", form, *flags])
    return folder / form


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_layers_of_transformers_that_skip_parts_are_read(family, tmp_path, capsys):
    source = make(f"{family}ForCausalLM", **SIZES | ({"sliding_window": 5} if family == "Mistral" else {}))
    kept = save(source, tmp_path / "source", per_layer_config=SKIP)
    report = convert(tmp_path, "--verify")
    assert "verified" in capsys.readouterr().out
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert_equal(model, silence(source)(tokens(2, 20)).logits)
    # what is tied is saved once
    assert (report["taken_over"].keys() | report["left_out"].keys()) - {"lm_head.weight"} == {*kept} - {
        "lm_head.weight"
    }
    assert all("norm" in name and reason == "skipped by its layer" for name, reason in report["left_out"].items())
    assert not report["new"]
    assert expand(model.config.sublayer_order).replace("w", "s") == ORDER


@torch.no_grad()
def test_weights_of_what_is_skipped_are_not_read(tmp_path):
    source = make("LlamaForCausalLM", **SIZES)
    source.save_pretrained(tmp_path / "source")
    edit(tmp_path / "source" / "config.json", per_layer_config=SKIP)
    report = convert(tmp_path, "--verify")
    assert_equal(AutoModelForCausalLM.from_pretrained(tmp_path / "ours"), silence(source)(tokens(2, 20)).logits)
    assert report["left_out"]["model.layers.0.self_attn.q_proj.weight"] == "skipped by its layer"
    assert len(report["left_out"]) == 2 * 5 + 3 * 4


@torch.no_grad()
def test_blocks_of_nemotron_nas_are_read(tmp_path):
    source = make("LlamaForCausalLM", **SIZES, rope_parameters={"rope_theta": 500.0, "rope_type": "default"})
    save(source, tmp_path / "source", **NAS)
    convert(tmp_path, "--verify")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert expand(model.config.sublayer_order) == ORDER
    assert_equal(model, silence(source)(tokens(2, 20)).logits)


@pytest.mark.parametrize("use_hf_rope", [False, True])
@torch.no_grad()
def test_layers_of_executorch_are_read(use_hf_rope, pruned, tmp_path):
    pruned("ffsfs")
    source = write(tmp_path, "executorch").rename(tmp_path / "source")
    # both ways to turn heads give a function, of which this is one
    edit(source / "params.json", use_hf_rope=use_hf_rope, rope_theta=500.0)
    convert(tmp_path, "--verify")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert expand(model.config.sublayer_order) == "ffsfs"
    assert_equal(model, executorch(source, tokens(2, 20)))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("order", WRITTEN)
@torch.no_grad()
def test_orders_are_written_for_transformers(order, tied, pruned, tmp_path):
    biases = dict.fromkeys(("attention_bias", "mlp_bias"), {*order} == {*"sf"})
    model = pruned(order, tie_word_embeddings=tied, **biases)
    written = LlamaForCausalLM.from_pretrained(write(tmp_path, "transformers", "--verify"))
    assert_equal(written, model(tokens(2, 20)).logits)
    prompt = tokens(2, 5)
    assert written.generation_config.max_new_tokens == 7
    assert torch.equal(written.generate(prompt, do_sample=False), model.generate(prompt, do_sample=False))
    skips = [layer.skip if written.config.is_heterogeneous else [] for layer in written.config.per_layer_config]
    assert [("s" * ("attention" not in skip)) + "f" * ("mlp" not in skip) for skip in skips] == WRITTEN[order]


@pytest.mark.parametrize("order", WRITTEN)
@torch.no_grad()
def test_orders_are_written_for_nemotron_nas(order, pruned, tmp_path):
    scaled = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaled |= {"original_max_position_embeddings": 8, "rope_theta": 500.0}
    model = pruned(order, rope_parameters=scaled)
    folder = write(tmp_path, "nemotron-nas", "--verify")
    config = json.loads((folder / "config.json").read_text())
    theta = config.pop("rope_theta")
    assert (theta, config["rope_scaling"]) == (500.0, {k: v for k, v in scaled.items() if k != "rope_theta"})
    blocks = [
        {
            "attention": {"no_op": "s" not in layer, "replace_with_linear": False}
            | {"n_heads_in_group": 2 if "s" in layer else None},
            "ffn": {"no_op": "f" not in layer, "replace_with_linear": False}
            | {"ffn_mult": 24.0 if "f" in layer else None},
        }
        for layer in WRITTEN[order]
    ]
    assert config["model_type"] == "nemotron-nas"
    assert config["block_configs"] == blocks
    # its blocks are Llama's, without the parts that they lack
    options = SIZES | {"num_hidden_layers": len(blocks), "rope_parameters": scaled}
    llama = silence(make("LlamaForCausalLM", **options), WRITTEN[order])
    lacking, unexpected = llama.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert not unexpected
    assert len(lacking) == sum(5 * ("s" not in layer) + 4 * ("f" not in layer) for layer in WRITTEN[order])
    assert_equal(llama, model(tokens(2, 20)).logits)


@pytest.mark.parametrize("order", WRITTEN)
@torch.no_grad()
def test_orders_are_written_for_executorch(order, pruned, tmp_path):
    model = pruned(order)
    folder = write(tmp_path, "executorch", "--verify")
    assert_equal(model, executorch(folder, tokens(2, 20)))
    params = json.loads((folder / "params.json").read_text())
    # code that does not know them runs the blocks that are skipped, too
    assert {*params["layer_types"]} <= {"full_attention", "skip_attention"}
    edit(folder / "params.json", layer_types=["full_attention"] * 12, mlp_type=["default"] * 12)
    assert_equal(model, executorch(folder, tokens(2, 20)))


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_what_is_written_is_read_as_it_was(form, pruned, tmp_path):
    model = pruned("sffssf", tie_word_embeddings=True)
    write(tmp_path, form).rename(tmp_path / "source")
    convert(tmp_path)
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert back.config.sublayer_order == model.config.sublayer_order
    assert back.config.tie_word_embeddings
    for name, weight in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], weight)


def block(part, **fields):
    """Blocks of which the second has another part."""
    blocks = block_configs(["sf", "sf"])
    blocks[1][part] |= fields
    return NAS | {"num_hidden_layers": 2, "block_configs": blocks}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"per_layer_config": {"1": {"intermediate_size": 128}}},
            "{1: {'intermediate_size': 128}} cannot be converted",
        ),
        ({"per_layer_config": {"1": {"skip": ["norm"]}}}, "may skip attention or mlp, and differ in nothing else"),
        (block("attention", replace_with_linear=True), "layer 1 with attention={'n_heads_in_group': 2"),
        (block("attention", window_length=8), "only attention without a window and feed-forward blocks can"),
        (block("ffn", sparsify=["up"]), "layer 1 with ffn={'ffn_mult'"),
        (block("ffn", hidden_act="relu"), "layer 1 with ffn={'ffn_mult'"),
        (block("ffn", ffn_mult=30.0), "layers with {'intermediate_size': [256, 512]} cannot be converted"),
        (block("attention", n_heads_in_group=4), "layers with {'n_heads_in_group': [2, 4]} cannot be converted"),
    ],
)
def test_layers_that_differ_in_more_are_refused(settings, sentence, tmp_path):
    make("LlamaForCausalLM", **SIZES).save_pretrained(tmp_path / "source")
    edit(tmp_path / "source" / "config.json", **settings)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        convert(tmp_path)


def test_encoders_that_skip_parts_are_refused(tmp_path):
    make("BertModel").save_pretrained(tmp_path / "source")
    edit(tmp_path / "source" / "config.json", per_layer_config=SKIP)
    with pytest.raises(ValueError, match=r"layers of llama, .* may skip attention or mlp"):
        convert(tmp_path)


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"moe": True}, "moe=True cannot be converted; only ExecuTorch's Llama with moe=None can"),
        ({"use_scaled_rope": True}, "use_scaled_rope=True cannot be converted"),
        ({"act_fn": "gelu"}, "act_fn='gelu' cannot be converted; only ExecuTorch's Llama with act_fn='silu' can"),
        ({"layer_types": ["conv"] * 4}, "layers of conv cannot be converted"),
    ],
)
def test_other_models_of_executorch_are_refused(params, sentence, pruned, tmp_path):
    pruned("ffsfs")
    source = write(tmp_path, "executorch").rename(tmp_path / "source")
    edit(source / "params.json", **params)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        convert(tmp_path)


def test_weights_of_executorch_are_one_file(pruned, tmp_path):
    pruned("ffsfs")
    source = write(tmp_path, "executorch").rename(tmp_path / "source")
    (source / "consolidated.01.pth").write_bytes((source / "consolidated.00.pth").read_bytes())
    with pytest.raises(ValueError, match=r"has 2 files \.pth; give a folder with one"):
        convert(tmp_path)


@pytest.mark.parametrize(
    ("form", "options", "sentence"),
    [
        (
            "nemotron-nas",
            {"intermediate_size": 24},
            "intermediate_size=24 cannot be written; only multiples of 256 can",
        ),
        ("nemotron-nas", {"head_dim": 6}, "head_dim=6 cannot be converted; only Nemotron-NAS with head_dim=4 can"),
        ("executorch", {"hidden_act": "relu"}, "hidden_act='relu' cannot be converted; only ExecuTorch"),
        ("executorch", {"attention_bias": True}, "attention_bias=True cannot be converted; only ExecuTorch"),
        ("executorch", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_type='linear' cannot be"),
    ],
)
def test_what_a_form_cannot_tell_is_refused(form, options, sentence, pruned, tmp_path):
    pruned("sffs", **options)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        write(tmp_path, form)
    assert not (tmp_path / form).exists()


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("MistralForCausalLM", {"sliding_window": 5}, "SandwichLMForCausalLM of order '(wf)2' cannot be written"),
        ("Qwen3ForCausalLM", {}, "qk_norm=True cannot be written; only SandwichLM with qk_norm=False can"),
        ("Qwen2ForCausalLM", {}, "attention_output_bias=False cannot be written"),
        ("GPT2LMHeadModel", {}, "=False cannot be written; only SandwichLM with"),
        ("LlamaForSequenceClassification", {}, "holds none; convert it without --to first"),
    ],
)
def test_what_is_no_llama_is_refused(name, options, sentence, tmp_path):
    make(name, **options).save_pretrained(tmp_path / "source")
    convert(tmp_path)
    (tmp_path / "ours").rename(tmp_path / "pruned")
    with pytest.raises(ValueError, match=re.escape(sentence)):
        write(tmp_path, "transformers")
    assert not (tmp_path / "transformers").exists()


def test_the_source_of_a_form_is_ours_and_stays_as_it_is(pruned, tmp_path):
    make("LlamaForCausalLM").save_pretrained(tmp_path / "pruned")
    with pytest.raises(ValueError, match="holds none; convert it without --to first"):
        write(tmp_path, "transformers")
    with pytest.raises(ValueError, match="--to transformers writes the model as it is; leave out"):
        write(tmp_path, "transformers", "--sublayer_order", "ssff")


def test_models_in_memory_that_run_what_they_skip_are_not_optimized():
    model = make("LlamaForCausalLM", **SIZES | {"per_layer_config": SKIP})
    with pytest.raises(ValueError, match=r"runs layers.0.self_attn.*, which per_layer_config skips; save the model"):
        optimize(model)
