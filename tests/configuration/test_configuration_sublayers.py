"""What every family's configuration refuses, and how: always a ValueError, at once and in one sentence."""

import math
import re
from dataclasses import fields

import pytest
from families import FAMILIES, every_family, small
from hypothesis import given, settings, strategies as st
from transformers import AutoConfig, AutoModel, PreTrainedConfig
from transformers.modeling_rope_utils import RopeParameters

from sublayers import IOTSeq2SeqConfig, PARBertConfig, SandwichLMConfig, par, sandwich

SIZES = ["vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "max_position_embeddings"]
SIZES += ["num_key_value_heads", "head_dim", "span_ramp_size", "embedding_size", "attention_span"]
SIZES += ["type_vocab_size", "encoder_vocab_size", "num_encoder_blocks", "num_decoder_blocks", "adaptive_factor"]
SHARES = ["dropout", "attention_dropout", "activation_dropout", "classifier_dropout", "adaptive_softmax_dropout"]
SHARES += ["initial_span_share", "predictor_dropout", "layerdrop", "label_smoothing", "min_order_probability"]
SHARES += ["initializer_range", "projection_initializer_range", "embedding_dropout", "attention_output_dropout"]
SHARES += ["pooler_dropout", "qa_dropout"]
OTHERS = ["feed_forward_scale", "layer_norm_eps", "position_offset", "gumbel_temperature"]
OTHERS += ["memory_length", "clamp_length", "span_loss"]
OTHERS += ["shared_expert_intermediate_size", "router_aux_loss_coef", "router_jitter_noise", "recurrence_time_step_min"]
OTHERS += ["gumbel_temperature_min", "gumbel_temperature_decay", "diversity_weight", "sharpness_weight"]
SIZES += ["relative_key_distance", "attn_logit_softcapping", "final_logit_softcapping", "local_rope_theta"]
OUT_OF_RANGE = dict.fromkeys(SIZES, (0, -1)) | dict.fromkeys(SHARES, (-0.1, 1.1)) | dict.fromkeys(OTHERS, (-1,))
# what 32 bits round to 0
OUT_OF_RANGE["layer_norm_eps"] = (-1, 0, 1e-46)


def own_fields(config_class):
    return {f.name for f in fields(config_class)} - {f.name for f in fields(PreTrainedConfig)}


@every_family
def test_numbers_are_finite_and_in_range(family):
    config_class = FAMILIES[family][0]
    config = small(config_class)
    numbers = {name for name in own_fields(config_class) if type(getattr(config, name)) in (int, float)}
    assert {name for name in numbers if not name.endswith("_token_id")} <= OUT_OF_RANGE.keys()
    for name in OUT_OF_RANGE.keys() & own_fields(config_class):
        integer = "float" not in str(config_class.__dataclass_fields__[name].type)
        for value in (*OUT_OF_RANGE[name], 10**9 + 1, *([] if integer else [math.nan, math.inf, -math.inf])):
            value = value if integer else float(value)
            sentence = f"^{re.escape(f'{name}={value} is out of range; give a number from')} (0|1|1e-30) to 1(0{{9}})?$"
            with pytest.raises(ValueError, match=sentence):
                small(config_class, **{name: value})
            with pytest.raises(ValueError, match=sentence):
                setattr(config, name, value)
        small(config_class, **{name: getattr(config, name)})


@every_family
@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("hidden_act", "gelou", "^hidden_act='gelou' is unknown; choose from .*gelu, .*relu"),
        ("pre_attention_act", "", "^pre_attention_act='' is unknown; choose from "),
        ("eos_token_id", [], r"^eos_token_id=\[\] names no token; give one or more, or None$"),
        ("dtype", "rotary", "^dtype='rotary' is unknown here; choose from float16, bfloat16, float32, float64$"),
        ("num_labels", "2", "^num_labels='2' does not fit; give a number from 1 to 1000000$"),
        ("num_labels", 10**9, "^num_labels=1000000000 does not fit; give a number from 1 to 1000000$"),
        ("id2label", {}, "^id2label={} does not number its labels 0, 1, 2 and so on; do so, or leave it out$"),
        ("id2label", {"0": "no", "2": "yes"}, "^id2label={'0': 'no', '2': 'yes'} does not number its labels 0, 1, 2"),
        ("id2label", ["no", "yes"], r"^id2label=\['no', 'yes'\] does not fit; give dict"),
        ("problem_type", "ranking", "^problem_type='ranking' does not fit; give .*'regression', 'single_label"),
        ("output_hidden_states", 0.5, "^output_hidden_states=0.5 does not fit; give bool"),
        ("norm_position", "middle", r"^norm_position='middle' does not fit; give Literal\['pre', 'post', 'both'\]$"),
        ("hidden_size", "32", "^hidden_size='32' does not fit; give int$"),
        ("dropout", None, "^dropout=None does not fit; give float | int$"),
        ("num_attention_heads", 5, "^hidden_size=32 is not a multiple of num_attention_heads=5; give"),
    ],
)
def test_values_are_refused_in_one_sentence(family, field, value, sentence):
    with pytest.raises(ValueError, match=sentence):
        small(FAMILIES[family][0], **{field: value})


def test_names_of_bert_are_checked_like_those_that_they_stand_for(tmp_path):
    for value in (1.5, "0.1"):
        with pytest.raises(ValueError, match=f"^dropout={value!r} "):
            PARBertConfig(hidden_dropout_prob=value)
    PARBertConfig(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2).save_pretrained(tmp_path)
    loaded = PARBertConfig.from_pretrained(tmp_path, hidden_dropout_prob=0.4)
    assert (loaded.dropout, loaded.attention_dropout, loaded.hidden_dropout_prob) == (0.4, 0.2, 0.4)


def test_what_no_longer_fits_together_is_refused_when_it_is_saved_loaded_or_built(tmp_path):
    config = small(SandwichLMConfig)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    config.num_attention_heads = 5
    for use in (
        config.validate,
        lambda: config.save_pretrained(tmp_path),
        lambda: AutoModel.from_config(config),
        lambda: AutoModel.from_pretrained(tmp_path, num_attention_heads=5),
    ):
        with pytest.raises(ValueError, match=r"^hidden_size=32 is not a multiple of num_attention_heads=5; give"):
            use()


def test_orders_are_stored_in_their_canonical_form_however_they_come(tmp_path):
    config = SandwichLMConfig(sublayer_order="PAR(24, 5)")
    assert config.sublayer_order == par(24, 5)
    config.sublayer_order = "sandwich(16,6)"
    assert config.sublayer_order == sandwich(16, 6)
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path, sublayer_order="S⁶(sf)¹⁰F⁶").sublayer_order == "s6(sf)10f6"
    with pytest.raises(ValueError, match="never closed"):
        config.sublayer_order = "s(f"
    orders = ["interleaved(2,decoder=True)", "(CSF)x2"]
    assert IOTSeq2SeqConfig(decoder_orders=orders).decoder_orders == ["(scf)2", "(csf)2"]


VALUES = st.integers() | st.floats() | st.booleans() | st.none() | st.text(max_size=9) | st.text("sfc()26^", max_size=9)
VALUES |= st.sampled_from(["sf", "scf", "relu", "pre", "learned"]) | st.lists(VALUES, max_size=3)
VALUES |= st.dictionaries(st.sampled_from([*RopeParameters.__annotations__]), st.floats() | st.integers(0, 9))


@settings(max_examples=200)
@given(st.data())
def test_any_value_is_taken_or_refused_in_a_value_error(data):
    config_class = FAMILIES[data.draw(st.sampled_from([*FAMILIES]))][0]
    names = st.sampled_from(sorted(own_fields(config_class)))
    values = data.draw(st.dictionaries(names, VALUES, min_size=1, max_size=3))
    try:
        config = small(config_class, **values)
    except ValueError:
        return
    numbers = [value for value in config.to_dict().values() if isinstance(value, float)]
    assert all(0 <= number < math.inf for number in numbers)
    assert config_class(**config.to_dict()).to_dict() == config.to_dict()
