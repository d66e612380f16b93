"""Today's parts equal those of transformers' models of the same weights, where no other test has them."""

import pytest
import torch
from common import randomize, tokens
from torch import nn
from transformers import Gemma2Config, ModernBertConfig, ModernBertModel
from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention

from sublayers import SandwichLMConfig
from sublayers.modeling.attention import SelfAttention
from sublayers.training.convert.modern_bert import from_modern_bert

# of all sources, and what is called otherwise here
SIZES = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
SIZES |= {"max_position_embeddings": 64, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
NO_DROPOUT = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
PARTS = {"position_embedding_type": "rotary", "gated_feed_forward": True, "hidden_act": "silu", "final_norm": True}
PARTS |= dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias", "scale_embedding"), False)


@pytest.mark.parametrize("backend", ["eager", "flex_attention"])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_caps_of_attention(backend):
    options = {"attn_logit_softcapping": 2.0, "num_key_value_heads": 2, "head_dim": 16}
    theirs = Gemma2Config(**SIZES, **options, query_pre_attn_scalar=16, num_hidden_layers=1)
    theirs._attn_implementation = "eager"
    source = Gemma2Attention(theirs, layer_idx=0).eval()
    ours = SandwichLMConfig(**{**SIZES, **NO_DROPOUT, **PARTS, **options, "position_embedding_type": "none"})
    ours._attn_implementation = backend
    attention = SelfAttention(ours, 0, is_causal=False).eval()
    for parameter in source.parameters():
        nn.init.normal_(parameter)
    attention.load_state_dict(source.state_dict())
    states, still = torch.randn(2, 7, 32), (torch.ones(1, 7, 16), torch.zeros(1, 7, 16))
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        wanted, _ = source(states, still, None)
        found, _ = attention(states)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-5)


def test_a_modern_bert_of_global_attention():
    options = SIZES | {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3, "norm_eps": 1e-5}
    options |= {"cls_token_id": 0, "sep_token_id": 2}
    source = randomize(ModernBertModel(ModernBertConfig(**options)))
    model, _ = from_modern_bert(source)
    assert model.config.sublayer_order == "(sf)3"
    ids, mask = tokens(3, 20), torch.ones(3, 20, dtype=torch.long)
    mask[1, :6] = mask[2, -5:] = 0
    with torch.no_grad():
        wanted = source(ids, attention_mask=mask).last_hidden_state
        found = model(ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(found[mask.bool()], wanted[mask.bool()], atol=1e-5, rtol=1e-5)
