import json
import math

import pytest
import torch
from common import (
    ALL_FEED_FORWARD,
    ORDERS,
    REFERENCE,
    VOCAB,
    assert_same,
    gradients,
    randomize,
    tokens,
)
from common_causal_lm import CausalLMContract
from families import TODAY
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
)

from sublayers import (
    SandwichLMConfig,
    SandwichLMForCausalLM,
    SandwichLMForSequenceClassification,
    SandwichLMModel,
    expand,
    sandwich,
)
from sublayers.training.convert.language_models import from_fairseq_lm, from_gpt2


class TestSandwichLM(CausalLMContract):
    left_to_others = ("test_compiles_in_one_graph", "test_a_compiled_model_keeps_logits_by_a_mask")
    config_class = SandwichLMConfig
    todays_parts = TODAY
    classes = {
        AutoModel: SandwichLMModel,
        AutoModelForCausalLM: SandwichLMForCausalLM,
        AutoModelForSequenceClassification: SandwichLMForSequenceClassification,
    }

    @pytest.mark.parametrize("norm_position", ["pre", "post"])
    @pytest.mark.parametrize("final_norm", [True, False])
    @pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
    @pytest.mark.parametrize("scale", [True, False])
    def test_equals_a_naive_network_in_every_order(self, norm_position, final_norm, positions, scale):
        for order in (*ORDERS, ALL_FEED_FORWARD):
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

    def test_resizes_embeddings(self):
        for head in self.classes:
            model = self.model(head)
            before = model.get_input_embeddings()(torch.arange(VOCAB))
            model.resize_token_embeddings(VOCAB + 7, mean_resizing=False)
            assert model.config.vocab_size == VOCAB + 7
            assert torch.equal(model.get_input_embeddings()(torch.arange(VOCAB)), before)
            assert model(torch.full((1, 3), VOCAB + 6))[0].isfinite().all()

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

    @pytest.mark.full
    def test_compiles_in_one_graph(self):
        for head in self.classes:
            model = self.model(head).train()
            batch = {"input_ids": tokens(2, 9), "attention_mask": torch.ones(2, 9, dtype=torch.long)}
            if head is AutoModelForCausalLM:
                batch["labels"] = tokens(2, 9).where(tokens(2, 9) > 9, -100)
            expected = model(**batch)[0]
            expected.sum().backward()
            wanted = gradients(model)
            model.zero_grad()
            actual = torch.compile(model, fullgraph=True, backend="aot_eager")(**batch)[0]
            torch.testing.assert_close(actual, expected)
            actual.sum().backward()
            assert_same(gradients(model), wanted, atol=1e-5, rtol=1e-4)
            torch.compiler.reset()


def naive_logits(model, ids):
    """The network written out from its weights, position by position."""
    config, weights = model.config, dict(model.state_dict())
    size, heads = config.hidden_size, config.num_attention_heads

    def affine(x, name):
        return (weights[f"{name}.weight"] * x).sum(1) + weights[f"{name}.bias"]

    def norm(x, name):
        centred = x - x.mean()
        return centred / (centred.square().mean() + 1e-5).sqrt() * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def sinusoid(position):
        rates = [position / 10000 ** (i / (size // 2 - 1)) for i in range(size // 2)]
        return torch.tensor([math.sin(rate) for rate in rates] + [math.cos(rate) for rate in rates])

    states = []
    for i, token in enumerate(ids):
        state = weights["model.embed_tokens.weight"][token] * (math.sqrt(size) if config.scale_embedding else 1)
        learned = config.position_embedding_type == "learned"
        states.append(state + (weights["model.embed_positions.weight"][i + 3] if learned else sinusoid(i + 3)))
    for depth, letter in enumerate(expand(config.sublayer_order)):
        name = f"model.layers.{depth}"
        pre = config.norm_position == "pre"
        inputs = [norm(x, f"{name}.norm") for x in states] if pre else states
        if letter == "f":
            outputs = [affine(affine(x, f"{name}.mixer.fc1").relu(), f"{name}.mixer.fc2") for x in inputs]
        else:
            q, k, v = ([affine(x, f"{name}.mixer.{p}_proj").view(heads, -1) for x in inputs] for p in "qkv")
            outputs = []
            for i in range(len(ids)):
                mixed = []
                for h in range(heads):
                    scores = torch.stack([q[i][h] @ k[j][h] / math.sqrt(size // heads) for j in range(i + 1)])
                    mixed.append(sum(p * v[j][h] for j, p in enumerate(scores.softmax(0))))
                outputs.append(affine(torch.cat(mixed), f"{name}.mixer.o_proj"))
        states = [x + y for x, y in zip(states, outputs, strict=True)]
        if not pre:
            states = [norm(x, f"{name}.norm") for x in states]
    if config.final_norm:
        states = [norm(x, "model.norm") for x in states]
    return torch.stack(states) @ weights["lm_head.weight"].T


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


def test_interleaved_order_equals_gpt2():
    config = GPT2Config(vocab_size=61, n_positions=64, n_embd=32, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=2)
    gpt2 = randomize(GPT2LMHeadModel(config))
    model, _ = from_gpt2(gpt2)
    assert model.num_parameters() == gpt2.num_parameters()
    torch.testing.assert_close(model(tokens(3, 20)).logits, gpt2(tokens(3, 20)).logits, atol=1e-5, rtol=0)


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
