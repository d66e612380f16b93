import argparse

import pytest
import torch
from common import tokens
from common_convert import convert, make
from common_fairseq import WIDTH, fairseq_stack, linear, norm
from safetensors.torch import save_file
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForPreTraining, AutoModelForSeq2SeqLM

from sublayers.convert.bert import from_macaron_bert
from sublayers.convert.language_models import from_fairseq_lm
from sublayers.convert.sources import FAMILIES
from sublayers.convert.weights import place
from sublayers.training.commands.convert import main


def test_a_fairseq_checkpoint_needs_its_heads_and_nothing_else(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": fairseq_stack("decoder"), "args": argparse.Namespace(arch="transformer_lm")}, path)
    with pytest.raises(ValueError, match="pass --num_attention_heads"):
        main([str(path), str(tmp_path / "ours")])
    main([str(path), str(tmp_path / "ours"), "--num_attention_heads=2"])
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "ours").config.num_sublayers == 4
    torch.save({"model": fairseq_stack("decoder"), "args": argparse.Namespace(decoder_attention_heads=4)}, path)
    main([str(path), str(tmp_path / "told")])
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "told").config.num_attention_heads == 4


@pytest.mark.parametrize("name", ["GPT2Model", "LlamaModel", "BartModel", "MBartModel", "PegasusModel"])
@torch.no_grad()
def test_a_body_gets_the_head_that_is_tied_to_its_embeddings(name, tmp_path):
    make(name, tie_word_embeddings=True).save_pretrained(tmp_path / "source")
    body = AutoModel.from_pretrained(tmp_path / "source")
    convert(tmp_path, "--verify")
    inputs, auto_class = {"input_ids": tokens(2, 9)}, AutoModelForCausalLM
    if body.config.is_encoder_decoder:
        inputs["decoder_input_ids"], auto_class = tokens(2, 7), AutoModelForSeq2SeqLM
    logits = auto_class.from_pretrained(tmp_path / "ours")(**inputs).logits
    expected = body(**inputs).last_hidden_state @ body.get_input_embeddings().weight.T
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def test_the_help_names_all_models_that_folders_can_hold(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "999")
    with pytest.raises(SystemExit):
        main(["--help"])
    printed, marks = capsys.readouterr().out.lower(), str.maketrans("", "", "-_ \n")
    assert [name for name in FAMILIES if name.translate(marks) not in printed.translate(marks)] == []


def macaron_state():
    state = fairseq_stack("encoder", macaron=True, norm_affine=False) | linear("classifier", 1, WIDTH)
    state |= linear("mid_layer.0", WIDTH, WIDTH) | norm("mid_layer.2")
    state["encoder.embed_segment.weight"] = torch.randn(2, WIDTH)
    return state | {"embed_out": state["encoder.embed_tokens.weight"].clone()}


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_a_macaron_file_becomes_a_folder_in_its_own_order(suffix, tmp_path):
    state, path = macaron_state(), tmp_path / f"checkpoint.{suffix}"
    if suffix == "pt":
        torch.save({"model": state, "args": argparse.Namespace(arch="transformer_bert_base_macaron")}, path)
    else:
        save_file(state, path)
    flags = [str(path), str(tmp_path / "ours"), "--num_attention_heads", "4"]
    with pytest.raises(ValueError, match="leave out --sublayer_order"):
        main([*flags, "--sublayer_order", "fsf"])
    main(flags)
    model = AutoModelForPreTraining.from_pretrained(tmp_path / "ours")
    assert (model.config.model_type, model.config.sublayer_order) == ("macaron_bert", "(fsf)2")
    expected = from_macaron_bert(state, 4)[0](tokens(2, 9))
    assert torch.equal(model(tokens(2, 9)).prediction_logits, expected.prediction_logits)
    assert torch.equal(model.model.layers[3].mixer.fc1.weight, state["encoder.layers.1.macaron_fc1.weight"])


def test_what_does_not_fit_is_one_sentence(tmp_path):
    state = fairseq_stack("decoder")
    with pytest.raises(ValueError, match="the order 'sf2' does not fit a checkpoint with 2 s, 2 f"):
        from_fairseq_lm(state, 2, sublayer_order="sff")
    with pytest.raises(ValueError, match="the order 'sd' does not fit a checkpoint with 1 s"):
        place("sd", {"s": [{"norm.weight": torch.ones(1)}]})
    with pytest.raises(ValueError, match=r"no place for \['decoder.project_in_dim.weight'\]"):
        from_fairseq_lm(state | {"decoder.project_in_dim.weight": torch.ones(1)}, 2)
    for missing in ("decoder.layers.1.fc1.bias", "decoder.embed_tokens.weight"):
        with pytest.raises(ValueError, match=rf"has no \W*{missing}.*; is it of another kind"):
            from_fairseq_lm({name: tensor for name, tensor in state.items() if name != missing}, 2)
    macaron = macaron_state()
    del macaron["encoder.layers.1.self_attn.in_proj_weight"]
    with pytest.raises(ValueError, match=r"has no \['encoder.layers.1.self_attn.q_proj.weight'\]; is it of another"):
        from_macaron_bert(macaron, 4)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").touch()
    with pytest.raises(FileExistsError, match="full is not empty; choose another folder"):
        main([str(tmp_path), str(tmp_path / "full")])
