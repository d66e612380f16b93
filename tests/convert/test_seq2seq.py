import argparse

import pytest
import torch
from common import tokens
from common_convert import SOURCES, convert, make
from common_fairseq import WIDTH, fairseq_stack, load_reference, search_as_fairseq, translation_stacks
from safetensors.torch import save_file
from transformers import AutoModelForSeq2SeqLM

from sublayers.convert.seq2seq import from_fairseq_seq2seq
from sublayers.convert.weights import load_checkpoint, read_fairseq
from sublayers.training.commands.convert import main

SEARCHES = {
    "greedy": {"max_new_tokens": 10, "no_repeat_ngram_size": 2},
    "beams": {"max_new_tokens": 10, "num_beams": 3, "length_penalty": 0.7, "no_repeat_ngram_size": 2},
    "forced": {"max_new_tokens": 8, "num_beams": 2, "forced_bos_token_id": 7, "forced_eos_token_id": 2},
}


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", ["Bart", "Marian", "Marian of two vocabularies", "MBart", "Pegasus"])
def test_a_folder_continues_as_its_source(name, search, tmp_path, capsys):
    class_name, options = SOURCES[name]
    # with which rows differ
    options = SOURCES["Marian"][1] | options if "two" in name else options
    source = make(class_name, **options)
    if name.startswith(("Bart", "Marian")):
        source.final_logits_bias.normal_(std=0.1 if name == "Bart" else 0.3)
    source.generation_config.update(**SEARCHES[search])
    if name.startswith("Marian"):
        source.generation_config.bad_words_ids = [[1]]
    source.save_pretrained(tmp_path / "source")
    # sinusoids are not what the file says
    source = type(source).from_pretrained(tmp_path / "source")
    convert(tmp_path)
    assert "encoder sublayer order (sf)2, decoder sublayer order (scf)3" in capsys.readouterr().out
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert model.config.encoder_vocab_size == (67 if "two" in name else None)
    # transformers searches among as many tokens as the source has
    source.config.vocab_size = model.config.vocab_size
    padding, mask = source.config.pad_token_id, torch.ones(3, 9, dtype=torch.long)
    mask[1, 6:] = mask[2, :4] = 0
    ids = tokens(3, 9).masked_fill(mask == 0, padding)
    # one by one, since transformers' models count padding on the left as positions
    expected = [source.generate(row[None, real.bool()])[0].tolist() for row, real in zip(ids, mask, strict=True)]
    assert len({*map(tuple, expected)}) == 3, "the rows should differ, or the test shows little"
    assert expected[0][0] == source.config.decoder_start_token_id == model.config.decoder_start_token_id
    assert model.config.bos_token_id == (None if name == "Pegasus" else source.config.bos_token_id)
    found = model.generate(ids, attention_mask=mask).tolist()
    longest = max(map(len, expected))
    assert found == [row + [padding] * (longest - len(row)) for row in expected]


def run_reference(model, io, source="src_tokens", **options):
    """Scores of the target's real positions, and encoder states of the source's."""
    mask = io[source] != 1
    with torch.no_grad():
        out = model(io[source], attention_mask=mask.long(), decoder_input_ids=io["prev_output_tokens"], **options)
    return out.logits[io["target"] != 1], out.encoder_last_hidden_state[mask]


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


MACARON = pytest.mark.parametrize(
    ("name", "family", "orders"),
    [("macaron", "macaron_seq2seq", "(fsf)2 (fscf)2"), ("transformer", "sandwich_seq2seq", "(sf)2 (scf)2")],
)


@pytest.mark.parametrize("padded", ["left", "right"])
@MACARON
def test_macaron_and_its_baseline_score_as_the_authors_code_does(name, family, orders, padded):
    weights, io, meta = load_reference(f"macaron/mt_{name}_preln")
    model, _ = from_fairseq_seq2seq(weights, 4, options=meta["args"])
    assert model.config.model_type == family
    assert " ".join(map(str, model.config.orders.values())) == orders
    source, real = f"src_tokens_{padded}pad", io["target"] != 1
    logits, states = run_reference(model, io, source)
    assert_close(logits, io["logits"][real])
    assert_close(states, io[f"encoder_out_{padded}pad_TBC"].transpose(0, 1)[io[source] != 1])
    labels = io["target"].masked_fill(~real, -100)
    assert real.sum() == io["ntokens"]
    for smoothing, expected in ((0.0, io["nll_sum"]), (0.1, io["label_smoothed_loss_sum"])):
        model.config.label_smoothing = smoothing
        batch = {"input_ids": io[source], "attention_mask": (io[source] != 1).long(), "labels": labels}
        torch.testing.assert_close(model(**batch, num_items_in_batch=1).loss, expected[0], rtol=1e-5, atol=0)


@pytest.mark.parametrize("padded", ["left", "right"])
@MACARON
def test_finds_the_same_beams_as_fairseq(name, family, orders, padded):
    weights, io, meta = load_reference(f"macaron/mt_{name}_preln")
    model, _ = from_fairseq_seq2seq(weights, 4, options=meta["args"])
    source = io[f"src_tokens_{padded}pad"]
    inputs = {"input_ids": source, "attention_mask": (source != 1).long()}
    found = search_as_fairseq(model, 10, num_beams=4, length_penalty=0.6, **inputs)
    assert torch.equal(found.sequences[:, 1:], io["beam4_lenpen0.6_maxlen9.tokens"])
    assert_close(found.sequences_scores, io["beam4_lenpen0.6_maxlen9.score"])


@pytest.mark.parametrize(
    "name", ["baseline", "enc_sandwich_k1", "enc_sandwich_k2", "dec_sandwich_k1", "dec_sandwich_k2"]
)
def test_sandwiches_take_the_layers_of_the_baseline_in_turn(name):
    weights, io, meta = load_reference("sandwich/mt_preln")
    side = {"e": "encoder", "d": "decoder"}.get(name[0])
    orders = {f"{side}_sublayer_order": meta["patterns"][name]} if side else {}
    model, _ = from_fairseq_seq2seq(weights, 4, options=meta["args"], **orders)
    source = "src_tokens_rightpad"
    logits, states = run_reference(model, io, source)
    assert_close(logits, io[f"{name}.logits"][io["target"] != 1])
    expected = io["baseline.encoder_out_TBC" if side == "decoder" else f"{name}.encoder_out_TBC"]
    assert_close(states, expected.transpose(0, 1)[io[source] != 1])


def test_macarons_first_half_has_relu_and_other_orders_keep_both():
    state = translation_stacks(macaron=True)
    model, _ = from_fairseq_seq2seq(state, 4, options={"act_fn": "gelu"})
    assert (model.config.model_type, model.config.feed_forward_scale) == ("macaron_seq2seq", 0.5)
    assert (model.config.pre_attention_act, model.config.hidden_act) == ("relu", "gelu")
    assert [*map(str, model.config.orders.values())] == ["(fsf)2", "(fscf)2"]
    from_fairseq_seq2seq(state, 4, encoder_sublayer_order="f2(sf)2", decoder_sublayer_order="f2(scf)2")
    with pytest.raises(ValueError, match=r"the order '\(sf\)2' does not fit a checkpoint with 2 s, 4 f"):
        from_fairseq_seq2seq(state, 4, encoder_sublayer_order="(sf)2")


@pytest.mark.parametrize("place", ["args", "cfg", "dict"])
def test_what_a_checkpoint_tells_need_not_be_said(place, tmp_path):
    options = {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")}
    options |= {f"{side}_normalize_before": True for side in ("encoder", "decoder")}
    options |= {"dropout": 0.3, "attention_dropout": 0.2, "relu_dropout": 0.05, "label_smoothing": 0.1}
    options |= {"activation_fn": "gelu", "no_scale_embedding": True}
    namespace = argparse.Namespace(**options)
    found = {"args": namespace} if place == "args" else {"args": None, "cfg": {"model": namespace}}
    if place == "dict":
        found = {"cfg": {"model": options}}
    path = tmp_path / "checkpoint_best.pt"
    torch.save({"model": translation_stacks(learned=True)} | found, path)
    assert read_fairseq(load_checkpoint(path), path)[1] == options
    main([str(path), str(tmp_path / "ours")])
    config = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").config
    # a stack without a norm behind it may still be pre-norm
    assert (config.norm_position, config.final_norm, config.num_attention_heads) == ("pre", False, 4)
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.3, 0.2, 0.05)
    assert (config.hidden_act, config.scale_embedding, config.max_position_embeddings) == ("gelu", False, 32)


def test_the_weights_alone_need_their_heads(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file(translation_stacks(final_norm=True), path)
    with pytest.raises(ValueError, match="does not tell its number of heads; pass --num_attention_heads"):
        main([str(path), str(tmp_path / "ours")])
    main([str(path), str(tmp_path / "ours"), "--num_attention_heads", "8", "--encoder_sublayer_order", "fsfs"])
    config = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").config
    assert (config.num_attention_heads, config.encoder_sublayer_order) == (8, "(fs)2")
    with pytest.raises(ValueError, match="leave out --sublayer_order; this source takes --encoder_sublayer_order and"):
        main([str(path), str(tmp_path / "more"), "--num_attention_heads", "8", "--sublayer_order", "sf"])


def test_what_does_not_fit_is_one_sentence(tmp_path):
    state = translation_stacks(learned=True)
    with pytest.raises(ValueError, match=r"no place for \['encoder.embed_order'\] in an encoder-decoder"):
        from_fairseq_seq2seq(state | {"encoder.embed_order": torch.ones(1)}, 4)
    for name in ("decoder.layers.1.encoder_attn.k_proj.bias", "decoder.embed_positions.weight"):
        with pytest.raises(ValueError, match=f"the checkpoint has no .*{name}"):
            from_fairseq_seq2seq({key: tensor for key, tensor in state.items() if key != name}, 4)
    with pytest.raises(ValueError, match=r"the order 'scf' does not fit a checkpoint with 2 s, 2 c, 2 f"):
        from_fairseq_seq2seq(state, 4, decoder_sublayer_order="scf")
    for option in ("no_token_positional_embeddings", "layer_wise_attention", "cross_self_attention"):
        with pytest.raises(ValueError, match=f"fairseq's option {option}=True cannot be converted"):
            from_fairseq_seq2seq(state, 4, options={option: True})
    torch.save(state, tmp_path / "bare.pt")
    with pytest.raises(ValueError, match="has no 'model'"):
        main([str(tmp_path / "bare.pt"), str(tmp_path / "ours")])
    assert not (tmp_path / "ours").exists()


def translator(kernels="dd"):
    """Random weights of an encoder-decoder of gated convolutions."""
    options = {"conv_rows": 2 * WIDTH, "kernels": kernels}
    return fairseq_stack("encoder", **options) | fairseq_stack("decoder", crosses=True, **options)


def test_other_orders_take_the_same_convolutions():
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
def test_convolutions_that_do_not_fit_are_one_sentence(change, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        from_fairseq_seq2seq(change(translator()), 4, options=options)
