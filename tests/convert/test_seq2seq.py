import argparse
import functools
import json
import math
import sys
import types
from collections import OrderedDict

import pytest
import torch
from common import REFERENCE, tokens
from common_convert import convert, make
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from sublayers.convert.seq2seq import from_bart, from_fairseq_seq2seq
from sublayers.convert.weights import load_checkpoint, read_fairseq
from sublayers.training.commands.convert import main

SEARCHES = {
    "greedy": {"max_new_tokens": 10, "no_repeat_ngram_size": 2},
    "beams": {"max_new_tokens": 10, "num_beams": 3, "length_penalty": 0.7, "no_repeat_ngram_size": 2},
    "forced": {"max_new_tokens": 8, "num_beams": 2, "forced_bos_token_id": 7, "forced_eos_token_id": 2},
}


def bart(**options):
    return make("BartForConditionalGeneration", **options)


def marian(**options):
    return make("MarianMTModel", **{"activation_function": "swish", "scale_embedding": True} | options)


def mbart(**options):
    return make("MBartForConditionalGeneration", **options)


SOURCES = {
    "bart": bart,
    "marian": marian,
    "marian of two vocabularies": functools.partial(
        marian, share_encoder_decoder_embeddings=False, vocab_size=67, decoder_vocab_size=61
    ),
    # its targets begin with their language
    "mbart": functools.partial(mbart, scale_embedding=True, decoder_start_token_id=60),
    "pegasus": functools.partial(make, "PegasusForConditionalGeneration", activation_function="relu"),
}


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", SOURCES)
def test_a_folder_continues_as_its_source(name, search, tmp_path, capsys):
    source = SOURCES[name]()
    if name.startswith(("bart", "marian")):
        source.final_logits_bias.normal_(std=0.1 if name == "bart" else 0.3)
    source.generation_config.update(**SEARCHES[search])
    if name.startswith("marian"):
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
    assert expected[0][0] == source.config.decoder_start_token_id
    found = model.generate(ids, attention_mask=mask).tolist()
    longest = max(map(len, expected))
    assert found == [row + [padding] * (longest - len(row)) for row in expected]


@pytest.mark.parametrize("name", ["mbart", "pegasus"])
def test_targets_begin_as_the_sources(name):
    config = from_bart(SOURCES[name]())[0].config
    assert (config.bos_token_id, config.decoder_start_token_id) == ((0, 60) if name == "mbart" else (None, 0))


def batch():
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[1, 5:] = 0
    return {"input_ids": tokens(3, 9), "attention_mask": mask}


def assert_same_scores(model, source):
    targets = tokens(3, 7)
    with torch.no_grad():
        actual = model(**batch(), decoder_input_ids=targets).logits
        expected = source(**batch(), decoder_input_ids=targets).logits
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


def load_reference(name):
    io = load_file(REFERENCE / f"{name}.io.safetensors")
    meta = json.loads((REFERENCE / f"{name}.json").read_text())
    return load_file(REFERENCE / f"{name}.weights.safetensors"), io, meta


def run_reference(model, io, source="src_tokens"):
    """Scores of the target's real positions, and encoder states of the source's."""
    mask = io[source] != 1
    with torch.no_grad():
        out = model(io[source], attention_mask=mask.long(), decoder_input_ids=io["prev_output_tokens"])
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

    def allowed(row, ids):
        # fairseq never says padding, and after 9 tokens says the end for what it costs; forced_eos_token_id is for free
        return [2] if len(ids) == 10 else [0, *range(2, 33)]

    found = model.generate(
        source,
        attention_mask=(source != 1).long(),
        num_beams=4,
        length_penalty=0.6,
        early_stopping=True,
        # fairseq's min_len
        min_new_tokens=1,
        max_new_tokens=10,
        prefix_allowed_tokens_fn=allowed,
        return_dict_in_generate=True,
        output_scores=True,
    )
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


@pytest.mark.parametrize("encoder", range(2))
@pytest.mark.parametrize("decoder", range(6))
def test_all_orders_of_a_post_norm_layer_score_as_iot_does(encoder, decoder):
    weights, io, _ = load_reference("iot/orders_postln")
    # what chooses an order is no part of the Transformer
    del weights["encoder.embed_order"]
    unit = ["scf", "fsc", "cfs", "csf", "sfc", "fcs"][decoder]
    orders = {"encoder_sublayer_order": f"({['sf', 'fs'][encoder]})2", "decoder_sublayer_order": f"({unit})2"}
    model, _ = from_fairseq_seq2seq(weights, 4, **orders)
    logits, _ = run_reference(model, io)
    assert_close(logits, io[f"logits.enc{encoder}.dec{decoder}"][io["target"] != 1])


def fairseq_names(source, version, offset=2):
    """The weights of a transformers model as fairseq 0.6 or 0.12 would have saved them."""
    state = {name.removeprefix("model."): tensor for name, tensor in source.state_dict().items()}
    for name in ("shared.weight", "final_logits_bias"):
        state.pop(name, None)
    output = state.pop("lm_head.weight")
    for side in ("encoder", "decoder"):
        positions = state[f"{side}.embed_positions.weight"]
        state[f"{side}.embed_positions.weight"] = torch.cat([positions.new_zeros(2 - offset, 16), positions])
        state[f"{side}.version"] = torch.ones(1)
    if version == 12:
        return state | {"decoder.output_projection.weight": output}
    if not torch.equal(output, state["decoder.embed_tokens.weight"]):
        state["decoder.embed_out"] = output
    for name in [name for name in state if ".q_proj." in name]:
        parts = [state.pop(name.replace(".q_proj.", f".{letter}_proj.")) for letter in "qkv"]
        state[name.replace(".q_proj.", ".in_proj_")] = torch.cat(parts)
    for i in range(2):
        for kind in ("weight", "bias"):
            for number, norm in enumerate(("self_attn", "final")):
                tensor = state.pop(f"encoder.layers.{i}.{norm}_layer_norm.{kind}")
                state[f"encoder.layers.{i}.layer_norms.{number}.{kind}"] = tensor
    return state


def fairseq_options(config, **more):
    names = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "dropout": 0.3}
    return names | {"activation_fn": "gelu", "no_scale_embedding": not config.scale_embedding} | more


@pytest.mark.parametrize("version", [6, 12])
@pytest.mark.parametrize(
    "source",
    [
        bart(),
        bart(tie_word_embeddings=False, scale_embedding=True),
        # pre-norm, with a norm behind each stack
        mbart(),
        mbart(tie_word_embeddings=False),
    ],
)
def test_fairseq_layouts_score_as_transformers_does(source, version):
    options = fairseq_options(source.config)
    model, _ = from_fairseq_seq2seq(fairseq_names(source, version), 4, options=options)
    assert model.config.norm_position == ("pre" if "mbart" in source.config.model_type else "post")
    assert_same_scores(model, source)


@pytest.mark.parametrize("version", [6, 12])
def test_source_and_target_may_have_vocabularies_of_their_own(version):
    source = marian(share_encoder_decoder_embeddings=False, vocab_size=67, decoder_vocab_size=61)
    options = fairseq_options(source.config, activation_fn="swish")
    model, _ = from_fairseq_seq2seq(fairseq_names(source, version, offset=0), 4, options=options)
    config = model.config
    assert (config.encoder_vocab_size, config.vocab_size, config.tie_word_embeddings) == (67, 61, True)
    assert not config.share_encoder_decoder_embeddings
    assert_same_scores(model, source)
    # other embeddings of one size are other embeddings, too
    source = marian(share_encoder_decoder_embeddings=False)
    model, _ = from_fairseq_seq2seq(fairseq_names(source, version, offset=0), 4, options=options)
    assert (model.config.encoder_vocab_size, model.config.share_encoder_decoder_embeddings) == (None, False)
    assert_same_scores(model, source)


def test_without_learned_positions_they_are_fairseqs_sinusoids():
    source = bart(activation_function="relu", scale_embedding=True)
    for side in (source.model.encoder, source.model.decoder):
        for row, position in enumerate(side.embed_positions.weight.data):
            angles = [row * 10000 ** (-i / 7) for i in range(8)]
            position.copy_(torch.tensor([*map(math.sin, angles), *map(math.cos, angles)]))
    state = fairseq_names(source, 12)
    for side in ("encoder", "decoder"):
        del state[f"{side}.embed_positions.weight"]
        state[f"{side}.embed_positions._float_tensor"] = torch.ones(1)
    model, _ = from_fairseq_seq2seq(state, 4)
    assert model.config.max_position_embeddings == 1024
    assert_same_scores(model, source)


def test_macaron_halves_stand_where_they_run():
    state = fairseq_names(marian(), 6, offset=0)
    for side, layers in (("encoder", 2), ("decoder", 3)):
        for i in range(layers):
            norm = "layer_norms.2" if side == "encoder" else "macaron_layer_norm"
            for name, shape in (("macaron_fc1", (24, 16)), ("macaron_fc2", (16, 24)), (norm, (16,))):
                state[f"{side}.layers.{i}.{name}.weight"] = torch.randn(shape)
                state[f"{side}.layers.{i}.{name}.bias"] = torch.randn(shape[0])
    model, _ = from_fairseq_seq2seq(state, 4, options={"act_fn": "gelu"})
    assert (model.config.model_type, model.config.feed_forward_scale) == ("macaron_seq2seq", 0.5)
    assert (model.config.pre_attention_act, model.config.hidden_act) == ("relu", "gelu")
    assert [*map(str, model.config.orders.values())] == ["(fsf)2", "(fscf)3"]
    encoder, decoder = model.model.encoder.layers, model.model.decoder.layers
    for i in range(2):
        for place, fc, norm in ((3 * i, "macaron_fc1", "layer_norms.2"), (3 * i + 2, "fc1", "layer_norms.1")):
            assert torch.equal(encoder[place].mixer.fc1.weight, state[f"encoder.layers.{i}.{fc}.weight"])
            assert torch.equal(encoder[place].norm.bias, state[f"encoder.layers.{i}.{norm}.bias"])
    for i in range(3):
        names = (4 * i, "macaron_fc2", "macaron_layer_norm"), (4 * i + 3, "fc2", "final_layer_norm")
        for place, fc, norm in names:
            assert torch.equal(decoder[place].mixer.fc2.weight, state[f"decoder.layers.{i}.{fc}.weight"])
            assert torch.equal(decoder[place].norm.weight, state[f"decoder.layers.{i}.{norm}.weight"])
    from_fairseq_seq2seq(state, 4, encoder_sublayer_order="f2(sf)2", decoder_sublayer_order="f3(scf)3")
    with pytest.raises(ValueError, match=r"the order '\(sf\)2' does not fit a checkpoint with 2 s, 4 f"):
        from_fairseq_seq2seq(state, 4, encoder_sublayer_order="(sf)2")


@pytest.mark.parametrize("place", ["args", "cfg", "dict"])
def test_what_a_checkpoint_tells_need_not_be_said(place, tmp_path, monkeypatch):
    source = bart()
    options = fairseq_options(source.config, encoder_normalize_before=True, decoder_normalize_before=True)
    options |= {"attention_dropout": 0.2, "relu_dropout": 0.05, "label_smoothing": 0.1}
    namespace = argparse.Namespace(**options)
    found = {"args": namespace} if place == "args" else {"args": None, "cfg": {"model": namespace}}
    if place == "dict":
        found = {"cfg": {"model": options}}
    # up to 0.8, the state of training holds objects
    meter, module = type("TimeMeter", (), {"__module__": "fairseq.meters"}), types.ModuleType("fairseq.meters")
    module.TimeMeter, extra = meter, {"train_meters": OrderedDict(ups=meter())}
    extra["train_meters"]["ups"].n = 3
    state, path = fairseq_names(source, 6), tmp_path / "checkpoint_best.pt"
    with monkeypatch.context() as patch:
        for name in ("fairseq", "fairseq.meters"):
            patch.setitem(sys.modules, name, module)
        torch.save({"model": state, "extra_state": extra} | found, path)
    assert read_fairseq(load_checkpoint(path), path)[1] == options
    main([str(path), str(tmp_path / "ours")])
    config = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").config
    # a stack without a norm behind it may still be pre-norm
    assert (config.norm_position, config.final_norm, config.num_attention_heads) == ("pre", False, 4)
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.3, 0.2, 0.05)
    assert (config.hidden_act, config.scale_embedding, config.max_position_embeddings) == ("gelu", False, 32)


def test_the_weights_alone_need_their_heads(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({name: tensor.clone() for name, tensor in fairseq_names(mbart(), 12).items()}, path)
    with pytest.raises(ValueError, match="does not tell its number of heads; pass --num_attention_heads"):
        main([str(path), str(tmp_path / "ours")])
    main([str(path), str(tmp_path / "ours"), "--num_attention_heads", "8", "--encoder_sublayer_order", "fsfs"])
    config = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").config
    assert (config.num_attention_heads, config.encoder_sublayer_order) == (8, "(fs)2")
    with pytest.raises(ValueError, match="leave out --sublayer_order; this source takes --encoder_sublayer_order and"):
        main([str(path), str(tmp_path / "more"), "--num_attention_heads", "8", "--sublayer_order", "sf"])


def test_what_does_not_fit_is_one_sentence(tmp_path):
    state = fairseq_names(bart(), 12)
    with pytest.raises(ValueError, match=r"no place for \['encoder.embed_order'\] in an encoder-decoder"):
        from_fairseq_seq2seq(state | {"encoder.embed_order": torch.ones(1)}, 4)
    for name in ("decoder.layers.1.encoder_attn.k_proj.bias", "decoder.embed_positions.weight"):
        with pytest.raises(ValueError, match=f"the checkpoint has no .*{name}"):
            from_fairseq_seq2seq({key: tensor for key, tensor in state.items() if key != name}, 4)
    with pytest.raises(ValueError, match=r"the order 'scf' does not fit a checkpoint with 3 s, 3 c, 3 f"):
        from_fairseq_seq2seq(state, 4, decoder_sublayer_order="scf")
    for option in ("no_token_positional_embeddings", "layer_wise_attention", "cross_self_attention"):
        with pytest.raises(ValueError, match=f"fairseq's option {option}=True cannot be converted"):
            from_fairseq_seq2seq(state, 4, options={option: True})
    torch.save(state, tmp_path / "bare.pt")
    with pytest.raises(ValueError, match="has no 'model'"):
        main([str(tmp_path / "bare.pt"), str(tmp_path / "ours")])
    assert not (tmp_path / "ours").exists()
