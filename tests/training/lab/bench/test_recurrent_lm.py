from importlib.util import find_spec

import pytest
import torch

from sublayers.configuration.sublayer_cost import flops
from sublayers.training.lab.bench import contenders, recurrent_lm

ORDER = "(sff)2f4"
needs_peer = pytest.mark.skipif(find_spec("x_transformers") is None, reason="x-transformers is not installed")


@pytest.fixture
def models(tiny):
    args = tiny(layers=5, length=6, memory_length=12, orders=[ORDER])
    return [*recurrent_lm.language_models(args).values()]


@needs_peer
def test_peer_has_the_same_matrices_but_for_distances(models):
    ours, peer = models
    sizes = [
        sorted(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and p.shape[0] > 2 and accept(name))
        for model, accept in (
            (ours, lambda name: "r_proj" not in name),
            (peer, lambda name: "relative_attention_bias" not in name),
        )
    ]
    assert sizes[0] == sizes[1]
    assert not any(m.p for model in (ours, peer) for m in model.modules() if isinstance(m, torch.nn.Dropout))


@needs_peer
@torch.no_grad()
def test_tasks_of_the_peer_do_the_same(models):
    past, ids = torch.randint(50, (2, 12)), torch.randint(50, (2, 7))
    ours, peer = models
    for make, model in ((recurrent_lm.our_calls, ours), (recurrent_lm.x_transformers_calls, peer)):
        recurrent_lm.remember(model.eval(), 12, None)
        calls = make(model, past, ids)
        logits = calls["score with memory"]()
        assert logits.shape == (2, 6, 50)
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        torch.testing.assert_close(calls["loss"](), expected)
        # memory is read
        assert not torch.equal(logits, make(model, past.flip(1), ids)["score with memory"]())
        assert [states.shape for states in calls["memory"]()] == [(2, 12, 16)] * 2
        assert contenders.decode(model, past, 3).shape[1] == (15 if model is ours else 3)


@torch.no_grad()
def test_a_cache_scores_as_memory_does_and_stays_as_long_as_it_is(models):
    model = models[0]
    recurrent_lm.remember(model.eval(), 12, None)
    calls = recurrent_lm.our_calls(model, torch.randint(50, (2, 12)), torch.randint(50, (2, 7)))
    torch.testing.assert_close(calls["score with cache"](), calls["score with memory"](), atol=1e-5, rtol=1e-5)
    counted = [contenders.gigaflops(calls["score with cache"]) for _ in range(2)]
    assert counted[0] == counted[1]


@torch.no_grad()
def test_counts_what_the_order_says_and_less_where_distances_are_clamped(models):
    model = models[0]
    past, ids = torch.randint(50, (1, 12)), torch.randint(50, (1, 7))
    counted = {}
    for clamp_length in (None, 8):
        recurrent_lm.remember(model.eval(), 12, clamp_length)
        call = recurrent_lm.our_calls(model, past, ids)["score with memory"]
        counted[clamp_length] = contenders.gigaflops(call) * 1e9
    # keys are 18, and there are distances of 0 to 17
    head = 2 * 6 * 16 * 50
    expected = flops(ORDER, 16, 64, 6, 6, memory_length=12) + head
    assert counted[8] < counted[None] == pytest.approx(expected, rel=0.2)


def test_the_default_orders_are_the_interleaved_one_and_pars(tiny):
    assert recurrent_lm.default_orders(tiny(layers=16)) == ["(sf)16", "(sfff)6f8"]
