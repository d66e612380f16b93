import argparse
import json

import pytest
import torch
from common import REFERENCE, randomize, tokens
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from sublayers import SandwichSeq2SeqConfig, SandwichSeq2SeqForConditionalGeneration
from sublayers.convert.seq2seq import from_fairseq_seq2seq
from sublayers.training.commands.convert import main

SIZES = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4}


def source(encoder, decoder, **fields):
    config = SandwichSeq2SeqConfig(
        encoder_sublayer_order=encoder, decoder_sublayer_order=decoder, dropout=0.0, **SIZES | fields
    )
    return randomize(SandwichSeq2SeqForConditionalGeneration(config))


def fairseq_names(model):
    """The weights of a model in layers of a convolution and what follows it, as fairseq 0.9 would have saved them."""
    convolution = {"mixer.in_proj": "linear1", "mixer.out_proj": "linear2"}
    attention = {f"mixer.{p}_proj": f"encoder_attn.{p}_proj" for p in "qkv"} | {"mixer.o_proj": "encoder_attn.out_proj"}
    feed_forward = {"mixer.fc1": "fc1", "mixer.fc2": "fc2"}
    state = {}
    for side, per_layer in (("encoder", 2), ("decoder", 3)):
        stack = getattr(model.model, side)
        state |= {f"{side}.embed_tokens.weight": stack.embed_tokens.weight, f"{side}.version": torch.ones(1)}
        if side == "encoder":
            norms = ["layer_norms.0", "layer_norms.1"]
        else:
            norms = ["conv_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"]
        if model.config.final_norm:
            state |= {f"{side}.layer_norm.{kind}": p for kind, p in stack.norm.named_parameters()}
        for i, sublayer in enumerate(stack.layers):
            layer = f"{side}.layers.{i // per_layer}."
            for name, parameter in sublayer.named_parameters():
                part, _, kind = name.rpartition(".")
                if part == "mixer.weight_proj":
                    is_dynamic = parameter.shape[1] == 16
                    key = "conv.weight_linear.weight" if is_dynamic else "conv.weight"
                    state[layer + key] = parameter if is_dynamic else parameter.view(4, 1, -1)
                else:
                    place = norms[i % per_layer] if part == "norm" else (convolution | attention | feed_forward)[part]
                    state[f"{layer}{place}.{kind}"] = parameter
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def scores(model):
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, :4] = 0
    with torch.no_grad():
        return model(tokens(2, 9), attention_mask=mask, decoder_input_ids=tokens(2, 7)).logits


def test_scores_as_fairseq_does():
    path = REFERENCE / "iot" / "baseline_dynamicconv"
    weights, io = load_file(f"{path}.weights.safetensors"), load_file(f"{path}.io.safetensors")
    meta = json.loads(path.with_suffix(".json").read_text())
    model, _ = from_fairseq_seq2seq(weights, 4, options=meta["args"])
    assert [*map(str, model.config.orders.values())] == ["(df)2", "(dcf)2"]
    assert (model.config.kernel_sizes, model.config.norm_position) == ([3, 7], "post")
    mask, real = io["src_tokens_leftpad"] != 1, io["target"] != 1
    # with padding left out of the computation, and in it
    for options in ({}, {"output_hidden_states": True}):
        given = {"attention_mask": mask.long(), "decoder_input_ids": io["prev_output_tokens"]} | options
        with torch.no_grad():
            out = model(io["src_tokens_leftpad"], **given)
        torch.testing.assert_close(out.logits[real], io["logits"][real], atol=1e-5, rtol=0)
        expected = io["encoder_out_TBC"].transpose(0, 1)[mask]
        torch.testing.assert_close(out.encoder_last_hidden_state[mask], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("encoder", "decoder", "fields"),
    [
        ("(lf)2", "(lcf)2", {"kernel_sizes": [3, 5]}),
        # both kinds in one stack, an encoder that is deeper, pre-norm
        ("(df)2lf", "lcfdcf", {"kernel_sizes": [3, 5, 4], "norm_position": "pre", "final_norm": True}),
        ("df", "(dcf)2", {"kernel_sizes": [7, 2]}),
    ],
)
def test_a_file_of_fairseqs_names_scores_as_the_model_it_came_from(encoder, decoder, fields, tmp_path, capsys):
    model = source(encoder, decoder, **fields)
    save_file(fairseq_names(model), tmp_path / "lightconv.safetensors")
    main([str(tmp_path / "lightconv.safetensors"), str(tmp_path / "ours"), "--num_attention_heads", "4"])
    converted = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert converted.config.orders == model.config.orders
    assert f"decoder sublayer order {model.config.decoder_sublayer_order}" in capsys.readouterr().out
    assert torch.equal(scores(converted), scores(model))


def test_other_orders_take_the_same_sublayers():
    model = source("(df)2", "(dcf)2", kernel_sizes=[3, 5])
    other, _ = from_fairseq_seq2seq(
        fairseq_names(model), 4, encoder_sublayer_order="d2f2", decoder_sublayer_order="(dc)2f2"
    )
    layers = other.model.decoder.layers
    assert torch.equal(layers[2].mixer.weight_proj.weight, model.model.decoder.layers[3].mixer.weight_proj.weight)
    assert torch.equal(layers[5].mixer.fc1.bias, model.model.decoder.layers[5].mixer.fc1.bias)
    with pytest.raises(ValueError, match=r"the order 'df' does not fit a checkpoint with 2 d, 2 f"):
        from_fairseq_seq2seq(fairseq_names(model), 4, encoder_sublayer_order="df")


def test_reads_options():
    state = fairseq_names(source("df", "dcf", kernel_sizes=[3]))
    options = {"dropout": 0.3, "attention_dropout": 0.1, "weight_dropout": 0.2, "relu_dropout": 0.05}
    config = from_fairseq_seq2seq(state, 4, options=options | {"max_source_positions": 2000})[0].config
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.3, 0.2, 0.05)
    assert (config.max_position_embeddings, config.kernel_sizes) == (2000, [3])


def test_dropouts_that_are_not_followed_are_told(tmp_path, capsys):
    options = {"encoder_attention_heads": 4, "attention_dropout": 0.1, "weight_dropout": 0.2, "input_dropout": 0.3}
    weights = fairseq_names(source("df", "dcf", kernel_sizes=[3]))
    torch.save({"args": argparse.Namespace(**options), "model": weights}, tmp_path / "model.pt")
    main([str(tmp_path / "model.pt"), str(tmp_path / "ours")])
    assert "not followed in training: input_dropout=0.3, attention_dropout=0.1\n" in capsys.readouterr().out


def test_what_does_not_fit_is_one_sentence():
    state = fairseq_names(source("(df)2", "(dcf)2", kernel_sizes=[3, 5]))
    with pytest.raises(
        ValueError,
        match="weight_softmax=False cannot be converted; only fairseq's LightConv with weight_softmax=True can",
    ):
        from_fairseq_seq2seq(state, 4, options={"weight_softmax": False})
    narrow = {name: t[:16] if name.startswith("encoder") and "linear1" in name else t for name, t in state.items()}
    with pytest.raises(ValueError, match="gates in only some convolutions, fairseq's encoder_glu and decoder_glu, can"):
        from_fairseq_seq2seq(narrow, 4)
    with pytest.raises(ValueError, match=r"no place for \['encoder.layers.1.conv.bias'\]"):
        from_fairseq_seq2seq(state | {"encoder.layers.1.conv.bias": torch.zeros(16)}, 4)
    missing = {name: t for name, t in state.items() if name != "decoder.layers.1.conv.weight_linear.weight"}
    with pytest.raises(ValueError, match=r"the checkpoint has no decoder.layers.1.conv.weight"):
        from_fairseq_seq2seq(missing, 4)
    wide = dict(state)
    wide["decoder.layers.1.conv.weight_linear.weight"] = torch.zeros(36, 16)
    with pytest.raises(ValueError, match=r"kernels of widths \[3, 5\] and \[3, 9\] cannot be converted"):
        from_fairseq_seq2seq(wide, 4)
