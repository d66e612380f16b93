"""What a family's configuration refuses: orders, parts and numbers that do not fit together, each in one sentence."""

from typing import Any

import pytest
from families import FAMILIES, small

CONTRADICTS = "num_hidden_layers=9 contradicts the order "
EVERY: list[tuple[dict[str, Any], str]] = [({"tomorrow": 16}, "no field 'tomorrow'; nobody would read it")]
ONE_STACK = [
    ({"sublayer_order": "sfqf"}, r"'q' is not a sublayer"),
    ({"num_hidden_layers": 9}, CONTRADICTS + "'"),
    ({"hiden_size": 16}, "did you mean 'hidden_size'"),
    *(({"sublayer_order": f"s{letter}f"}, f"has no sublayers {letter} ") for letter in "dl"),
]
PAIRS = [
    ({"encoder_sublayer_order": "scf"}, "no sublayers c .* in its encoder_sublayer_order, here 'scf'"),
    ({"decoder_sublayer_order": "sqf"}, "'q' is not a sublayer"),
    ({"num_hidden_layers": 9}, CONTRADICTS + r"'f\(sc\)2f', which makes it 2"),
    ({"decoder_sublayer_orders": "scf"}, "did you mean 'decoder_sublayer_order'"),
    ({"sublayer_order": "sf"}, "give encoder_sublayer_order and decoder_sublayer_order"),
    ({"encoder_sublayer_order": "gf"}, "no sublayers g .gated short convolution. in its encoder_sublayer_order"),
    ({"encoder_vocab_size": 90}, "encoder_vocab_size=90 differs from vocab_size=61"),
    ({"kernel_sizes": []}, r"kernel_sizes=\[\] must be positive numbers"),
    ({"kernel_sizes": [3, 0]}, r"kernel_sizes=\[3, 0\] must be positive numbers"),
    ({"kernel_sizes": [3, 1.5]}, "kernel_sizes"),
    (
        {"encoder_sublayer_order": "(sf)3", "decoder_sublayer_order": "(scf)2", "intermediate_size": [16, 24, 8]},
        r"intermediate_size=\[16, 24, 8\] has 3 widths, but the order '\(scf\)2' has 2 sublayers that need one",
    ),
]
SEVERAL_ORDERS = [
    ({"intermediate_size": [16, 24, 8]}, r"intermediate_size=\[16, 24, 8\] does not fit; give int"),
    ({"encoder_orders": ["scf"]}, "no sublayers c .* in its encoder_orders, here 'scf'"),
    ({"decoder_orders": ["scf", "sqf"]}, "'q' is not a sublayer"),
    ({"decoder_orders": []}, "decoder_orders is empty; give at least one order"),
    ({"decoder_orders": ["scfscf", "csf", "(scf)2"]}, "decoder_orders=.* holds an order twice"),
    ({"encoder_orders": ["sf", "ff"]}, "encoder_orders=.* must have the same letters in other orders"),
    ({"decoder_orders": ["scf", "scff"]}, "decoder_orders=.* must have the same letters in other orders"),
    (
        {"decoder_orders": ["sdcf", "dscf"]},
        r"in the sequences \['ds', 'sd'\]; bring them into one, and vary what stands between them",
    ),
    ({"min_order_probability": 0.6}, "2 orders cannot all have min_order_probability=0.6; give at most 0.5"),
    ({"pre_attention_act": "gelu"}, "iot_seq2seq has several orders and no pre_attention_act; leave it out"),
    ({"order_paths": "all"}, "order_paths"),
    ({"gumbel_temperature": 0.0}, "gumbel_temperature"),
    ({"num_hidden_layers": 9}, CONTRADICTS + ".*; change decoder_orders instead"),
    ({"decoder_order": ["scf"]}, "did you mean 'decoder_orders'"),
    ({"sublayer_order": "sf"}, "has no sublayer_order; give encoder_orders and decoder_orders"),
    ({"encoder_sublayer_order": "sf"}, "has no encoder_sublayer_order; give encoder_orders and decoder_orders"),
    ({"decoder_orders": ["smcf", "smfc"]}, r"has no sublayers m in its decoder_orders, here .*; use s"),
]
ONLY_PLAIN = {"attention_bias": True, "attention_output_bias": True, "num_key_value_heads": 2, "head_dim": 4}
ONLY_PLAIN |= {
    "attention_output_gate": True,
    "qk_norm": True,
    "attn_logit_softcapping": 3.0,
    "relative_key_distance": 4,
}
# of attention to distances
DISTANCES = [
    *(({name: value}, f"cannot have {name}={value}; leave it ") for name, value in ONLY_PLAIN.items()),
    ({"position_embedding_type": "rotary"}, "position_embedding_type='rotary' does not fit"),
    ({"rope_parameters": {"rope_theta": 1e4}}, "are used only by rotary positions"),
    ({"sublayer_order": "sfmf"}, "has no sublayers m in its sublayer_order, here .*; use s"),
    ({"sublayer_order": "sfgf", "short_kernel_size": 3}, "has no sublayers g .* in its sublayer_order, here .*; use s"),
]
BANDS = [
    *(({"adaptive_cutoffs": cutoffs}, "adaptive_cutoffs=.* must increase from above 0") for cutoffs in ([], [0, 20])),
    *(({"adaptive_cutoffs": cutoffs}, "adaptive_cutoffs=.* must increase") for cutoffs in ([20, 20], [40, 20])),
]
LLAMA3 = {"rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": 16}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
NUMBER = "; give a finite number from "
# of rotary positions
ROTARY: list[tuple[Any, str]] = [
    ({"partial_rotary_factor": 0.1}, "turn 0 of the 8 channels"),
    (
        {"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 0.25},
        "turn 2 of the 8 channels of a head, but need an even number, 4 or more",
    ),
    ({"rope_type": "spiral"}, "rope_type='spiral' is unknown here; choose from default"),
    ({"rope_type": "linear"}, "lack a value, so add it: Missing required keys .*'factor'"),
    ({"rope_type": "linear", "factor": 0.5}, f"factor=0.5{NUMBER}1 to 1000000000"),
    # where they overflow
    ({"rope_type": "dynamic", "factor": 1e30}, f"factor=1e[+]30{NUMBER}1"),
    ({"attention_factor": 1e30}, f"attention_factor=1e[+]30{NUMBER}0"),
    ({"rope_type": "linear", "factor": "2"}, "factor='2'; give a finite number"),
    ({"partial_rotary_factor": 1.5}, f"=1.5{NUMBER}0 to 1"),
    # where formulas divide by 0
    ({"rope_theta": 0}, f"rope_theta=0{NUMBER}1.01 to inf"),
    ({"partial_rotary_factor": 1e308}, f"=1e[+]308{NUMBER}0 to 1"),
    (
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 0},
        f"original_max_position_embeddings=0{NUMBER}1 to inf",
    ),
    *((LLAMA3 | {f"{kind}_freq_factor": 0}, f"{kind}_freq_factor=0{NUMBER}0.01 to inf") for kind in ("low", "high")),
    ({"theta": 5.0}, "have the unknown name 'theta'; leave it out"),
    (5, "rope_parameters=5 does not fit"),
]
PARTS = [
    *(({"position_embedding_type": "rotary", "rope_parameters": told}, message) for told, message in ROTARY),
    ({"num_key_value_heads": 3}, "num_attention_heads=4 is not a multiple of num_key_value_heads=3"),
    (
        {"position_embedding_type": "rotary", "head_dim": 5},
        "turn 5 of the 5 channels of a head, but need an even number, 2 or more; give",
    ),
    ({"position_embedding_type": "none", "rope_parameters": {}}, "are used only by rotary positions"),
    ({"norm_unit_offset": True}, "norm_unit_offset=True needs RMS norms with a gain"),
    ({"relative_key_distance": 4, "sublayer_order": "sfmf"}, r"does not go together with the sublayers of \['sfmf'\]"),
    ({"relative_key_distance": 4, "position_embedding_type": "rotary"}, "does not go together with position_embedd"),
    ({"relative_key_distance": 4, "attn_logit_softcapping": 9.0}, "together with attn_logit_softcapping=9.0"),
    ({"final_logit_softcapping": 30.0, "adaptive_cutoffs": [20]}, "an adaptive softmax has no final_logit_softcapping"),
    ({"adaptive_cutoffs": [20, 40], "adaptive_factor": 8}, "hidden_size=32 cannot be divided by adaptive_factor=8"),
    ({"sublayer_order": "gf"}, "short_kernel_size=None, but the order has sublayers g; give a number"),
    ({"sublayer_order": "gf", "short_kernel_size": 1}, "short_kernel_size=1 is out of range; give a number from 2"),
    ({"sublayer_order": "sf", "attention_window": 8}, "has no sublayer w; leave it out"),
    ({"sublayer_order": "wf"}, "attention_window=None, but the order has sublayers w; give a number"),
    ({"sublayer_order": "wf", "attention_window": 0}, "attention_window=0 is out of range"),
    (
        {"sublayer_order": "(sf)3", "intermediate_size": [16, 24]},
        r"intermediate_size=\[16, 24\] has 2 widths, but the order '\(sf\)3' has 3 sublayers that need one; give one",
    ),
    ({"sublayer_order": "(sf_0)3", "intermediate_size": [16, 24, 8]}, "has 3 widths, but the order .* has 1 sublayers"),
    ({"sublayer_order": "sfsf", "intermediate_size": [16, 0]}, r"intermediate_size=\[16, 0\] is out of range"),
    ({"sublayer_order": "sf", "local_rope_theta": 1e4}, "local_rope_theta=10000.0 is used only by w with"),
]
ENCODERS = [
    ({"first_norm": False, "norm_position": "post"}, "first_norm=False needs norms"),
    (
        {"classifier_pooling": "mean", "tail_query": "mean"},
        "classifier_pooling='mean' needs all states",
    ),
    ({"relative_attention_num_buckets": 2}, "relative_attention_num_buckets"),
    (
        {"sublayer_order": "sfwf", "attention_window": 4, "relative_attention_num_buckets": 8},
        "relative_attention_num_buckets=8 is for s and m alone",
    ),
]
REFUSED = {
    "sandwich_lm": [*ONE_STACK, *PARTS, *BANDS],
    "par_bert": [*ONE_STACK, *ENCODERS],
    "macaron_bert": ONE_STACK,
    "macaron_seq2seq": PAIRS,
    "sandwich_seq2seq": PAIRS,
    "iot_seq2seq": SEVERAL_ORDERS,
    "par_transformer_xl": [
        *ONE_STACK,
        *DISTANCES,
        *BANDS,
        ({"embedding_size": 100, "adaptive_factor": 4}, "embedding_size=100 cannot be divided by adaptive_factor=4"),
        ({"hidden_size": 15, "num_attention_heads": 3}, "hidden_size=15 is odd, but half of it is for sines"),
    ],
    "sandwich_char_lm": [*ONE_STACK, *DISTANCES],
}


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [(family, *case) for family in FAMILIES for case in [*EVERY, *REFUSED[family]]],
)
def test_what_does_not_fit_is_refused_in_one_sentence(family, options, message):
    with pytest.raises(ValueError, match=message):
        small(FAMILIES[family][0], **options)


# the least and the greatest that is taken
LIMITS: list[tuple[str, dict[str, Any]]] = [
    ("iot_seq2seq", {"gumbel_temperature": 0.01, "gumbel_temperature_min": 0.01}),
    ("iot_seq2seq", {"min_order_probability": 0.5}),
    ("sandwich_lm", {"position_embedding_type": "rotary", "rope_parameters": {"partial_rotary_factor": 0.25}}),
    ("sandwich_lm", {"position_embedding_type": "rotary", "head_dim": 2}),
    ("sandwich_lm", {"sublayer_order": "wf", "attention_window": 1}),
    ("sandwich_lm", {"adaptive_cutoffs": [1]}),
]


@pytest.mark.parametrize(("family", "options"), LIMITS)
def test_the_limits_themselves_are_taken(family, options):
    config = small(FAMILIES[family][0], **options)
    assert all(getattr(config, name) == value for name, value in options.items() if name != "rope_parameters")
