"""What no model here has is refused in one sentence, and nothing is written."""

import re

import pytest
from common_convert import convert, edit, make
from transformers import AutoModel, AutoModelForTokenClassification, ElectraForPreTraining, T5Config

from sublayers.convert.bert import from_bert
from sublayers.convert.optimize import optimize
from sublayers.convert.sources import FAMILIES
from sublayers.training.commands.convert import main

HEADS = ["ForQuestionAnswering", "ForTokenClassification", "DoubleHeadsModel"]
HEADS = [f"GPT2{head}" for head in HEADS] + ["LlamaForTokenClassification", "MarianForCausalLM", "PegasusForCausalLM"]
HEADS += [f"{prefix}For{head}" for prefix in ("Bart", "MBart") for head in ("CausalLM", "QuestionAnswering")]
HEADS += ["BartForSequenceClassification", "MBartForSequenceClassification"]
CHUNKS = {"use_sliding_window": True, "sliding_window": 64, "layer_types": ["chunked_attention"] * 2}
LONG = {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * 2, "long_factor": [2.0] * 2}}
LOCAL = {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}}
LOCAL |= {"num_hidden_layers": 4}
DECODES = {"add_cross_attention": True, "is_decoder": True}
CAN_NOT = "cannot be converted"
# an option with the value that is refused, and the only one that is converted
OPTIONS = [
    ("BertModel", {"is_decoder": True}, "False"),
    ("RobertaModel", {"is_decoder": True}, "False"),
    ("BertModel", {"position_embedding_type": "relative_key"}, "'absolute'"),
    ("RobertaModel", {"position_embedding_type": "relative_key"}, "'absolute'"),
    *((f"{kind}ForMaskedLM", {"hidden_act": "relu"}, "'gelu'") for kind in ("Roberta", "XLMRoberta", "Electra")),
    ("ElectraForMultipleChoice", {"summary_type": "mean"}, "'first'"),
    ("ElectraForMultipleChoice", {"summary_use_proj": False}, "True"),
    ("ElectraForMultipleChoice", {"summary_first_dropout": 0.1}, "0"),
    ("ElectraModel", {"embedding_size": 8}, "16"),
    ("MPNetModel", {"pad_token_id": 3}, "1"),
    ("ModernBertForMaskedLM", {"decoder_bias": False}, "True"),
    ("ModernBertForMaskedLM", {"classifier_activation": "relu"}, "'gelu'"),
    ("GPT2LMHeadModel", {"scale_attn_weights": False}, "True"),
    ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": True}, "False"),
    ("GPT2LMHeadModel", {"add_cross_attention": True}, "False"),
]
REFUSED = [
    *((head, {}, f"'{head}', which none here is like; .*Model, .* can be") for head in HEADS),
    *(
        (f"{kind}{head}", {}, f"{kind}{head} {CAN_NOT}; PAR BERT has no such head")
        for kind, head in (("Bert", "LMHeadModel"), ("Roberta", "ForCausalLM"), ("Electra", "ForCausalLM"))
    ),
    *(
        (name, options, f"{option}={value!r} {CAN_NOT}; only .* with {option}={only} can")
        for name, options, only in OPTIONS
        for option, value in options.items()
    ),
    *((name, DECODES, f"only {name} with is_decoder=False can") for name in ("ElectraModel", "CamembertModel")),
    ("RobertaModel", {"pad_token_id": None}, f"pad_token_id=None {CAN_NOT}; RobertaModel counts"),
    ("ModernBertModel", LOCAL, "rope_type='linear' .*; only local attention with rope_type='d"),
    ("Qwen3ForCausalLM", CHUNKS, f"layers of chunked_attention with sliding_window=64 {CAN_NOT}"),
    ("LlamaForCausalLM", {"partial_rotary_factor": 0.5}, f"partial_rotary_factor=0.5 {CAN_NOT}; llama"),
    ("LlamaForCausalLM", LONG, "rope_type='longrope' is unknown here; choose from"),
    *(
        (f"{prefix}ForConditionalGeneration", {f"decoder_{part}": value}, f"{sentence} {CAN_NOT}")
        for prefix in ("Bart", "MBart", "Pegasus")
        for part, value, sentence in (
            ("ffn_dim", 20, r"feed-forward sublayers of widths \[20, 24\]"),
            ("attention_heads", 2, "'decoder_attention_heads': 2}"),
        )
    ),
    *(
        ("Lfm2ForCausalLM", {"layer_types": ["conv"] * 2} | options, sentence)
        for options, sentence in (
            ({"conv_bias": True}, "conv_bias=True cannot be converted; only lfm2 with conv_bias=False can"),
            ({"conv_L_cache": 1}, "conv_L_cache=1 cannot be converted; kernels here have 2 places or more"),
            ({"is_causal": False}, "is_causal=False cannot be converted; only lfm2 with is_causal=True or without it"),
        )
    ),
]


@pytest.mark.parametrize(("name", "options", "sentence"), REFUSED)
def test_parts_and_heads_that_are_not_covered_are_refused(name, options, sentence, tmp_path):
    make(name, **options).save_pretrained(tmp_path / "source")
    with pytest.raises(ValueError, match=sentence):
        convert(tmp_path)
    assert not (tmp_path / "ours").exists()


def test_folders_of_other_models_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no place for \['discriminator_predictions.dense.bias', .* in PAR BERT"):
        from_bert(ElectraForPreTraining(make("ElectraModel").config))
    T5Config().save_pretrained(tmp_path / "source")
    with pytest.raises(ValueError, match=r"holds 't5'; of transformers' models, .*bart, .*bert, .*transfo-xl can be"):
        convert(tmp_path)
    roberta = make("RobertaModel")
    roberta.config.architectures = ["BertModel"]
    roberta.config.save_pretrained(tmp_path / "source")
    with pytest.raises(ValueError, match="holds 'BertModel', which is no roberta of transformers"):
        convert(tmp_path)


def test_layers_of_other_parts_or_sizes_are_refused(tmp_path):
    source = make("LlamaForCausalLM", per_layer_config={"1": {"skip": ["mlp"]}})
    sentence = r"settings of single layers, per_layer_config={'?1'?: {'skip': \['mlp'\]}}, which no llama of"
    with pytest.raises(ValueError, match=sentence):
        optimize(source)
    source.save_pretrained(tmp_path / "source")
    with pytest.raises(ValueError, match=sentence):
        convert(tmp_path)
    blocks = [{"attention": {"no_op": True}, "ffn": {"ffn_mult": 24.0}}] * 2
    edit(tmp_path / "source" / "config.json", model_type="nemotron-nas", block_configs=blocks, per_layer_config=None)
    with pytest.raises(ValueError, match=r"holds 'nemotron-nas'; of transformers' models, .* can be converted"):
        convert(tmp_path)


# decoders whose tokens see both sides become encoders, and what tokens see is never guessed
@pytest.mark.parametrize(("name", "options"), [("Bert", {}), ("Qwen3", {"is_causal": False})])
def test_the_labels_and_the_dropout_of_a_classifier_are_taken_over(name, options, tmp_path):
    options |= {"id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}, "classifier_dropout": 0.3}
    make(f"{name}ForTokenClassification", **options).save_pretrained(tmp_path / "source")
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


VALUES = {
    "Gemma3TextModel": ([False, None], "with is_causal=True or without it"),
    "StableLmModel": ([False, None, "no"], "with is_causal=True or without it"),
    "LlamaForCausalLM": ([None, 0, [1]], "with is_causal=True or with is_causal=False or"),
    "BartForConditionalGeneration": ([True, False, None], "without it"),
    "MarianMTModel": ([True, False], "without it"),
    # without padding, transformers' sdpa is causal then
    "BertModel": ([True, None, 0], "with is_causal=False or without it"),
    "ModernBertModel": ([True], "with is_causal=False or without it"),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, row in VALUES.items() for value in row[0]])
def test_what_tokens_see_is_refused_where_no_model_here_sees_it(name, value, tmp_path):
    source = make(name)
    source.save_pretrained(tmp_path / "source")
    edit(tmp_path / "source" / "config.json", is_causal=value)
    sentence = f"is_causal={value!r} cannot be converted; only {source.config.model_type} {VALUES[name][1]}"
    with pytest.raises(ValueError, match=re.escape(sentence)):
        convert(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "model_type"), [("LlamaModel", True, "sandwich_lm"), ("BertModel", False, "par_bert")]
)
def test_what_is_told_anyway_changes_nothing(name, value, model_type, tmp_path):
    make(name, is_causal=value, tie_word_embeddings=True).save_pretrained(tmp_path / "source")
    convert(tmp_path, "--verify")
    assert AutoModel.from_pretrained(tmp_path / "ours").config.model_type == model_type


def test_a_folder_that_holds_files_is_left_alone(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").touch()
    with pytest.raises(FileExistsError, match="full is not empty; choose another folder"):
        main([str(tmp_path), str(tmp_path / "full")])


def test_the_help_names_all_models_that_folders_can_hold(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "999")
    with pytest.raises(SystemExit):
        main(["--help"])
    printed, marks = capsys.readouterr().out.lower(), str.maketrans("", "", "-_ \n")
    assert [name for name in FAMILIES if name.translate(marks) not in printed.translate(marks)] == []
