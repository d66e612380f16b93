"""Defaults are the models of the papers, with their orders, numbers and parameters."""

import pytest
import torch
from families import FAMILIES

import sublayers
from sublayers import interleaved, macaron, par, sandwich

DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")
DEFAULTS = {
    "sandwich_lm": {"sublayer_order": sandwich(16, 6), "num_hidden_layers": 16, "num_sublayers": 32},
    "par_bert": {"sublayer_order": par(24, 5)},
    "macaron_bert": {"sublayer_order": macaron(12)},
    "par_transformer_xl": {"sublayer_order": par(32, 5)},
    "sandwich_char_lm": {"sublayer_order": sandwich(24, 5)},
    "sandwich_seq2seq": {
        **{"encoder_sublayer_order": sandwich(6, 3), "decoder_sublayer_order": sandwich(6, 0, decoder=True)},
        **{"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "dropout": 0.3},
        **{"norm_position": "post", "final_norm": False},
        **{"num_encoder_sublayers": 12, "num_decoder_sublayers": 18, "num_hidden_layers": 6},
    },
    "macaron_seq2seq": {
        **{"encoder_sublayer_order": macaron(6), "decoder_sublayer_order": macaron(6, decoder=True)},
        **{"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, **dict.fromkeys(DROPOUTS, 0.1)},
        **{"norm_position": "pre", "final_norm": True, "feed_forward_scale": 0.5},
        **{"num_encoder_sublayers": 18, "num_decoder_sublayers": 24, "num_hidden_layers": 6},
    },
}
# of the word-level model, as fairseq 0.9 counts it in its transformer_lm_baevski_wiki103
WORDS = {"sublayer_order": "(sf)16", "vocab_size": 267_744, "adaptive_cutoffs": [20_000, 60_000]}
BIG = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 2048}
PLAIN = {"encoder_sublayer_order": interleaved(6), "decoder_sublayer_order": interleaved(6, decoder=True)}
PLAIN |= {"feed_forward_scale": 1.0}
PARAMETERS = [
    # 28,996 cased word pieces tied to the output, 16 + 16 sublayers with biases
    ("SandwichLMForCausalLM", {}, 231_231_488),
    ("SandwichLMForCausalLM", WORDS, 246_933_504),
    ("PARBertModel", {}, 126_002_688),
    # BERT base
    ("PARBertModel", {"sublayer_order": "(sf)12"}, 109_482_240),
    # as released
    ("MacaronBertForPreTraining", {}, 110_787_073),
    ("PARTransformerXLForCausalLM", {"sublayer_order": "(sf)16"}, 191_950_298),
    ("PARTransformerXLForCausalLM", {}, 199_840_218),
    # an order costs nothing; this is fairseq's transformer_wmt_en_de_big without norms after the stacks
    ("SandwichSeq2SeqForConditionalGeneration", {}, 209_911_808),
    ("SandwichSeq2SeqForConditionalGeneration", {"encoder_sublayer_order": "(sf)6"}, 209_911_808),
    (
        "SandwichSeq2SeqForConditionalGeneration",
        {"decoder_sublayer_order": sandwich(6, 3, decoder=True)},
        209_911_808,
    ),
    ("MacaronSeq2SeqForConditionalGeneration", {}, 60_936_192),
    ("MacaronSeq2SeqForConditionalGeneration", PLAIN | {"intermediate_size": 2048}, 60_917_760),
    ("MacaronSeq2SeqForConditionalGeneration", BIG, 209_952_768),
    ("MacaronSeq2SeqForConditionalGeneration", BIG | PLAIN | {"intermediate_size": 4096}, 209_915_904),
]


@pytest.mark.parametrize("family", DEFAULTS)
def test_defaults_are_those_of_the_paper(family):
    config = FAMILIES[family][0]()
    assert {name: getattr(config, name) for name in DEFAULTS[family]} == DEFAULTS[family]


def count(name: str, options: dict) -> int:
    model_class = getattr(sublayers, name)
    with torch.device("meta"):
        return model_class(model_class.config_class(**options)).num_parameters()


@pytest.mark.parametrize(("name", "options", "number"), PARAMETERS)
def test_models_have_the_parameters_of_the_papers(name, options, number):
    assert count(name, options) == number


def test_the_character_model_has_209_million():
    assert round(count("SandwichCharLMForCausalLM", {}) / 1e6) == 209
