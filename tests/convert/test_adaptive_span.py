import json

import pytest
import torch
from common import REFERENCE, randomize, tokens
from safetensors.torch import load_file

from sublayers import SandwichCharLMConfig, SandwichCharLMForCausalLM, expand
from sublayers.convert.adaptive_span import from_adaptive_span
from sublayers.convert.verify import report_on

FIXTURES = sorted((REFERENCE / "sandwich").glob("char_*.json"))
UNUSED = "of a sublayer that the source lacks"


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("begins_empty", [True, False])
def test_equals_the_original_on_every_segment(path, backend, begins_empty):
    settings, numbers = json.loads(path.read_text()), load_file(path.with_suffix(".io.safetensors"))
    weights = load_file(path.with_suffix(".weights.safetensors"))
    model, pieces = from_adaptive_span(weights, settings)
    assert model.config.adaptive_span == settings["adapt_span_params"]["adapt_span_enabled"]
    assert (model.config.dropout, model.config.attention_dropout) == (0, settings["dropout"])
    assert report_on(weights, model, pieces).new == []
    model.set_attn_implementation(backend)
    length, slots = settings["block_size"], range(settings["architecture"].count("s"))
    # the original begins with zeros, which take part
    memory = [numbers[f"seg0.cache_in.{slot}"] for slot in slots]
    if begins_empty:
        memory = model.empty_memory(settings["batch"])
    for segment in range(settings["segments"]):
        start, found = segment * length, f"seg{segment}"
        ids, following = (numbers["tokens"][:, s : s + length] for s in (start, start + 1))
        with torch.no_grad():
            out = model(ids, memory=memory, shift_labels=following)
        assert_close(out.logits.log_softmax(-1), numbers[f"{found}.log_probs"])
        assert_close(out.loss[None], numbers[f"{found}.nll_mean"])
        memory = out.memory
        for slot in slots:
            expected = numbers[f"{found}.cache_out.{slot}"]
            # nothing is remembered of what was nothing
            kept = min(start + length, expected.shape[1]) if begins_empty else expected.shape[1]
            assert_close(memory[slot], expected[:, -kept:])
    if model.config.adaptive_span:
        spans = model.span_attentions()
        assert_close(model.span_loss()[None], numbers["span_loss_sum"])
        assert [settings["attn_span"] - span.read_length for span in spans] == numbers["trim_len"].tolist()
        assert [span.memory_length for span in spans] == numbers["cache_size"].tolist()


def character_model(order="s(sf)2f", **overrides):
    sizes = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4}
    sizes |= {"attention_span": 8, "span_ramp_size": 4, "sublayer_order": order}
    model = randomize(SandwichCharLMForCausalLM(SandwichCharLMConfig(**sizes | overrides)))
    for attention in model.span_attentions():
        if attention.span is not None:
            attention.span.data.copy_(torch.tensor([0.1, 0.4, 0.6, 0.2]))
    return model


def authors_names(model, architecture, prefix=""):
    """A model's weights as its authors keep them, for each layer two letters or points."""
    state = {"key_pe": model.model.positions.table.T[None], "in_emb.weight": model.model.embed_tokens.weight}
    state |= {f"out_emb.{kind}": tensor for kind, tensor in model.lm_head.state_dict().items()}
    layers = iter(model.model.layers)
    for place, letter in enumerate(architecture):
        name, norm = f"layers.{place // 2}", {"weight": torch.ones(16), "bias": torch.zeros(16)}
        if letter != ".":
            layer = next(layers)
            mixer, norm = layer.mixer, layer.norm.state_dict()
            parts = {"ff.fc1": "fc1", "ff.fc2": "fc2"}
            if letter == "s":
                parts = {"attn.proj_query": "q_proj", "attn.proj_key": "k_proj"}
                parts |= {"attn.proj_val": "v_proj", "attn.proj_out": "o_proj"}
                if mixer.span is not None:
                    mask = f"{name}.attn.attn.adaptive_span._mask"
                    state |= {f"{mask}.current_val": mixer.span[:, None, None], f"{mask}.mask_template": torch.ones(8)}
            for theirs, ours in parts.items():
                module = getattr(mixer, ours)
                state |= {f"{name}.{theirs}.{kind}": tensor for kind, tensor in module.state_dict().items()}
        state |= {f"{name}.norm{place % 2 + 1}.{kind}": tensor for kind, tensor in norm.items()}
    return {f"{prefix}{name}": tensor.detach().clone() for name, tensor in state.items()}


@pytest.mark.parametrize("architecture", ["sfsf", "s.sfsf.f", "sf.fs.", "s.s.", ".f.f", ".fs.sf"])
@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_converts_every_architecture(architecture, adaptive, prefix):
    model = character_model(architecture, adaptive_span=adaptive)
    weights = authors_names(model, architecture, prefix)
    converted, pieces = from_adaptive_span(weights, {"adapt_span_ramp": 4})
    config, ids = converted.config, tokens(2, 12)
    assert torch.equal(converted(ids).logits, model(ids).logits)
    assert expand(config.sublayer_order) == architecture.replace(".", "")
    assert config.adaptive_span == (adaptive and "s" in architecture)
    # the papers' settings, where none are told
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0, 0.4, 0.4)
    report = report_on(weights, converted, pieces)
    assert report.new == []
    masks = {name for name in weights if name.endswith("mask_template")}
    lacked = {f"{prefix}layers.{i // 2}.norm{i % 2 + 1}." for i, letter in enumerate(architecture) if letter == "."}
    norms = {name for name in weights if name.startswith(tuple(lacked))}
    expected = dict.fromkeys(masks, "a buffer without information") | dict.fromkeys(norms, UNUSED)
    assert report.left_out == expected
    assert not report.warning()


def test_takes_over_what_settings_tell():
    model = character_model()
    span = {"adapt_span_ramp": 4, "adapt_span_loss": 1e-6, "adapt_span_init": 0.5}
    settings = {"architecture": "s.sfsf.f", "dropout": 0.2, "adapt_span_params": span}
    config = from_adaptive_span(authors_names(model, "s.sfsf.f"), settings)[0].config
    assert (config.span_ramp_size, config.span_loss, config.initial_span_share) == (4, 1e-6, 0.5)
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0, 0.2, 0.2)


def test_converts_another_order():
    weights = authors_names(character_model(), "s.sfsf.f")
    assert from_adaptive_span(weights, sublayer_order="(sf)3")[0].config.sublayer_order == "(sf)3"
    with pytest.raises(ValueError, match=r"the order 'sf' does not fit a checkpoint with 3 s, 3 f"):
        from_adaptive_span(weights, sublayer_order="sf")


def test_refuses_what_it_has_no_place_for():
    weights = authors_names(character_model(), "s.sfsf.f")
    for missing in ("key_pe", "layers.0.attn.proj_key.weight", "out_emb.bias", "layers.1.norm2.bias"):
        with pytest.raises(ValueError, match=f"the checkpoint has no .*{missing}"):
            from_adaptive_span({name: tensor for name, tensor in weights.items() if name != missing})
    persistent = "layers.0.attn.attn.persistent_memory.key"
    with pytest.raises(ValueError, match=rf"no place for \['{persistent}'\] in the sandwich character model"):
        from_adaptive_span(weights | {persistent: torch.ones(2)})
    span = "layers.0.attn.attn.adaptive_span._mask.current_val"
    with pytest.raises(ValueError, match="spans that only some attention sublayers learn cannot be converted"):
        from_adaptive_span({name: tensor for name, tensor in weights.items() if name != span})
