"""What is wrong with a source is said in one sentence, whichever it is."""

import argparse
import json
import re

import common_convert
import pytest
import torch
import transformers
from common import REFERENCE, tokens
from common_convert import edit, make
from common_transformer_xl import authors_names, authors_settings, transformer_xl
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

WINDOWS = {"num_key_value_heads": 2, "sliding_window": 4}


@pytest.fixture
def source(tmp_path):
    """Save a model of random weights, with other settings and weights in the files: function(class, ...) -> model."""

    def save(name, settings=None, weights=lambda found: None, **options):
        model = make(name, **options)
        model.save_pretrained(tmp_path / "source")
        edit(tmp_path / "source" / "config.json", **settings or {})
        found = load_file(tmp_path / "source" / "model.safetensors")
        weights(found)
        save_file(found, tmp_path / "source" / "model.safetensors", {"format": "pt"})
        return model

    return save


@pytest.fixture
def convert(tmp_path):
    """Run the command on the source, and return the model's folder."""

    def convert_it(*flags):
        common_convert.convert(tmp_path, *flags)
        return tmp_path / "ours"

    return convert_it


@pytest.fixture
def refuse(convert, tmp_path):
    """See the command end with one sentence, and nothing written."""

    def refuse_it(sentence, *flags):
        with pytest.raises(ValueError, match=re.escape(sentence)) as error:
            convert(*flags)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "ours").exists()

    return refuse_it


TIED = {
    "LlamaForCausalLM": ("lm_head", "model.embed_tokens"),
    "GPT2LMHeadModel": ("lm_head", "transformer.wte"),
    "BertForMaskedLM": ("cls.predictions.decoder", "bert.embeddings.word_embeddings"),
    "RobertaForMaskedLM": ("lm_head.decoder", "roberta.embeddings.word_embeddings"),
    "ElectraForMaskedLM": ("generator_lm_head", "electra.embeddings.word_embeddings"),
    "DistilBertForMaskedLM": ("vocab_projector", "distilbert.embeddings.word_embeddings"),
    "ModernBertForMaskedLM": ("decoder", "model.embeddings.tok_embeddings"),
}


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("name", TIED)
@torch.no_grad()
def test_a_file_with_a_head_of_its_own_is_read_as_transformers_does_whatever_its_settings_say(
    name, same, source, convert, tmp_path
):
    head, embeddings = (f"{name}.weight" for name in TIED[name])
    source(
        name,
        tie_word_embeddings=True,
        weights=lambda found: found.update({head: found[embeddings] + (0 if same else 1)}),
    )
    theirs = getattr(transformers, name).from_pretrained(tmp_path / "source")
    auto_class = AutoModelForMaskedLM if "Masked" in name else AutoModelForCausalLM
    ours = auto_class.from_pretrained(convert("--verify"))
    assert ours.config.tie_word_embeddings is same
    torch.testing.assert_close(ours(tokens(2, 9)).logits, theirs(tokens(2, 9)).logits, atol=1e-5, rtol=1e-5)


MISSING = {
    "LlamaForCausalLM": "model.layers.1.mlp.up_proj.weight",
    "LlamaForSequenceClassification": "score.weight",
    "GPT2LMHeadModel": "transformer.wpe.weight",
    "BertForMaskedLM": "cls.predictions.transform.dense.bias",
    "BertForSequenceClassification": "bert.pooler.dense.weight",
    "BertModel": "pooler.dense.bias",
    "DistilBertForMaskedLM": "distilbert.transformer.layer.1.ffn.lin1.bias",
    "ModernBertForMaskedLM": "head.dense.weight",
    "BartForConditionalGeneration": "model.shared.weight",
}


@pytest.mark.parametrize("name", MISSING)
def test_weights_that_are_missing_are_named(name, source, refuse):
    source(name, weights=lambda found: found.pop(MISSING[name]))
    refuse(f"of the weights of {name}, such as", "--verify")


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("sandwich/lm_adaptive", "decoder.embed_tokens.embeddings.1.0.weight"),
        ("iot/orders_postln", "encoder.embed_order"),
    ],
)
def test_weights_that_a_file_lacks_are_named(name, missing, tmp_path, refuse):
    weights = load_file(REFERENCE / f"{name}.weights.safetensors")
    options = argparse.Namespace(**json.loads((REFERENCE / f"{name}.json").read_text())["args"])
    del weights[missing]
    torch.save({"model": weights, "args": options}, tmp_path / "source")
    refuse(f"the checkpoint has no {missing}; is it of another kind or version?")


def test_a_language_model_of_its_own_needs_its_head(source, refuse):
    source("LlamaForCausalLM", weights=lambda found: found.pop("lm_head.weight"), tie_word_embeddings=False)
    refuse("lacks 1 of the weights of LlamaForCausalLM, such as lm_head.weight; copy it again, or name the class")


def test_a_body_may_lack_its_pooler(source, convert, capsys):
    source("BertModel", weights=lambda found: [found.pop(f"pooler.dense.{kind}") for kind in ("weight", "bias")])
    convert("--verify")
    assert "new, with random weights: pooler.dense.weight, pooler.dense.bias\n" in capsys.readouterr().out


def test_weights_of_another_shape_are_named(source, refuse):
    source("LlamaForCausalLM", weights=lambda found: found.update({"model.norm.weight": torch.ones(5)}))
    refuse("has model.norm.weight of shape (5,), but config.json asks for (16,); copy both from one model")


@pytest.mark.parametrize("name", ["BertForMaskedLM", "DistilBertModel", "RobertaForQuestionAnswering"])
def test_chunks_of_feed_forward_layers_change_nothing(name, source, convert):
    source(name, settings={"chunk_size_feed_forward": 5})
    convert("--verify")


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Qwen2ForCausalLM", "GPT2LMHeadModel", "BertModel", "BartModel"])
@pytest.mark.parametrize("order", ["w3f3", "(wf)2"])
def test_local_attention_needs_a_source_with_a_window(name, order, source, refuse):
    source(name)
    flag = "--encoder_sublayer_order" if name == "BartModel" else "--sublayer_order"
    refuse(f"the order '{order}' has sublayers w, for which this source tells no window; leave w out, or", flag, order)


def test_local_attention_of_a_transformer_xl_has_no_window(tmp_path, refuse):
    model = transformer_xl()
    (tmp_path / "source").mkdir()
    settings = authors_settings(model) | {"model_type": "transfo-xl"}
    (tmp_path / "source" / "config.json").write_text(json.dumps(settings))
    torch.save(authors_names(model), tmp_path / "source" / "pytorch_model.bin")
    refuse("the order 'wfsfsf' has sublayers w, for which this source tells no window", "--sublayer_order=wfsfsf")


@pytest.mark.parametrize(("name", "order"), [("Mistral", "w2f2"), ("Qwen2", "s2f2")])
def test_orders_may_be_given_by_the_name_of_a_pattern(name, order, source, convert, refuse):
    source(f"{name}ForCausalLM", **WINDOWS)
    # which has a w in it
    pattern = "--sublayer_order=sandwich(2, 1)"
    if name == "Qwen2":
        assert AutoModel.from_pretrained(convert(pattern)).config.sublayer_order == order
    else:
        refuse("the order 's2f2' does not fit a checkpoint with 2 w, 2 f", pattern)


def test_the_first_sublayer_of_modern_bert_stays(source, convert, refuse):
    source("ModernBertModel")
    sentence = "the first sublayer of this ModernBERT, s, has no norm, and has to stay the first"
    refuse(f"the order 'wsf2' cannot be converted; {sentence}", "--sublayer_order=wsff")
    assert AutoModel.from_pretrained(convert("--sublayer_order=sandwich(4, 1)")).config.attention_window is None


@pytest.mark.parametrize("name", ["ModernBertModel", "ModernBertForSequenceClassification"])
def test_modern_bert_is_not_refused_for_parts_that_it_lacks(name, source, convert):
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    plain = {"rope_type": "default", "rope_theta": 1e4}
    # neither a decoder nor local attention
    source(
        name,
        decoder_bias=False,
        layer_types=["full_attention"] * 2,
        rope_parameters={"full_attention": plain, "sliding_attention": scaled},
    )
    convert("--verify")
