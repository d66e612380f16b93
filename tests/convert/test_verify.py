"""What a conversion gets wrong about masks is found when it is verified."""

from dataclasses import replace
from functools import wraps

import pytest
import torch
from common_convert import convert, make

from sublayers import optimize
from sublayers.convert import decoders, sources
from sublayers.convert.verify import compare, draw
from sublayers.modeling.mixers.attention import SelfAttention
from sublayers.modeling.mixers.local_attention import LocalAttention
from sublayers.modeling.modeling_sandwich_lm import SandwichLMForCausalLM
from sublayers.modeling.modeling_sandwich_seq2seq import SandwichSeq2SeqForConditionalGeneration

OPTIONS = {
    "MistralForCausalLM": {"num_key_value_heads": 2, "sliding_window": 4},
    "StableLmForCausalLM": {"num_key_value_heads": 2, "is_causal": False},
}
WRONG = "differs from the source's by .* of its size; nothing is kept"


@pytest.fixture
def verify(tmp_path):
    """Convert a model of random weights with --verify."""

    def verify_it(name):
        make(name, **OPTIONS.get(name, {})).save_pretrained(tmp_path / "source")
        convert(tmp_path, "--verify")

    return verify_it


def test_an_option_that_only_padding_shows_is_found(verify, monkeypatch):
    with pytest.raises(ValueError, match="is_causal=False cannot be converted"):
        verify("StableLmForCausalLM")
    # as if nobody had read the option, which transformers obeys in padded rows alone
    monkeypatch.setattr(sources, "check_is_causal", lambda config: True)
    monkeypatch.setattr(decoders, "is_causal", lambda config: True)
    with pytest.raises(ValueError, match=WRONG):
        verify("StableLmForCausalLM")


def without_gaps(mask):
    """Hide only what lies outside of a text."""
    return ((mask.cumsum(-1) > 0) & (mask.flip(-1).cumsum(-1).flip(-1) > 0)).long()


MASKS = {
    "BertModel": SelfAttention,
    "ModernBertModel": LocalAttention,
    "GPT2LMHeadModel": SelfAttention,
    "LlamaForSequenceClassification": SelfAttention,
    "MistralForCausalLM": LocalAttention,
}


@pytest.mark.parametrize("hide", [without_gaps, torch.ones_like], ids=["gaps", "all"])
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_that_shows_padding_is_found(name, hide, verify, monkeypatch):
    right = MASKS[name].make_mask

    def wrong(mixer, batch):
        return right(mixer, replace(batch, attention_mask=hide(batch.attention_mask)))

    monkeypatch.setattr(MASKS[name], "make_mask", wrong)
    with pytest.raises(ValueError, match=WRONG):
        verify(name)


@pytest.mark.parametrize("side", ["attention_mask", "decoder_attention_mask"])
def test_a_mask_of_either_side_that_is_not_read_is_found(side, verify, monkeypatch):
    model_class = SandwichSeq2SeqForConditionalGeneration
    forward = model_class.forward
    monkeypatch.setattr(model_class, "forward", lambda self, **inputs: forward(self, **inputs | {side: None}))
    with pytest.raises(ValueError, match=WRONG):
        verify("BartForConditionalGeneration")


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_a_cache_that_is_swallowed_is_found(name, verify, monkeypatch):
    forward = SandwichLMForCausalLM.forward

    @wraps(forward)
    def wrong(model, attention_mask=None, cache=None, **inputs):
        # as if generation gave the cache another name, which nobody reads
        return forward(model, attention_mask=attention_mask if cache is None else None, **inputs)

    monkeypatch.setattr(SandwichLMForCausalLM, "forward", wrong)
    with pytest.raises(ValueError, match=f"the score of a generated token {WRONG}"):
        verify(name)


def test_beams_that_read_the_past_of_others_are_found(verify, monkeypatch):
    monkeypatch.setattr(SandwichSeq2SeqForConditionalGeneration, "_reorder_cache", lambda self, cache, index: cache)
    with pytest.raises(ValueError, match=f"the score of beams {WRONG}"):
        verify("BartForConditionalGeneration")


def test_settings_of_generation_that_are_lost_are_found():
    source = make("LlamaForCausalLM", num_key_value_heads=2)
    model = optimize(source, verify=True)
    source.generation_config.repetition_penalty = 2.0
    with pytest.raises(ValueError, match=f"the score of a generated token {WRONG}"):
        compare(model, source)


def test_padding_inside_of_a_text_is_a_position_only_of_the_source(tmp_path):
    source = make("BartForConditionalGeneration")
    source.save_pretrained(tmp_path / "source")
    convert(tmp_path)
    model = SandwichSeq2SeqForConditionalGeneration.from_pretrained(tmp_path / "ours")
    inputs = draw(model, source)
    masks = [name for name in inputs if name.endswith("attention_mask")]
    for name in masks:
        inputs[name] = torch.arange(inputs[name].shape[-1]).ne(3).long().expand_as(inputs[name])
    assert compare(model, source, inputs) < 1e-4
