import math

import pytest
import torch
from common import VOCAB, assert_same, tokens
from common_naive import NaiveNetwork
from families import ROWS, WITH_MEMORY
from torch.utils.flop_counter import FlopCounterMode

from sublayers.configuration.sublayer_cost import flops

ROW = ROWS["par_transformer_xl"]


@pytest.mark.parametrize("norm_position", ["pre", "post", "both"])
@pytest.mark.parametrize(
    "options",
    [{}, {"clamp_length": 3}, {"same_length": True, "memory_length": 5}, {"share_position_biases": False}],
)
def test_equals_a_naive_network_in_every_order(norm_position, options):
    for order in WITH_MEMORY:
        model = ROW.main(*order, norm_position=norm_position, adaptive_cutoffs=None, **options)
        actual = model(tokens(1, 9)).logits[0]
        torch.testing.assert_close(actual, naive_log_probs(model, tokens(1, 9)[0]), atol=1e-5, rtol=1e-5)


def test_resizes_embeddings(tmp_path):
    for head in ROW.heads:
        # the last one is reached only after
        for cutoffs in ([20, 40], None, [20, VOCAB + 3]):
            model = ROW.build(head, adaptive_cutoffs=cutoffs)
            before = model.get_input_embeddings()(torch.arange(VOCAB))
            model.resize_token_embeddings(VOCAB + 7, mean_resizing=False)
            assert model.config.vocab_size == VOCAB + 7
            assert torch.equal(model.get_input_embeddings()(torch.arange(VOCAB)), before)
            assert model(torch.full((1, 3), VOCAB + 6))[0].isfinite().all()
            model.save_pretrained(tmp_path / f"{head.__name__}-{cutoffs}")
            loaded = head.from_pretrained(tmp_path / f"{head.__name__}-{cutoffs}")
            assert_same(dict(loaded.named_parameters()), dict(model.named_parameters()), rtol=0, atol=0)


@pytest.mark.parametrize("read", [5, 2])
@torch.no_grad()
def test_computes_what_its_order_costs(read):
    length, remembered = 5, 9
    for order in WITH_MEMORY:
        model = ROW.main(*order, memory_length=remembered, adaptive_cutoffs=None)
        # products in oneDNN, and those in attention's kernel, are not counted
        model.set_attn_implementation("eager")
        onednn = torch.backends.mkldnn.set_flags(False)
        memory = model(tokens(1, remembered), memory=model.empty_memory(1)).memory
        with FlopCounterMode(display=False) as counter:
            model(tokens(1, length), memory=memory, logits_to_keep=read)
        torch.backends.mkldnn.set_flags(*onednn)
        size = model.config.hidden_size
        expected = flops(*order, size, model.config.intermediate_size, length, read, memory_length=remembered)
        # the output, and a distance that nobody reads, mapped and scored
        expected += 2 * (read * size * VOCAB + model.config.num_hidden_layers * (size + length) * size)
        assert counter.get_total_flops() == expected


def test_few_queries_score_distances_as_many_do():
    attention = ROW.main("s").model.layers[0].mixer
    queries, distances = torch.randn(1, 4, 9, 4), torch.randn(20, 16)
    many = attention.score_distances(queries, distances)
    for i in range(9):
        few = attention.score_distances(queries[:, :, i : i + 1], distances)
        torch.testing.assert_close(few, many[:, :, i : i + 1], atol=1e-5, rtol=1e-5)


def test_few_queries_ask_what_adapts_the_map_of_distances():
    class Doubled(torch.nn.Linear):
        def forward(self, states):
            return 2 * super().forward(states)

    attention = ROW.main("s").model.layers[0].mixer
    query, distances = torch.randn(1, 4, 1, 4), torch.randn(20, 16)
    plain = attention.score_distances(query, distances)
    adapted = Doubled(16, 16, bias=False)
    adapted.load_state_dict(attention.r_proj.state_dict())
    attention.r_proj = adapted
    torch.testing.assert_close(attention.score_distances(query, distances), 2 * plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("clamp_length", [0, 3, 12, 100])
def test_clamped_distances_are_computed_once_and_read_everywhere(clamp_length):
    model = ROW.main("sfs", clamp_length=clamp_length)
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
