"""What no model here has is refused in one sentence, and nothing is written."""

import pytest
import torch
from common_convert import convert, make
from transformers import AutoModel, ElectraForPreTraining, T5Config

from sublayers.training.convert.bert import from_bert

FORBIDDEN = "cannot be converted"
HEADS = [
    "GPT2ForQuestionAnswering",
    "GPT2ForTokenClassification",
    "GPT2DoubleHeadsModel",
    "LlamaForTokenClassification",
]
HEADS += ["BartForCausalLM", "BartForQuestionAnswering", "BartForSequenceClassification", "MarianForCausalLM"]
HEADS += ["MBartForCausalLM", "MBartForQuestionAnswering", "MBartForSequenceClassification", "PegasusForCausalLM"]
HEADS += ["ModernBertForTokenClassification"]
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
    ("ModernBertForSequenceClassification", {"classifier_pooling": "mean"}, f"classifier_pooling='mean' {FORBIDDEN}"),
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


# of sources in other orders: for each of their modules, our places for it, layer by layer, and its name there
ORDERED = {
    "GPT2Model": (["ssff"], {"h.{}.attn.c_proj": ((0, 1), "mixer.o_proj"), "h.{}.mlp.c_proj": ((2, 3), "mixer.fc2")}),
    "BertModel": (
        ["sf5"],
        {
            "encoder.layer.{}.attention.self.query": ((0,), "mixer.q_proj"),
            "encoder.layer.{}.output.dense": ((1, 2), "mixer.fc2"),
        },
    ),
    "DistilBertModel": (
        ["sf3"],
        {
            "transformer.layer.{}.attention.q_lin": ((0,), "mixer.q_proj"),
            "transformer.layer.{}.ffn.lin2": ((1, 2), "mixer.fc2"),
            "transformer.layer.{}.output_layer_norm": ((1, 2), "norm"),
        },
    ),
    "ModernBertModel": (
        ["sws2f3"],
        {
            "layers.{}.attn.Wo": ((0, 1, None, 2), "mixer.o_proj"),
            "layers.{}.mlp.Wo": ((4, 5, 6), "mixer.fc2"),
        },
    ),
    "Qwen3Model": (
        ["ssff"],
        {
            "layers.{}.self_attn.q_norm": ((0, 1), "mixer.q_norm"),
            "layers.{}.input_layernorm": ((0, 1), "norm"),
            "layers.{}.mlp.gate_proj": ((2, 3), "mixer.gate"),
            "layers.{}.post_attention_layernorm": ((2, 3), "norm"),
        },
    ),
    "LlamaModel of both sides": (
        ["sf3"],
        {"layers.{}.self_attn.q_proj": ((0,), "mixer.q_proj"), "layers.{}.mlp.gate_proj": ((1, 2), "mixer.gate")},
    ),
    **dict.fromkeys(
        ["BartModel", "PegasusModel"],
        (
            ["s2f2", "(sc)3f3"],
            {
                "encoder.layers.{}.self_attn.v_proj": ((0, 1), "mixer.v_proj"),
                "encoder.layers.{}.final_layer_norm": ((2, 3), "norm"),
                "decoder.layers.{}.self_attn_layer_norm": ((0, 2, 4), "norm"),
                "decoder.layers.{}.encoder_attn.out_proj": ((1, 3, 5), "mixer.o_proj"),
                "decoder.layers.{}.fc2": ((6, 7, 8), "mixer.fc2"),
            },
        ),
    ),
}


@pytest.mark.parametrize("name", ORDERED)
def test_another_order_takes_the_sublayers_of_each_kind_in_turn(name, tmp_path, capsys):
    orders, places = ORDERED[name]
    options = {"is_causal": False} if "both" in name else {"num_hidden_layers": 4} if "Modern" in name else {}
    # a language model gets the head that is tied to its embeddings
    source = make(name.split()[0], tie_word_embeddings=True, **options)
    source.save_pretrained(tmp_path / "source")
    flags = ["--sublayer_order"] if len(orders) == 1 else ["--encoder_sublayer_order", "--decoder_sublayer_order"]
    report = convert(tmp_path, *(f"{flag}={order}" for flag, order in zip(flags, orders, strict=True)))
    ours = AutoModel.from_pretrained(tmp_path / "ours")
    for theirs, (numbers, part) in places.items():
        side = f"{theirs.split('.')[0]}." if len(orders) > 1 else ""
        for layer, place in enumerate(numbers):
            if place is not None:
                # GPT-2 keeps its matrices transposed
                expected = source.get_submodule(theirs.format(layer)).weight
                expected = expected.T if "GPT2" in name else expected
                assert torch.equal(ours.get_submodule(f"{side}layers.{place}.{part}").weight, expected)
    if name == "DistilBertModel":
        left = "transformer.layer.1."
        assert {*report["left_out"]} == {key for key in source.state_dict() if key.startswith((f"{left}a", f"{left}s"))}
        assert {key.split(".")[1] for key in report["new"] if "layers" in key} == {"3"}
        assert f"dropped {left}attention, {left}sa_layer_norm" in capsys.readouterr().err


def test_an_order_of_another_length_is_refused_where_sublayers_are_not_optional(tmp_path):
    make("Qwen3ForCausalLM").save_pretrained(tmp_path / "source")
    with pytest.raises(ValueError, match="the order 'sf5' does not fit a checkpoint with 2 s, 2 f"):
        convert(tmp_path, "--sublayer_order=sf5")
