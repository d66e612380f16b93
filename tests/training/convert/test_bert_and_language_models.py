import argparse

import pytest
import torch
from common import randomize, tokens
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    BartForCausalLM,
    BartForQuestionAnswering,
    BartForSequenceClassification,
    BartModel,
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    BertModel,
    GPT2Config,
    GPT2DoubleHeadsModel,
    GPT2ForQuestionAnswering,
    GPT2ForTokenClassification,
    GPT2LMHeadModel,
    GPT2Model,
    LlamaConfig,
    LlamaForTokenClassification,
    LlamaModel,
    MarianConfig,
    MarianForCausalLM,
    T5Config,
)

from sublayers.training.commands.convert import main
from sublayers.training.convert.bert import from_macaron_bert
from sublayers.training.convert.language_models import from_fairseq_lm
from sublayers.training.convert.sources import FAMILIES
from sublayers.training.convert.weights import place
from sublayers.training.data.tokenizers import train_tokenizer


@pytest.fixture
def gpt2(tmp_path):
    config = GPT2Config(vocab_size=61, n_positions=64, n_embd=16, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=2)
    model = randomize(GPT2LMHeadModel(config))
    model.save_pretrained(tmp_path / "gpt2")
    return model


def fairseq_state(layers=2, size=8):
    state = {"decoder.version": torch.ones(1), "decoder.embed_tokens.weight": torch.randn(61, size)}
    shapes = {"fc1": (12, size), "fc2": (size, 12), "self_attn_layer_norm": (size,), "final_layer_norm": (size,)}
    shapes |= {f"self_attn.{name}_proj": (size, size) for name in ("q", "k", "v", "out")}
    for i in range(layers):
        for name, shape in shapes.items():
            state[f"decoder.layers.{i}.{name}.weight"] = torch.randn(shape)
            state[f"decoder.layers.{i}.{name}.bias"] = torch.randn(shape[0])
    return state


def test_a_gpt2_folder_becomes_a_folder_of_ours(gpt2, tmp_path, capsys):
    main([str(tmp_path / "gpt2"), str(tmp_path / "ours")])
    assert "(sf)2" in capsys.readouterr().out
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    torch.testing.assert_close(model(tokens(2, 9)).logits, gpt2(tokens(2, 9)).logits, atol=1e-5, rtol=0)


def test_another_order_takes_the_sublayers_of_each_kind_in_turn(gpt2, tmp_path):
    main([str(tmp_path / "gpt2"), str(tmp_path / "ours"), "--sublayer_order", "ssff"])
    layers = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").model.layers
    for i, block in enumerate(gpt2.transformer.h):
        assert torch.equal(layers[i].mixer.o_proj.weight, block.attn.c_proj.weight.T)
        assert torch.equal(layers[2 + i].mixer.fc2.weight, block.mlp.c_proj.weight.T)


def test_a_fairseq_checkpoint_needs_its_heads_and_nothing_else(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": fairseq_state(), "args": argparse.Namespace(arch="transformer_lm")}, path)
    with pytest.raises(ValueError, match="pass --num_attention_heads"):
        main([str(path), str(tmp_path / "ours")])
    main([str(path), str(tmp_path / "ours"), "--num_attention_heads=2"])
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "ours").config.num_sublayers == 4
    torch.save({"model": fairseq_state(), "args": argparse.Namespace(decoder_attention_heads=4)}, path)
    main([str(path), str(tmp_path / "told")])
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "told").config.num_attention_heads == 4


SIZES = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4}


@pytest.fixture
def bert(tmp_path):
    config = BertConfig(num_hidden_layers=3, max_position_embeddings=64, pad_token_id=1, **SIZES)
    model = randomize(BertForMaskedLM(config))
    model.save_pretrained(tmp_path / "bert")
    return model


def test_a_bert_folder_becomes_a_folder_of_ours_with_its_tokenizer(bert, tmp_path, capsys):
    tokenizer = train_tokenizer(["a few words of a text"], "wordpiece", 61)
    tokenizer.save_pretrained(tmp_path / "bert")
    main([str(tmp_path / "bert"), str(tmp_path / "ours")])
    printed = capsys.readouterr().out
    assert "(sf)3" in printed
    assert "random" not in printed
    assert "left out" not in printed
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "ours")
    assert type(model).__name__ == "PARBertForMaskedLM"
    torch.testing.assert_close(model(tokens(2, 9)).logits, bert(tokens(2, 9)).logits, atol=1e-5, rtol=0)
    text = "a text of words"
    assert AutoTokenizer.from_pretrained(tmp_path / "ours")(text).data == tokenizer(text).data


def test_a_bert_in_another_order_says_what_is_new_and_what_was_left(bert, tmp_path, capsys):
    main([str(tmp_path / "bert"), str(tmp_path / "ours"), "--sublayer_order", "sf5"])
    printed = capsys.readouterr().out
    assert "new, with random weights: model.layers.4.norm.weight, " in printed
    assert "left out, of sublayers that the order lacks: bert.encoder.layer.1.attention.self.query.weight, " in printed
    layers = AutoModelForMaskedLM.from_pretrained(tmp_path / "ours").model.layers
    for i, block in enumerate(bert.bert.encoder.layer, start=1):
        assert torch.equal(layers[i].mixer.fc2.weight, block.output.dense.weight)
    assert torch.equal(layers[0].mixer.q_proj.weight, bert.bert.encoder.layer[0].attention.self.query.weight)


GPT2 = {"vocab_size": 61, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 4}
SEQ2SEQ = {"vocab_size": 61, "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "max_position_embeddings": 32}
SEQ2SEQ |= {f"{side}_{name}": 4 for side in ("encoder", "decoder") for name in ("attention_heads", "ffn_dim")}


@pytest.mark.parametrize(
    "source",
    [
        GPT2ForQuestionAnswering(GPT2Config(**GPT2)),
        GPT2ForTokenClassification(GPT2Config(**GPT2)),
        GPT2DoubleHeadsModel(GPT2Config(**GPT2, num_labels=1)),
        LlamaForTokenClassification(LlamaConfig(**SIZES, num_hidden_layers=1)),
        BartForCausalLM(BartConfig(**SEQ2SEQ)),
        BartForQuestionAnswering(BartConfig(**SEQ2SEQ)),
        BartForSequenceClassification(BartConfig(**SEQ2SEQ)),
        MarianForCausalLM(MarianConfig(**SEQ2SEQ, pad_token_id=1)),
        BertLMHeadModel(BertConfig(num_hidden_layers=1, **SIZES)),
    ],
    ids=lambda source: type(source).__name__,
)
def test_heads_that_no_model_here_has_are_refused(source, tmp_path):
    source.save_pretrained(tmp_path / "source")
    with pytest.raises(ValueError, match=rf"{type(source).__name__}'?,? (which none here is like; .* can|cannot) be"):
        main([str(tmp_path / "source"), str(tmp_path / "ours")])
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("body", "auto_class"),
    [
        (GPT2Model(GPT2Config(**GPT2)), AutoModelForCausalLM),
        (LlamaModel(LlamaConfig(**SIZES, num_hidden_layers=2, tie_word_embeddings=True)), AutoModelForCausalLM),
        (BartModel(BartConfig(**SEQ2SEQ)), AutoModelForSeq2SeqLM),
    ],
    ids=["gpt2", "llama", "bart"],
)
@torch.no_grad()
def test_a_body_gets_the_head_that_is_tied_to_its_embeddings(body, auto_class, tmp_path):
    randomize(body).save_pretrained(tmp_path / "body")
    main([str(tmp_path / "body"), str(tmp_path / "ours"), "--verify"])
    inputs = {"input_ids": tokens(2, 9)}
    if body.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens(2, 7)
    logits = auto_class.from_pretrained(tmp_path / "ours")(**inputs).logits
    expected = body(**inputs).last_hidden_state @ body.get_input_embeddings().weight.T
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def test_folders_that_hold_no_encoder_are_refused(tmp_path):
    BertModel(BertConfig(num_hidden_layers=1, is_decoder=True, **SIZES)).save_pretrained(tmp_path / "decoder")
    with pytest.raises(ValueError, match=r"is_decoder=True .*; only BertModel with is_decoder=False can"):
        main([str(tmp_path / "decoder"), str(tmp_path / "ours")])
    relative = BertConfig(num_hidden_layers=1, position_embedding_type="relative_key", **SIZES)
    BertModel(relative).save_pretrained(tmp_path / "relative")
    with pytest.raises(ValueError, match="position_embedding_type='relative_key' cannot be converted; only BertModel"):
        main([str(tmp_path / "relative"), str(tmp_path / "ours")])
    T5Config().save_pretrained(tmp_path / "t5")
    with pytest.raises(ValueError, match=r"holds 't5'; of transformers' models, .*bart, .*bert, .*transfo-xl can be"):
        main([str(tmp_path / "t5"), str(tmp_path / "ours")])
    assert not (tmp_path / "ours").exists()


def test_the_help_names_all_models_that_folders_can_hold(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "999")
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out.lower().replace("-", "")
    assert [name for name in FAMILIES if name.replace("-", "") not in printed] == []


def macaron_state(layers=2, size=8):
    shapes = {"self_attn.out_proj": (size, size)}
    shapes |= {f"{half}{i}": ((12, size), (size, 12))[i - 1] for half in ("fc", "macaron_fc") for i in (1, 2)}
    shapes = {f"encoder.layers.{i}.{name}": shape for i in range(layers) for name, shape in shapes.items()}
    shapes |= {"mid_layer.0": (size, size), "mid_layer.2": (size,), "classifier": (1, size)}
    state = {f"{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    state |= {f"{name}.bias": torch.randn(shape[0]) for name, shape in shapes.items()}
    for i in range(layers):
        state[f"encoder.layers.{i}.self_attn.in_proj_weight"] = torch.randn(3 * size, size)
        state[f"encoder.layers.{i}.self_attn.in_proj_bias"] = torch.randn(3 * size)
    state |= {
        "encoder.embed_tokens.weight": torch.randn(61, size),
        "encoder.embed_segment.weight": torch.randn(2, size),
    }
    return state | {"embed_out": state["encoder.embed_tokens.weight"].clone(), "encoder.version": torch.ones(1)}


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


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return open, (str(tmp_path / "sprung"), "w")

    path = tmp_path / "trap.pt"
    torch.save({"model": fairseq_state(), "extra_state": Trap()}, path)
    with pytest.raises(ValueError, match="it is not read"):
        main([str(path), str(tmp_path / "ours"), "--num_attention_heads=2"])
    assert not (tmp_path / "sprung").exists()
    assert not (tmp_path / "ours").exists()


def test_what_does_not_fit_is_one_sentence(gpt2, tmp_path):
    state = fairseq_state()
    with pytest.raises(ValueError, match="the order 'sf2' does not fit a checkpoint with 2 s, 2 f"):
        from_fairseq_lm(state, 2, sublayer_order="sff")
    with pytest.raises(ValueError, match="the order 'sd' does not fit a checkpoint with 1 s"):
        place("sd", {"s": [{"norm.weight": torch.ones(1)}]})
    with pytest.raises(ValueError, match=r"no place for \['decoder.project_in_dim.weight'\]"):
        from_fairseq_lm(state | {"decoder.project_in_dim.weight": torch.ones(1)}, 2)
    del state["decoder.layers.1.fc1.bias"]
    with pytest.raises(ValueError, match=r"has no \['decoder.layers.1.fc1.bias'\]"):
        from_fairseq_lm(state, 2)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").touch()
    with pytest.raises(FileExistsError, match="full is not empty; choose another folder"):
        main([str(tmp_path / "gpt2"), str(tmp_path / "full")])


def test_a_tensor_that_is_missing_is_one_sentence():
    state = macaron_state()
    del state["encoder.layers.1.self_attn.in_proj_weight"]
    with pytest.raises(
        ValueError, match=r"has no \['encoder.layers.1.self_attn.q_proj.weight'\]; is it of another kind"
    ):
        from_macaron_bert(state, 4)
    state = fairseq_state()
    del state["decoder.embed_tokens.weight"]
    with pytest.raises(ValueError, match=r"has no decoder.embed_tokens.weight; is it of another kind"):
        from_fairseq_lm(state, 2)
