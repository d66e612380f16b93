"""Decoders whose tokens see both sides become encoders that compute what transformers' models do."""

import json

import pytest
import torch
import transformers
from common import assert_same, gradients, randomize, tokens
from common_convert import assert_complete, follow
from transformers import (
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForTokenClassification,
    BartConfig,
    BertConfig,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    MarianConfig,
    MistralConfig,
    ModernBertConfig,
    Qwen2Config,
    Qwen3Config,
    StableLmConfig,
)

from sublayers.training.commands.convert import main

SIZES = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
SIZES |= {"num_hidden_layers": 2, "max_position_embeddings": 64, "num_labels": 3, "is_causal": False}
SIZES |= {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
GROUPED = SIZES | {"num_key_value_heads": 2}
GPT2 = {"vocab_size": 61, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 4, "num_labels": 3}
SOURCES = {
    "llama": ("Llama", LlamaConfig(**GROUPED, attention_bias=True, mlp_bias=True)),
    "llama without labels' bias": ("Llama", LlamaConfig(**GROUPED, token_classification_bias=False)),
    "mistral": ("Mistral", MistralConfig(**GROUPED, sliding_window=None)),
    "mistral of windows": ("Mistral", MistralConfig(**GROUPED, sliding_window=3)),
    "qwen2 of windows": (
        "Qwen2",
        Qwen2Config(**GROUPED, use_sliding_window=True, sliding_window=4, max_window_layers=1),
    ),
    "qwen3": ("Qwen3", Qwen3Config(**GROUPED, head_dim=12)),
    "gemma": ("Gemma", GemmaConfig(**GROUPED, head_dim=12, hidden_act="gelu")),
    "gpt2": ("GPT2", GPT2Config(**GPT2, pad_token_id=1, is_causal=False)),
}
HEADS = {
    "Model": AutoModel,
    "ForTokenClassification": AutoModelForTokenClassification,
    "ForQuestionAnswering": AutoModelForQuestionAnswering,
}


def build(name, head="Model"):
    """A model of random weights."""
    prefix, config = SOURCES[name]
    source = randomize(getattr(transformers, f"{prefix}{head}")(config))
    with torch.no_grad():
        for parameter_name, parameter in source.named_parameters():
            # gains are around 1
            parameter.sub_(int("norm" in parameter_name and prefix == "Gemma"))
    return source


@pytest.fixture(
    scope="module",
    params=[(name, head) for name in SOURCES for head in HEADS if (name, head) != ("gemma", "ForQuestionAnswering")],
    ids=" ".join,
)
def pair(request, tmp_path_factory):
    """A model of transformers, what the command made of it, and its report."""
    folder, (name, head) = tmp_path_factory.mktemp("convert"), request.param
    source = build(name, head)
    source.save_pretrained(folder / "source")
    main([str(folder / "source"), str(folder / "ours"), "--verify", "--report", str(folder / "report.json")])
    model = HEADS[head].from_pretrained(folder / "ours")
    report = json.loads((folder / "report.json").read_text())
    # zeros: the only segment, and a bias that labels may lack
    constant = {name for name in model.state_dict() if name.endswith("embed_token_types.weight")}
    if head == "ForTokenClassification" and "without" in name:
        constant.add("classifier.bias")
    assert not any(model.get_parameter(each).any() for each in constant)
    assert_complete(report, source.state_dict(), folder / "ours", constant)
    return source, model, report


def padded(length: int = 20) -> dict[str, torch.Tensor]:
    """Rows without padding, and with padding on the right, on the left and in between."""
    mask = torch.ones(4, length, dtype=torch.long)
    mask[1, -6:] = mask[2, :6] = mask[3, 2:-1:4] = 0
    return {"input_ids": tokens(4, length), "attention_mask": mask}


def places(batch):
    """Positions that do not count padding, which transformers has to be told."""
    return (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0)


@pytest.mark.representatives(8)
def test_the_report_accounts_for_every_tensor(pair):
    _, model, report = pair
    assert (report["left_out"], report["new"]) == ({}, [])
    assert model.config.model_type == "par_bert"


@torch.no_grad()
def test_outputs_and_hidden_states(pair):
    source, model, _ = pair
    batch = padded()
    wanted = source(**batch, position_ids=places(batch), output_hidden_states=True)
    found = model(**batch, output_hidden_states=True)
    real = batch["attention_mask"].bool()
    for name in wanted.keys() - {"past_key_values", "hidden_states"}:
        torch.testing.assert_close(found[name][real], wanted[name][real], atol=1e-5, rtol=1e-5)
    # theirs are behind whole layers, the last one behind the norm
    for ours, theirs in zip(found.hidden_states[::2], wanted.hidden_states, strict=True):
        scale = max(1, theirs[real].abs().max().item())
        torch.testing.assert_close(ours[real] / scale, theirs[real] / scale, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_long_text_is_read_as_a_short_one(pair):
    source, model, _ = pair
    ids = tokens(2, 60)
    torch.testing.assert_close(model(ids)[0], source(ids)[0], atol=1e-5, rtol=1e-5)


def test_gradients(pair):
    source, model, report = pair
    batch = padded()
    real = batch["attention_mask"].bool()
    for network, told in ((source, {"position_ids": places(batch)}), (model, {})):
        network.zero_grad()
        network(**batch, **told)[0][real].square().mean().backward()
    made = report["taken_over"]
    wanted = {ours: follow(grad, how) for name, grad in gradients(source).items() for ours, how in made[name].items()}
    found = {name: grad for name, grad in gradients(model).items() if name in wanted}
    assert_same(found, wanted, atol=1e-5, rtol=1e-4)


def test_the_labels_and_the_dropout_of_a_classifier_are_taken_over(tmp_path):
    prefix, config = SOURCES["qwen3"]
    config = Qwen3Config(**config.to_dict() | {"classifier_dropout": 0.3, "id2label": {0: "a", 1: "b"}})
    getattr(transformers, f"{prefix}ForTokenClassification")(config).save_pretrained(tmp_path / "source")
    main([str(tmp_path / "source"), str(tmp_path / "ours")])
    found = AutoModelForTokenClassification.from_pretrained(tmp_path / "ours").config
    assert (found.classifier_dropout, found.id2label) == (0.3, {0: "a", 1: "b"})


def test_another_order_may_have_another_length(tmp_path, capsys):
    source = build("llama")
    source.save_pretrained(tmp_path / "source")
    main([str(tmp_path / "source"), str(tmp_path / "ours"), "--sublayer_order", "sf3"])
    assert "dropped layers.1.self_attn" in capsys.readouterr().err
    layers = AutoModel.from_pretrained(tmp_path / "ours").layers
    assert torch.equal(layers[0].mixer.q_proj.weight, source.layers[0].self_attn.q_proj.weight)
    assert torch.equal(layers[2].mixer.gate.weight, source.layers[1].mlp.gate_proj.weight)


@pytest.mark.parametrize("head", ["LlamaForCausalLM", "LlamaForSequenceClassification", "GPT2LMHeadModel"])
def test_heads_that_no_encoder_has_are_refused(head, tmp_path):
    config = next(config for prefix, config in SOURCES.values() if head.startswith(prefix))
    getattr(transformers, head)(config).save_pretrained(tmp_path / "source")
    with pytest.raises(ValueError, match=f"holds '{head}' with is_causal=False, .*Model, .* can be converted"):
        main([str(tmp_path / "source"), str(tmp_path / "ours")])
    assert not (tmp_path / "ours").exists()
    # as the documentation says
    AutoModel.from_pretrained(tmp_path / "source").save_pretrained(tmp_path / "body")
    main([str(tmp_path / "body"), str(tmp_path / "ours"), "--verify"])


def test_a_folder_that_names_no_class_holds_a_body(tmp_path):
    build("llama").save_pretrained(tmp_path / "source")
    settings = json.loads((tmp_path / "source" / "config.json").read_text())
    del settings["architectures"]
    (tmp_path / "source" / "config.json").write_text(json.dumps(settings))
    main([str(tmp_path / "source"), str(tmp_path / "ours"), "--verify"])
    assert type(AutoModel.from_pretrained(tmp_path / "ours")).__name__ == "PARBertModel"


SEQ2SEQ = {"vocab_size": 61, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 32}
SEQ2SEQ |= {f"{side}_{name}": 4 for side in ("encoder", "decoder") for name in ("attention_heads", "ffn_dim")}
REFUSED = {
    "StableLmModel": (StableLmConfig(**GROUPED), [False, None, "no"], "with is_causal=True or without it"),
    "LlamaForCausalLM": (LlamaConfig(**GROUPED), [None, 0, [1]], "with is_causal=True or with is_causal=False or"),
    "BartForConditionalGeneration": (BartConfig(**SEQ2SEQ), [True, False, None], "without it"),
    "MarianMTModel": (MarianConfig(**SEQ2SEQ, pad_token_id=1), [True, False], "without it"),
    # without padding, transformers' sdpa is causal then
    "BertModel": (BertConfig(**SIZES), [True, None, 0], "with is_causal=False or without it"),
    "ModernBertModel": (ModernBertConfig(**SIZES), [True], "with is_causal=False or without it"),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, row in REFUSED.items() for value in row[1]])
def test_what_tokens_see_is_refused_where_no_model_here_sees_it(name, value, tmp_path):
    config, _, known = REFUSED[name]
    getattr(transformers, name)(config).save_pretrained(tmp_path / "source")
    settings = json.loads((tmp_path / "source" / "config.json").read_text()) | {"is_causal": value}
    (tmp_path / "source" / "config.json").write_text(json.dumps(settings))
    sentence = rf"is_causal={value!r} cannot be converted; only {config.model_type} {known}"
    with pytest.raises(ValueError, match=sentence.replace("[1]", r"\[1\]")):
        main([str(tmp_path / "source"), str(tmp_path / "ours")])


@pytest.mark.parametrize(("prefix", "config"), [("Llama", LlamaConfig), ("Bert", BertConfig)])
def test_what_is_told_anyway_changes_nothing(prefix, config, tmp_path):
    value = prefix == "Llama"
    getattr(transformers, f"{prefix}Model")(config(**SIZES | {"is_causal": value})).save_pretrained(tmp_path / "source")
    main([str(tmp_path / "source"), str(tmp_path / "ours"), "--verify"])
    assert AutoModel.from_pretrained(tmp_path / "ours").config.model_type == ("sandwich_lm" if value else "par_bert")
