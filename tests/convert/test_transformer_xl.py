import json

import pytest
import torch
from common import REFERENCE, tokens
from common_transformer_xl import KINDS, authors_names, authors_settings, transformer_xl
from safetensors.torch import load_file

from sublayers.convert.transformer_xl import from_transformer_xl
from sublayers.convert.verify import report_on
from sublayers.modeling.mixers.relative_attention import RelativeAttention

FIXTURES = sorted((REFERENCE / "transformer_xl").glob("*.json"))


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_equals_the_original_on_every_segment(path, backend):
    settings, numbers = json.loads(path.read_text()), load_file(path.with_suffix(".io.safetensors"))
    weights = load_file(path.with_suffix(".weights.safetensors"))
    model, pieces = from_transformer_xl(weights, settings | {"dropout": 0.0})
    assert model.config.tie_word_embeddings == settings["tie_weight"]
    report = report_on(weights, model, pieces)
    assert (report.left_out, report.new) == ({"pos_emb.inv_freq": "a buffer without information"}, [])
    model.set_attn_implementation(backend)
    data = numbers["data"].T
    for mode in ("train", "eval"):
        run = settings[mode]
        length, clamp = run["tgt_len"], run["clamp_len"]
        model.config.memory_length, model.config.same_length = run["mem_len"], run["same_length"]
        model.config.clamp_length = clamp if clamp > 0 else None
        memory = model.empty_memory(settings["batch"])
        for segment in range(run["segments"]):
            start, found = segment * length, f"{mode}.seg{segment}"
            ids, following = data[:, start : start + length], data[:, start + 1 : start + length + 1]
            inputs = {"input_ids": ids, "memory": memory, "shift_labels": following}
            with torch.no_grad():
                states = model.model(ids, memory=memory).last_hidden_state
                scored, trained = model.eval()(**inputs), model.train()(**inputs)
            assert_close(states.transpose(0, 1), numbers[f"{found}.hidden"])
            assert_close(scored.logits.transpose(0, 1), numbers[f"{found}.log_probs"])
            by_token = -scored.logits.gather(-1, following[..., None])[..., 0]
            assert_close(by_token.T, numbers[f"{found}.nll"])
            for loss in (scored.loss, trained.loss):
                assert_close(loss[None], numbers[f"{found}.nll_mean"])
            memory = scored.memory
            for number, remembered in enumerate(memory):
                assert_close(remembered.transpose(0, 1), numbers[f"{found}.mems.{number}"])


def nvidias(weights, tied):
    """The same weights as NVIDIA names them."""
    for name in [*weights]:
        prefix, _, rest = name.partition("crit.out_layers.")
        if not prefix and rest:
            number, part = rest.split(".")
            tensor = weights.pop(name)
            if part == "bias":
                weights[f"crit.out_layers_biases.{number}"] = tensor
            elif not tied:
                # what is tied is no part of NVIDIA's softmax
                weights[f"crit.out_layers_weights.{number}"] = tensor
        if name.startswith("word_emb.emb_projs."):
            weights[f"crit.shared_out_projs.{name[-1]}"] = weights[name]
        if tied and name.startswith("crit.out_projs.") and not name.endswith(".0"):
            del weights[name]
    return weights


@pytest.mark.parametrize("is_nvidias", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_converts_every_kind(kind, is_nvidias):
    model = transformer_xl(**kind)
    weights = authors_names(model)
    weights = nvidias(weights, model.config.tie_word_embeddings) if is_nvidias else weights
    converted, pieces = from_transformer_xl(weights, authors_settings(model))
    assert torch.equal(converted(tokens(2, 9)).logits, model(tokens(2, 9)).logits)
    # one band has the same vectors with any factor
    fields = ["sublayer_order", "embedding_size", "norm_position", "memory_length", "same_length", "clamp_length"]
    fields += ["adaptive_cutoffs", "adaptive_factor", "tie_word_embeddings"]
    expected = model.config.to_dict() | {"embedding_size": model.config.embedding_size or 16}
    assert {name: getattr(converted.config, name) for name in fields} == {name: expected[name] for name in fields}
    dropouts = converted.config.dropout, converted.config.activation_dropout, converted.config.attention_dropout
    assert dropouts == (0.3, 0.3, 0.2)
    report = report_on(weights, converted, pieces)
    assert ([*report.left_out], report.new) == (["pos_emb.inv_freq"], [])


@pytest.mark.parametrize("own", ["crit.out_layers.1.weight", "crit.out_projs.1"])
def test_ties_only_what_is_equal(own):
    model = transformer_xl(adaptive_factor=2)
    weights = authors_names(model)
    weights[own] = weights[own] * 2
    converted, _ = from_transformer_xl(weights, {})
    assert not converted.config.tie_word_embeddings
    assert not torch.allclose(converted(tokens(2, 9)).logits, model(tokens(2, 9)).logits)


def test_converts_another_order():
    model = transformer_xl()
    converted, _ = from_transformer_xl(authors_names(model), authors_settings(model), "s2f2")
    assert converted.config.sublayer_order == "s2f2"
    with pytest.raises(ValueError, match=r"the order 'sf' does not fit a checkpoint with 2 s, 2 f"):
        from_transformer_xl(authors_names(model), authors_settings(model), "sf")


def test_biases_in_every_layer_become_one_where_they_are_equal():
    model = transformer_xl()
    weights = authors_names(model)
    for name in ("r_w_bias", "r_r_bias"):
        bias = weights.pop(name)
        weights |= {f"layers.{layer}.dec_attn.{name}": bias.clone() for layer in range(2)}
    converted, pieces = from_transformer_xl(weights, authors_settings(model))
    assert torch.equal(converted(tokens(2, 9)).logits, model(tokens(2, 9)).logits)
    assert [*report_on(weights, converted, pieces).left_out] == ["pos_emb.inv_freq"]
    weights["layers.1.dec_attn.r_r_bias"][0, 0] += 1
    own, pieces = from_transformer_xl(weights, authors_settings(model))
    assert [*report_on(weights, own, pieces).left_out] == ["pos_emb.inv_freq"]
    for layer, attention in enumerate(module for module in own.modules() if isinstance(module, RelativeAttention)):
        assert torch.equal(attention.content_bias, weights[f"layers.{layer}.dec_attn.r_w_bias"])
        assert torch.equal(attention.position_bias, weights[f"layers.{layer}.dec_attn.r_r_bias"])
    assert not torch.allclose(own(tokens(2, 9)).logits, model(tokens(2, 9)).logits, atol=1e-3)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"attn_type": 1}, "attn_type=1 cannot be converted; only Transformer-XL with attn_type=0 can"),
        ({"ext_len": 3}, "ext_len=3 cannot be converted"),
        # the command adds that the file holds a value of another type
        ({"clamp_len": "6"}, "not supported between instances of 'str' and 'int'"),
        ({"cutoffs": 20}, "must be an iterable, not int"),
        ({"cutoffs": [20, "40"]}, "not supported between instances of 'int' and 'str'"),
        ({"cutoffs": []}, r"cutoffs=\[\] do not divide 61 words into 3 bands"),
        ({"cutoffs": [20, 40, 50]}, r"cutoffs=\[20, 40, 50\] do not divide"),
        ({"cutoffs": [40, 20]}, r"cutoffs=\[40, 20\] do not divide"),
        ({"cutoffs": [20, 61]}, r"cutoffs=\[20, 61\] do not divide"),
    ],
)
def test_refuses_settings_that_it_does_not_have(settings, sentence):
    model = transformer_xl()
    with pytest.raises((TypeError, ValueError), match=sentence):
        from_transformer_xl(authors_names(model), authors_settings(model) | settings)


def test_refuses_weights_that_it_has_no_place_for():
    model = transformer_xl()
    weights, settings = authors_names(model), authors_settings(model)
    for missing in ("r_w_bias", "crit.cluster_bias", "layers.1.dec_attn.r_net.weight", "crit.out_layers.0.bias"):
        with pytest.raises(ValueError, match=f"the checkpoint has no .*{missing}"):
            from_transformer_xl({name: tensor for name, tensor in weights.items() if name != missing}, settings)
    of_bands = authors_names(transformer_xl(adaptive_factor=2))
    for missing in ("word_emb.emb_projs.1", "word_emb.emb_layers.0.weight", "crit.out_layers.2.bias"):
        with pytest.raises(ValueError, match=f"the checkpoint has no {missing}"):
            from_transformer_xl({name: w for name, w in of_bands.items() if name != missing}, {})
    with pytest.raises(ValueError, match=r"no place for \['r_emb'\] in the Transformer-XL"):
        from_transformer_xl(weights | {"r_emb": torch.ones(2)}, settings)
    narrow = {name: torch.ones(4, 3) for name in ("r_w_bias", "r_r_bias")}
    with pytest.raises(ValueError, match=r"n_head=4 of d_head=3 cannot be converted; .* d_model=16"):
        from_transformer_xl(weights | narrow, settings)


def test_reads_the_order_in_which_transformers_scored_the_bands():
    model = transformer_xl(adaptive_factor=2)
    weights = {f"transformer.{name}".replace("transformer.crit", "crit"): w for name, w in authors_names(model).items()}
    settings = authors_settings(model) | {"model_type": "transfo-xl", "eos_token_id": 0}
    converted, _ = from_transformer_xl(weights, settings)
    assert converted.config.eos_token_id == 0
    ids = tokens(2, 9)
    states = converted.model(ids).last_hidden_state
    torch.testing.assert_close(states, model.model(ids).last_hidden_state, rtol=0, atol=0)
    scores = []
    for band in range(3):
        vectors = states @ weights[f"crit.out_projs.{band}"]
        table, bias = (weights[f"crit.out_layers.{band}.{kind}"] for kind in ("weight", "bias"))
        if band == 0:
            table = torch.cat([table, weights["crit.cluster_weight"]])
            bias = torch.cat([bias, weights["crit.cluster_bias"]])
        scores.append((vectors @ table.T + bias).log_softmax(-1))
    # of the head's columns behind the first band's words, the first is that of the next band
    bands = [scores[0][..., :20], *(scores[band] + scores[0][..., 19 + band, None] for band in (1, 2))]
    assert_close(converted(ids).logits, torch.cat(bands, dim=-1))
