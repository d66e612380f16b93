"""What no model here has is refused in one sentence, and nothing is written."""

import pytest
from common_convert import convert, make
from transformers import ElectraForPreTraining, T5Config

from sublayers.convert.bert import from_bert

FORBIDDEN = "cannot be converted"
HEADS = [
    "GPT2ForQuestionAnswering",
    "GPT2ForTokenClassification",
    "GPT2DoubleHeadsModel",
    "LlamaForTokenClassification",
]
HEADS += ["BartForCausalLM", "BartForQuestionAnswering", "BartForSequenceClassification", "MarianForCausalLM"]
HEADS += ["MBartForCausalLM", "MBartForQuestionAnswering", "MBartForSequenceClassification", "PegasusForCausalLM"]
CHUNKS = {"use_sliding_window": True, "sliding_window": 64, "layer_types": ["chunked_attention"] * 2}
LONG = {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * 2, "long_factor": [2.0] * 2}}
LOCAL = {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}}
DECODES = {"add_cross_attention": True, "is_decoder": True}
REFUSED = [
    *((head, {}, f"'{head}', which none here is like; .*Model, .* can be") for head in HEADS),
    *(
        (head, {}, f"{head} {FORBIDDEN}; PAR BERT has no such head")
        for head in ("BertLMHeadModel", "RobertaForCausalLM")
    ),
    ("ElectraForCausalLM", {}, f"ElectraForCausalLM {FORBIDDEN}; PAR BERT has no such head"),
    ("BertModel", {"is_decoder": True}, "is_decoder=True .*; only BertModel with is_decoder=False can"),
    ("RobertaModel", {"is_decoder": True}, "is_decoder=True .*; only RobertaModel with is_decoder=False can"),
    ("ElectraModel", DECODES, f"is_decoder=True {FORBIDDEN}"),
    ("CamembertModel", DECODES, "only CamembertModel with is_decoder=False can"),
    ("BertModel", {"position_embedding_type": "relative_key"}, f"position_embedding_type='relative_key' {FORBIDDEN}"),
    (
        "RobertaModel",
        {"position_embedding_type": "relative_key"},
        f"position_embedding_type='relative_key' {FORBIDDEN}",
    ),
    (
        "RobertaForMaskedLM",
        {"hidden_act": "relu"},
        "hidden_act='relu' .*; only RobertaForMaskedLM with hidden_act='gelu'",
    ),
    ("XLMRobertaForMaskedLM", {"hidden_act": "relu"}, f"hidden_act='relu' {FORBIDDEN}; only XLMRobertaForMaskedLM"),
    ("ElectraForMaskedLM", {"hidden_act": "relu"}, f"hidden_act='relu' {FORBIDDEN}; only ElectraForMaskedLM"),
    ("ElectraForMultipleChoice", {"summary_type": "mean"}, "summary_type='mean' .* with summary_type='first' can"),
    (
        "ElectraForMultipleChoice",
        {"summary_use_proj": False},
        "summary_use_proj=False .* with summary_use_proj=True can",
    ),
    ("ElectraForMultipleChoice", {"summary_first_dropout": 0.1}, "summary_first_dropout=0.1 .*_first_dropout=0 can"),
    ("ElectraModel", {"embedding_size": 8}, "embedding_size=8 .*; only ElectraModel with embedding_size=16 can"),
    ("RobertaModel", {"pad_token_id": None}, f"pad_token_id=None {FORBIDDEN}; RobertaModel counts"),
    ("MPNetModel", {"pad_token_id": 3}, f"pad_token_id=3 {FORBIDDEN}"),
    ("ModernBertForMaskedLM", {"decoder_bias": False}, f"decoder_bias=False {FORBIDDEN}"),
    (
        "ModernBertForMaskedLM",
        {"classifier_activation": "relu"},
        "classifier_activation='relu' .*_activation='gelu' can",
    ),
    (
        "ModernBertModel",
        LOCAL | {"num_hidden_layers": 4},
        "rope_type='linear' .*; only local attention with rope_type='d",
    ),
    ("Qwen3ForCausalLM", CHUNKS, f"layers of chunked_attention with sliding_window=64 {FORBIDDEN}"),
    ("LlamaForCausalLM", {"partial_rotary_factor": 0.5}, f"partial_rotary_factor=0.5 {FORBIDDEN}; llama"),
    ("LlamaForCausalLM", LONG, "rope_type='longrope' is unknown here; choose from"),
    ("GPT2LMHeadModel", {"scale_attn_weights": False}, "only gpt2 with scale_attn_weights=True can"),
    (
        "GPT2LMHeadModel",
        {"scale_attn_by_inverse_layer_idx": True},
        "only gpt2 with scale_attn_by_inverse_layer_idx=False",
    ),
    ("GPT2LMHeadModel", {"add_cross_attention": True}, "only gpt2 with add_cross_attention=False can"),
    *(
        (f"{prefix}ForConditionalGeneration", {f"decoder_{part}": value}, sentence)
        for prefix in ("Bart", "MBart", "Pegasus")
        for part, value, sentence in (
            ("ffn_dim", 20, rf"feed-forward sublayers of widths \[20, 24\] {FORBIDDEN}"),
            ("attention_heads", 2, f"'decoder_attention_heads': 2}} {FORBIDDEN}"),
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
