"""What a conversion gets wrong about masks is found when it is verified."""

from dataclasses import replace

import pytest
import torch
import transformers
from common import randomize
from transformers import (
    BartConfig,
    BertConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    ModernBertConfig,
    StableLmConfig,
)

from sublayers.modeling.attention import SelfAttention
from sublayers.modeling.local_attention import LocalAttention
from sublayers.modeling.modeling_sandwich_seq2seq import SandwichSeq2SeqForConditionalGeneration
from sublayers.training.commands.convert import main
from sublayers.training.convert import decoders, sources

SIZES = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4}
SIZES |= {"num_hidden_layers": 2, "max_position_embeddings": 64}
SIZES |= {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
SEQ2SEQ = {"vocab_size": 61, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 32}
SEQ2SEQ |= {f"{side}_{name}": 4 for side in ("encoder", "decoder") for name in ("attention_heads", "ffn_dim")}
CONFIGS = {
    "BertModel": BertConfig(**SIZES),
    "GPT2LMHeadModel": GPT2Config(vocab_size=61, n_positions=32, n_embd=16, n_layer=2, n_head=4),
    # whose end of a row is its last token
    "GPT2ForSequenceClassification": GPT2Config(vocab_size=61, n_positions=32, n_embd=16, n_layer=2, n_head=4),
    "LlamaForCausalLM": LlamaConfig(**SIZES),
    "LlamaForSequenceClassification": LlamaConfig(**SIZES),
    "MistralForCausalLM": MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=4),
    "ModernBertModel": ModernBertConfig(**SIZES, cls_token_id=0, sep_token_id=2, local_attention=8),
    "BartForConditionalGeneration": BartConfig(**SEQ2SEQ),
    "StableLmForCausalLM": StableLmConfig(**SIZES, num_key_value_heads=2, partial_rotary_factor=0.5, is_causal=False),
}
WRONG = "differs from the source's by .* of its size; nothing is kept"


@pytest.fixture
def verify(tmp_path):
    """Convert a model of random weights with --verify."""

    def verify_it(name):
        randomize(getattr(transformers, name)(CONFIGS[name])).save_pretrained(tmp_path / "source")
        main([str(tmp_path / "source"), str(tmp_path / "ours"), "--verify"])

    return verify_it


@pytest.mark.parametrize("name", [name for name in CONFIGS if "StableLm" not in name])
def test_what_is_right_is_kept(name, verify, tmp_path):
    verify(name)
    assert (tmp_path / "ours").exists()


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
