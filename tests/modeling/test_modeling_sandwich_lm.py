import json

import pytest
import torch
from common import (
    ALL_FEED_FORWARD,
    REFERENCE,
    assert_same,
    tokens,
)
from common_causal_lm import CausalLMContract
from common_naive import NaiveNetwork
from families import TODAY
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
)

from sublayers import (
    SandwichLMConfig,
    SandwichLMForCausalLM,
    SandwichLMForSequenceClassification,
    SandwichLMModel,
    expand,
    sandwich,
)
from sublayers.convert.language_models import from_fairseq_lm


class TestSandwichLM(CausalLMContract):
    left_to_others = ("test_compiles_in_one_graph", "test_a_compiled_model_keeps_logits_by_a_mask")
    config_class = SandwichLMConfig
    todays_parts = TODAY
    classes = {
        AutoModel: SandwichLMModel,
        AutoModelForCausalLM: SandwichLMForCausalLM,
        AutoModelForSequenceClassification: SandwichLMForSequenceClassification,
    }

    @pytest.mark.parametrize("norm_position", ["pre", "post", "both"])
    @pytest.mark.parametrize("final_norm", [True, False])
    @pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
    @pytest.mark.parametrize("scale", [True, False])
    def test_equals_a_naive_network_in_every_order(self, norm_position, final_norm, positions, scale):
        for order in (*self.attentive, ALL_FEED_FORWARD):
            model = self.language_model(
                order,
                norm_position=norm_position,
                final_norm=final_norm,
                position_embedding_type=positions,
                scale_embedding=scale,
                position_offset=3,
            )
            torch.testing.assert_close(
                model(tokens(1, 9)).logits[0], naive_logits(model, tokens(1, 9)[0]), atol=1e-5, rtol=1e-5
            )


@pytest.mark.slow
class TestAdaptiveSandwichLM(CausalLMContract):
    is_sibling = True
    config_class = SandwichLMConfig
    classes = TestSandwichLM.classes

    def config(self, *orders, **overrides):
        adaptive = {"adaptive_cutoffs": [20, 40], "adaptive_factor": 2, "adaptive_softmax_dropout": 0.0}
        return super().config(*orders, **adaptive | overrides)

    @pytest.mark.parametrize("tied", [True, False])
    def test_ties_the_output_to_the_embeddings_only_when_told(self, tied, tmp_path):
        model = self.model(AutoModelForCausalLM, tie_word_embeddings=tied)
        model.save_pretrained(tmp_path)
        saved = load_file(tmp_path / "model.safetensors").keys()
        # the vectors of the other bands themselves are nobody's but the head's
        own = {name for name in saved if name.startswith("lm_head")} - {"lm_head.bands.weight"}
        tails = {f"lm_head.tails.{i}.{name}" for i in (0, 1) for name in ("table", "projection")}
        assert own == (set() if tied else {"lm_head.words"} | tails)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
        assert_same(dict(loaded.named_parameters()), dict(model.named_parameters()), rtol=0, atol=0)
        for band, tail in enumerate(loaded.lm_head.tails, start=1):
            embedded = loaded.model.embed_tokens[band]
            assert (tail.table is embedded.table) == (tail.projection is embedded.projection) == tied
        assert (loaded.lm_head.words is loaded.model.embed_tokens[0].table) == tied


def naive_logits(model, ids):
    naive = NaiveNetwork(model)
    states = [naive.embed("model", i, token) for i, token in enumerate(ids)]
    states = naive.run("model", states, model.config.sublayer_order, is_causal=True)
    return torch.stack(states) @ naive.weights["lm_head.weight"].T


def test_defaults_are_the_books_model_of_the_paper():
    config = SandwichLMConfig()
    assert config.sublayer_order == sandwich(16, 6)
    with torch.device("meta"):
        model = SandwichLMForCausalLM(config)
    # 28,996 cased word pieces tied to the output, 16 + 16 sublayers with biases: 231.2 million
    assert model.num_parameters() == 231_231_488
    assert (config.num_hidden_layers, config.num_sublayers) == (16, 32)


def test_starts_with_a_residual_stream_that_no_depth_blows_up():
    torch.manual_seed(0)
    sizes = {"vocab_size": 500, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    for order in ("(sf)2", "(sf)32"):
        model = SandwichLMModel(SandwichLMConfig(sublayer_order=order, **sizes)).eval()
        # scaled by sqrt(hidden), embeddings are as large as the sinusoids
        assert model.embed_tokens.weight.std().item() * 8 == pytest.approx(1, abs=0.05)
        outputs = model.layers[0].mixer.o_proj.weight.std().item() * len(expand(order)) ** 0.5
        assert outputs == pytest.approx(model.layers[0].mixer.q_proj.weight.std().item(), rel=0.1)


@pytest.mark.parametrize("name", ["interleaved", "sandwich_n4k1", "sandwich_n4k2", "sandwich_n4k3", "random"])
def test_equals_the_fairseq_language_model(name):
    fixture = REFERENCE / "sandwich" / "lm_tied_noadaptive"
    meta = json.loads(fixture.with_suffix(".json").read_text())
    model, _ = from_fairseq_lm(
        load_file(f"{fixture}.weights.safetensors"),
        num_attention_heads=meta["args"]["decoder_attention_heads"],
        options={"max_target_positions": 64},
        sublayer_order=meta["patterns"][name],
    )
    io = load_file(f"{fixture}.io.safetensors")
    logits = model(io["src_tokens"]).logits
    torch.testing.assert_close(logits, io[f"{name}.output"], atol=1e-5, rtol=0)
    nll = -logits.log_softmax(-1).gather(-1, io["target"][..., None])[..., 0]
    torch.testing.assert_close(nll, io[f"{name}.nll"], atol=1e-5, rtol=0)
