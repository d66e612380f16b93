import argparse

import pytest
import torch
from common_fairseq import WIDTH, fairseq_stack, load_reference

from sublayers.convert.seq2seq import from_fairseq_seq2seq
from sublayers.training.commands.convert import main


def translator(kernels="dd"):
    """Random weights of an encoder-decoder of gated convolutions."""
    options = {"conv_rows": 2 * WIDTH, "kernels": kernels}
    return fairseq_stack("encoder", **options) | fairseq_stack("decoder", crosses=True, **options)


def test_scores_as_fairseq_does():
    weights, io, meta = load_reference("iot/baseline_dynamicconv")
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


def test_other_orders_take_the_same_sublayers():
    state, orders = translator(), {"encoder_sublayer_order": "d2f2", "decoder_sublayer_order": "(dc)2f2"}
    layers = from_fairseq_seq2seq(state, 4, **orders)[0].model.decoder.layers
    assert torch.equal(layers[2].mixer.weight_proj.weight, state["decoder.layers.1.conv.weight_linear.weight"])
    assert torch.equal(layers[5].mixer.fc1.bias, state["decoder.layers.1.fc1.bias"])
    with pytest.raises(ValueError, match=r"the order 'df' does not fit a checkpoint with 2 d, 2 f"):
        from_fairseq_seq2seq(state, 4, encoder_sublayer_order="df")


def test_reads_options_and_tells_dropouts_that_are_not_followed(tmp_path, capsys):
    options = {"dropout": 0.3, "attention_dropout": 0.1, "weight_dropout": 0.2, "relu_dropout": 0.05}
    config = from_fairseq_seq2seq(translator("d"), 4, options=options | {"max_source_positions": 2000})[0].config
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.3, 0.2, 0.05)
    assert (config.max_position_embeddings, config.kernel_sizes) == (2000, [3])
    namespace = argparse.Namespace(**options, encoder_attention_heads=4, input_dropout=0.3)
    torch.save({"args": namespace, "model": translator("d")}, tmp_path / "model.pt")
    main([str(tmp_path / "model.pt"), str(tmp_path / "ours")])
    assert "not followed in training: input_dropout=0.3, attention_dropout=0.1\n" in capsys.readouterr().out


def narrow(state):
    return {name: t[:WIDTH] if name.startswith("encoder") and "linear1" in name else t for name, t in state.items()}


KERNELS = "decoder.layers.1.conv.weight_linear.weight"


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        (dict, {"weight_softmax": False}, "weight_softmax=False .*; only fairseq's LightConv with weight_softmax=True"),
        (narrow, {}, "gates in only some convolutions, fairseq's encoder_glu and decoder_glu, cannot be converted"),
        (
            lambda state: state | {"encoder.layers.1.conv.bias": torch.zeros(1)},
            {},
            r"no place for \['encoder.l.*bias'\]",
        ),
        (lambda state: {name: t for name, t in state.items() if name != KERNELS}, {}, "has no decoder.layers.1.conv.w"),
        (
            lambda state: state | {KERNELS: torch.zeros(36, WIDTH)},
            {},
            r"kernels of widths \[3, 5\] and \[3, 9\] cannot",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(change, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        from_fairseq_seq2seq(change(translator()), 4, options=options)
