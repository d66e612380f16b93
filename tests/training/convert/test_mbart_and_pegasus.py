import json

import pytest
import torch
from common import gradients, randomize, tokens
from common_convert import assert_complete
from transformers import (
    AutoModelForSeq2SeqLM,
    MBartConfig,
    MBartForCausalLM,
    MBartForConditionalGeneration,
    MBartForQuestionAnswering,
    MBartForSequenceClassification,
    MBartModel,
    PegasusConfig,
    PegasusForCausalLM,
    PegasusForConditionalGeneration,
    PegasusModel,
)

from sublayers.training.commands.convert import main
from sublayers.training.convert.seq2seq import from_bart

SIZES = {"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "encoder_layers": 2, "decoder_layers": 3}
SIZES |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 32, "vocab_size": 61}
# mBART's targets begin with their language
SOURCES = {
    "mbart": (MBartForConditionalGeneration, MBartConfig, {"scale_embedding": True, "decoder_start_token_id": 60}),
    "pegasus": (PegasusForConditionalGeneration, PegasusConfig, {"activation_function": "relu"}),
}
SEARCHES = {
    "greedy": {"max_new_tokens": 10, "no_repeat_ngram_size": 2},
    "beams": {"max_new_tokens": 10, "num_beams": 3, "length_penalty": 0.7, "no_repeat_ngram_size": 2},
    "forced": {"max_new_tokens": 8, "num_beams": 2, "forced_bos_token_id": 7, "forced_eos_token_id": 2},
}
every_source = pytest.mark.parametrize("name", SOURCES)


def build(name, **overrides):
    model_class, config_class, options = SOURCES[name]
    return randomize(model_class(config_class(**SIZES | options | overrides)))


def rows(source):
    """Sources without padding, with padding on the right and on the left."""
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[1, 6:] = mask[2, :4] = 0
    return {"input_ids": tokens(3, 9).masked_fill(mask == 0, source.config.pad_token_id), "attention_mask": mask}


def alone(inputs):
    """The same one by one, since transformers' models count padding on the left as positions."""
    return [inputs["input_ids"][i : i + 1, mask.bool()] for i, mask in enumerate(inputs["attention_mask"])]


@pytest.mark.parametrize("overrides", [{}, {"scale_embedding": False, "tie_word_embeddings": False}])
@every_source
@torch.no_grad()
def test_outputs_and_hidden_states_are_the_sources(name, overrides):
    source = build(name, **overrides)
    source.final_logits_bias.normal_()
    model, _ = from_bart(source)
    assert model.config.orders == {"encoder_sublayer_order": "(sf)2", "decoder_sublayer_order": "(scf)3"}
    inputs, targets = rows(source), tokens(3, 7)
    found = model(**inputs, decoder_input_ids=targets, output_hidden_states=True)
    for i, ids in enumerate(alone(inputs)):
        expected = source(ids, decoder_input_ids=targets[i : i + 1], output_hidden_states=True)
        real = inputs["attention_mask"][i].bool()
        torch.testing.assert_close(found.logits[i], expected.logits[0], atol=1e-5, rtol=0)
        for side, step in (("encoder", 2), ("decoder", 3)):
            states, theirs = found[f"{side}_hidden_states"], expected[f"{side}_hidden_states"]
            for ours, their in zip(states[::step], theirs, strict=True):
                ours = ours[i][real] if side == "encoder" else ours[i]
                torch.testing.assert_close(ours, their[0], atol=1e-5, rtol=0)


@every_source
def test_gradients_are_the_sources(name):
    source = build(name)
    model, pieces = from_bart(source)
    config = model.config
    assert (config.bos_token_id, config.decoder_start_token_id) == ((0, 60) if name == "mbart" else (None, 0))
    labels = tokens(2, 6)
    # mBART takes the start of a target from the end of its labels, where the language stands
    labels[:, -1] = 60
    losses = [m(tokens(2, 9), labels=labels).loss for m in (model, source)]
    torch.testing.assert_close(*losses, atol=1e-5, rtol=0)
    for loss in losses:
        loss.backward()
    for ours, gradient in gradients(model).items():
        found = [source.get_parameter(theirs).grad for theirs in pieces[ours].names]
        expected = next((grad for grad in found if grad is not None), None)
        if expected is None:
            # sinusoids, which are learned here
            assert name == "pegasus"
            assert "embed_positions" in ours
        else:
            if name == "pegasus" and "embed_tokens" in ours:
                # transformers does not train the padding that starts its targets
                gradient, expected = gradient[1:], expected[1:]
            torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-4, msg=lambda m, n=ours: f"{n}: {m}")


@pytest.mark.parametrize("search", SEARCHES)
@every_source
def test_a_folder_continues_as_its_source(name, search, tmp_path):
    source = build(name)
    source.generation_config.update(**SEARCHES[search])
    source.save_pretrained(tmp_path / "source")
    # sinusoids are not what the file says
    source = type(source).from_pretrained(tmp_path / "source")
    convert(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    inputs = rows(source)
    expected = [source.generate(ids)[0].tolist() for ids in alone(inputs)]
    assert len({*map(tuple, expected)}) == 3, "the rows should differ, or the test shows little"
    assert expected[0][0] == (60 if name == "mbart" else 0)
    found = model.generate(**inputs).tolist()
    padding = source.config.pad_token_id
    longest = max(map(len, expected))
    assert found == [row + [padding] * (longest - len(row)) for row in expected]


def convert(folder, *flags):
    """Run the command on `source` and return its report."""
    main([str(folder / "source"), str(folder / "ours"), "--report", str(folder / "report.json"), *flags])
    return json.loads((folder / "report.json").read_text())


@pytest.mark.parametrize("overrides", [{}, {"tie_word_embeddings": False}])
@every_source
def test_folders_are_verified_and_accounted_for(name, overrides, tmp_path, capsys):
    build(name, **overrides).save_pretrained(tmp_path / "source")
    source = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "source")
    report = convert(tmp_path, "--verify")
    assert "verified: the outputs differ by at most" in capsys.readouterr().out
    assert report["new"] == []
    # untied, neither side reads it
    unread = {"model.shared.weight": "without a place in the model"} if overrides else {}
    assert report["left_out"] == unread | {"final_logits_bias": "all zero"}
    assert_complete(report, source.state_dict(), tmp_path / "ours")


@pytest.mark.parametrize(("name", "body"), [("mbart", MBartModel), ("pegasus", PegasusModel)])
@torch.no_grad()
def test_a_body_gets_the_head_that_is_tied_to_its_embeddings(name, body, tmp_path):
    randomize(body(build(name).config)).save_pretrained(tmp_path / "source")
    source = body.from_pretrained(tmp_path / "source")
    convert(tmp_path, "--verify")
    inputs = {"input_ids": tokens(2, 9), "decoder_input_ids": tokens(2, 7)}
    logits = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")(**inputs).logits
    expected = source(**inputs).last_hidden_state @ source.get_input_embeddings().weight.T
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def test_another_order_takes_the_sublayers_in_turn(tmp_path):
    source = build("pegasus")
    source.save_pretrained(tmp_path / "source")
    convert(tmp_path, "--encoder_sublayer_order=s2f2", "--decoder_sublayer_order=(sc)3f3")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").model
    for i, block in enumerate(source.model.encoder.layers):
        assert torch.equal(model.encoder.layers[2 + i].norm.bias, block.final_layer_norm.bias)
    for i, block in enumerate(source.model.decoder.layers):
        assert torch.equal(model.decoder.layers[2 * i + 1].mixer.o_proj.weight, block.encoder_attn.out_proj.weight)


@pytest.mark.parametrize(
    "head",
    [MBartForCausalLM, MBartForQuestionAnswering, MBartForSequenceClassification, PegasusForCausalLM],
    ids=lambda head: head.__name__,
)
def test_heads_that_no_model_here_has_are_refused(head, tmp_path):
    name = "mbart" if head.__name__.startswith("MBart") else "pegasus"
    head(build(name).config).save_pretrained(tmp_path / "source")
    sentence = (
        f"'{head.__name__}', which none here is like; {SOURCES[name][0].__name__.split('For')[0]}Model, .* can be"
    )
    with pytest.raises(ValueError, match=sentence):
        convert(tmp_path)
    assert not (tmp_path / "ours").exists()


@every_source
def test_sides_that_differ_are_refused(name):
    with pytest.raises(ValueError, match=r"feed-forward sublayers of widths \[20, 24\] cannot be converted"):
        from_bart(build(name, decoder_ffn_dim=20))
    with pytest.raises(ValueError, match="'decoder_attention_heads': 2} cannot be converted"):
        from_bart(build(name, decoder_attention_heads=2))
