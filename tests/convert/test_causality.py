"""Decoders whose tokens see both sides become encoders, and what tokens see is never guessed."""

import re

import pytest
from common_convert import convert, edit, make
from transformers import AutoModel, AutoModelForTokenClassification

from sublayers.training.commands.convert import main


def test_the_labels_and_the_dropout_of_a_classifier_are_taken_over(tmp_path):
    labels = {"id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}}
    source = make("Qwen3ForTokenClassification", is_causal=False, classifier_dropout=0.3, **labels)
    source.save_pretrained(tmp_path / "source")
    convert(tmp_path)
    found = AutoModelForTokenClassification.from_pretrained(tmp_path / "ours").config
    assert (found.classifier_dropout, found.id2label) == (0.3, {0: "a", 1: "b"})


@pytest.mark.parametrize(
    "head", ["LlamaForCausalLM", "LlamaForSequenceClassification", "GPT2LMHeadModel", "Gemma3ForCausalLM"]
)
def test_heads_that_no_encoder_has_are_refused(head, tmp_path):
    # Gemma 3 has a field of its own
    both_sides = {"use_bidirectional_attention": True} if "Gemma3" in head else {"is_causal": False}
    make(head, **both_sides).save_pretrained(tmp_path / "source")
    # of Gemma 3, the body alone
    known = ".*Model" if "Gemma3" in head else ".*Model, .*"
    with pytest.raises(ValueError, match=f"holds '{head}' whose tokens see both sides, {known} can be converted"):
        main([str(tmp_path / "source"), str(tmp_path / "ours")])
    assert not (tmp_path / "ours").exists()
    # as the documentation says
    AutoModel.from_pretrained(tmp_path / "source").save_pretrained(tmp_path / "body")
    main([str(tmp_path / "body"), str(tmp_path / "ours"), "--verify"])


def test_a_folder_that_names_no_class_holds_a_body(tmp_path):
    make("LlamaModel", is_causal=False).save_pretrained(tmp_path / "source")
    edit(tmp_path / "source" / "config.json", architectures=None)
    convert(tmp_path, "--verify")
    assert type(AutoModel.from_pretrained(tmp_path / "ours")).__name__ == "PARBertModel"


REFUSED = {
    "Gemma3TextModel": ([False, None], "with is_causal=True or without it"),
    "StableLmModel": ([False, None, "no"], "with is_causal=True or without it"),
    "LlamaForCausalLM": ([None, 0, [1]], "with is_causal=True or with is_causal=False or"),
    "BartForConditionalGeneration": ([True, False, None], "without it"),
    "MarianMTModel": ([True, False], "without it"),
    # without padding, transformers' sdpa is causal then
    "BertModel": ([True, None, 0], "with is_causal=False or without it"),
    "ModernBertModel": ([True], "with is_causal=False or without it"),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, row in REFUSED.items() for value in row[0]])
def test_what_tokens_see_is_refused_where_no_model_here_sees_it(name, value, tmp_path):
    source = make(name)
    source.save_pretrained(tmp_path / "source")
    edit(tmp_path / "source" / "config.json", is_causal=value)
    sentence = f"is_causal={value!r} cannot be converted; only {source.config.model_type} {REFUSED[name][1]}"
    with pytest.raises(ValueError, match=re.escape(sentence)):
        convert(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "model_type"), [("LlamaModel", True, "sandwich_lm"), ("BertModel", False, "par_bert")]
)
def test_what_is_told_anyway_changes_nothing(name, value, model_type, tmp_path):
    make(name, is_causal=value, tie_word_embeddings=True).save_pretrained(tmp_path / "source")
    convert(tmp_path, "--verify")
    assert AutoModel.from_pretrained(tmp_path / "ours").config.model_type == model_type
