import math

import pytest
import torch
from common import VOCAB, WITH_MEMORY, assert_same, tokens
from common_naive import NaiveNetwork
from common_recurrent_lm import RecurrentLMContract
from safetensors.torch import load_file
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from sublayers import AUTO_CLASSES, PARTransformerXLConfig, PARTransformerXLForCausalLM, par
from sublayers.configuration.sublayer_cost import flops


class TestPARTransformerXL(RecurrentLMContract):
    left_to_others = ("test_a_compiled_model_keeps_logits_by_a_mask",)
    config_class = PARTransformerXLConfig
    classes = AUTO_CLASSES[PARTransformerXLConfig]
    length_field = "memory_length"

    def config(self, *orders, **overrides):
        return super().config(*orders, **{"adaptive_cutoffs": [20, 40]} | overrides)

    @pytest.mark.parametrize("norm_position", ["pre", "post", "both"])
    @pytest.mark.parametrize(
        "options",
        [{}, {"clamp_length": 3}, {"same_length": True, "memory_length": 5}, {"share_position_biases": False}],
    )
    def test_equals_a_naive_network_in_every_order(self, norm_position, options):
        for order in WITH_MEMORY:
            model = self.language_model(order, norm_position=norm_position, adaptive_cutoffs=None, **options)
            actual = model(tokens(1, 9)).logits[0]
            torch.testing.assert_close(actual, naive_log_probs(model, tokens(1, 9)[0]), atol=1e-5, rtol=1e-5)

    def test_resizes_embeddings(self, tmp_path):
        for head in self.classes:
            # the last one is reached only after
            for cutoffs in ([20, 40], None, [20, VOCAB + 3]):
                model = self.model(head, adaptive_cutoffs=cutoffs)
                before = model.get_input_embeddings()(torch.arange(VOCAB))
                model.resize_token_embeddings(VOCAB + 7, mean_resizing=False)
                assert model.config.vocab_size == VOCAB + 7
                assert torch.equal(model.get_input_embeddings()(torch.arange(VOCAB)), before)
                assert model(torch.full((1, 3), VOCAB + 6))[0].isfinite().all()
                model.save_pretrained(tmp_path / f"{head.__name__}-{cutoffs}")
                loaded = head.from_pretrained(tmp_path / f"{head.__name__}-{cutoffs}")
                assert_same(dict(loaded.named_parameters()), dict(model.named_parameters()), rtol=0, atol=0)

    @pytest.mark.parametrize("tied", [True, False])
    @pytest.mark.parametrize("sizes", [{}, {"embedding_size": 8}, {"adaptive_factor": 2}])
    def test_ties_the_output_to_the_embeddings_only_when_told(self, tied, sizes, tmp_path):
        model = self.model(AutoModelForCausalLM, tie_word_embeddings=tied, **sizes)
        model.save_pretrained(tmp_path)
        saved = load_file(tmp_path / "model.safetensors").keys()
        shared = {"lm_head.words", "lm_head.tails.0.table", "lm_head.tails.1.table"}
        # the first band's projections are two, as in the original
        shared |= {"lm_head.tails.0.projection", "lm_head.tails.1.projection"} if sizes else set()
        assert not shared & saved if tied else shared <= saved
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
        assert_same(dict(loaded.named_parameters()), dict(model.named_parameters()), rtol=0, atol=0)
        assert (loaded.lm_head.words is loaded.model.embed_tokens[0].table) == tied
        if sizes:
            owner = loaded.model.embed_tokens if "embedding_size" in sizes else loaded.model.embed_tokens[2]
            assert (loaded.lm_head.tails[1].projection is owner.projection) == tied

    @pytest.mark.parametrize("read", [5, 2])
    @torch.no_grad()
    def test_computes_what_its_order_costs(self, read):
        length, remembered = 5, 9
        for order in WITH_MEMORY:
            model = self.language_model(order, memory_length=remembered, adaptive_cutoffs=None)
            # products in oneDNN, and those in attention's kernel, are not counted
            model.set_attn_implementation("eager")
            onednn = torch.backends.mkldnn.set_flags(False)
            memory = model(tokens(1, remembered), memory=model.empty_memory(1)).memory
            with FlopCounterMode(display=False) as counter:
                model(tokens(1, length), memory=memory, logits_to_keep=read)
            torch.backends.mkldnn.set_flags(*onednn)
            size = model.config.hidden_size
            expected = flops(order, size, model.config.intermediate_size, length, read, memory_length=remembered)
            # the output, and a distance that nobody reads, mapped and scored
            expected += 2 * (read * size * VOCAB + model.config.num_hidden_layers * (size + length) * size)
            assert counter.get_total_flops() == expected

    def test_few_queries_score_distances_as_many_do(self):
        attention = self.language_model("s").model.layers[0].mixer
        queries, distances = torch.randn(1, 4, 9, 4), torch.randn(20, 16)
        many = attention.score_distances(queries, distances)
        for i in range(9):
            few = attention.score_distances(queries[:, :, i : i + 1], distances)
            torch.testing.assert_close(few, many[:, :, i : i + 1], atol=1e-5, rtol=1e-5)

    def test_few_queries_ask_what_adapts_the_map_of_distances(self):
        class Doubled(torch.nn.Linear):
            def forward(self, states):
                return 2 * super().forward(states)

        attention = self.language_model("s").model.layers[0].mixer
        query, distances = torch.randn(1, 4, 1, 4), torch.randn(20, 16)
        plain = attention.score_distances(query, distances)
        adapted = Doubled(16, 16, bias=False)
        adapted.load_state_dict(attention.r_proj.state_dict())
        attention.r_proj = adapted
        torch.testing.assert_close(attention.score_distances(query, distances), 2 * plain, atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize("clamp_length", [0, 3, 12, 100])
    def test_clamped_distances_are_computed_once_and_read_everywhere(self, clamp_length):
        model = self.language_model("sfs", clamp_length=clamp_length)
        memory = model(tokens(2, 8), memory=model.empty_memory(2)).memory
        assert len(model.model.positions(12, 13, memory[0])) == min(13, clamp_length + 1)
        # in training mode, without dropout, each distance has its own row
        for length in (5, 1):
            evaluated = model.eval()(tokens(2, length), memory=memory).logits
            trained = model.train()(tokens(2, length), memory=memory).logits
            torch.testing.assert_close(evaluated, trained, atol=1e-5, rtol=1e-5)


class NaiveTransformerXL(NaiveNetwork):
    def seen(self, inputs, i):
        return inputs[max(0, i + 1 - self.config.memory_length) : i + 1] if self.config.same_length else inputs[: i + 1]

    def score(self, query, key, head, distance, name):
        config, size = self.config, self.config.hidden_size
        distance = distance if config.clamp_length is None else min(distance, config.clamp_length)
        rates = [distance / 10000 ** (2 * i / size) for i in range(size // 2)]
        place = torch.tensor([math.sin(rate) for rate in rates] + [math.cos(rate) for rate in rates])
        place = self.affine(place, f"{name}.mixer.r_proj").view(self.heads, -1)[head]
        owner = "model.positions" if config.share_position_biases else f"{name}.mixer"
        content, position = (self.weights[f"{owner}.{kind}_bias"][head] for kind in ("content", "position"))
        return (query[head] + content) @ key[head] + (query[head] + position) @ place


def naive_log_probs(model, ids):
    """What a model of one band scores."""
    naive = NaiveTransformerXL(model)
    states = [naive.weights["model.embed_tokens.0.table"][token] * math.sqrt(model.config.hidden_size) for token in ids]
    states = naive.run("model", states, model.config.sublayer_order, is_causal=True)
    return (torch.stack(states) @ naive.weights["lm_head.words"].T + naive.weights["lm_head.bias"]).log_softmax(-1)


@pytest.mark.parametrize(("order", "parameters"), [("(sf)16", 191_950_298), (par(32, 5), 199_840_218)])
def test_defaults_are_the_base_model_of_the_paper(order, parameters):
    with torch.device("meta"):
        model = PARTransformerXLForCausalLM(PARTransformerXLConfig(sublayer_order=order))
    assert model.num_parameters() == parameters
    assert PARTransformerXLConfig().sublayer_order == par(32, 5)


def test_refuses_bands_and_sinusoids_that_cannot_be_divided():
    with pytest.raises(ValueError, match=r"embedding_size=100 cannot be divided by adaptive_factor=4"):
        PARTransformerXLConfig(embedding_size=100, adaptive_factor=4)
    with pytest.raises(ValueError, match=r"hidden_size=15 is odd, but half of it is for sines"):
        PARTransformerXLConfig(hidden_size=15, num_attention_heads=3)
    with pytest.raises(ValueError, match=r"adaptive_cutoffs=\[20, 10\] must increase"):
        PARTransformerXLConfig(adaptive_cutoffs=[20, 10])
