from importlib.util import find_spec

import pytest
import torch

from sublayers.configuration.letters.recurrence import shape
from sublayers.training.lab.bench import contenders, lm

needs_peer = pytest.mark.skipif(find_spec("x_transformers") is None, reason="x-transformers is not installed")


@pytest.fixture
def models(tiny):
    return lambda *orders: lm.language_models(tiny(orders=orders, peer="gpt2", prompt_length=4)).values()


def test_interleaved_is_gpt2(models):
    gpt2, ours, sandwich, *_ = models("(sf)2", "s2f2")
    assert not any(m.p for model in (gpt2, ours, sandwich) for m in model.modules() if isinstance(m, torch.nn.Dropout))
    ids = torch.randint(50, (2, 12))
    torch.testing.assert_close(ours.train()(ids).logits, gpt2.train()(ids).logits, atol=1e-5, rtol=0)


@needs_peer
def test_peer_has_the_same_sizes_but_for_biases(models):
    _, ours, peer = models("s2f2")
    kinds = [sorted(p.numel() for p in model.parameters() if p.ndim == 2) for model in (ours, peer)]
    assert kinds[0] == kinds[1]
    assert [layer[1].__class__.__name__ for layer in peer.net.attn_layers.layers] == [
        {"s": "Attention", "f": "FeedForward"}[letter] for letter in "ssff"
    ]
    assert not any(m.p for m in peer.modules() if isinstance(m, torch.nn.Dropout))


@needs_peer
def test_the_peer_runs_orders_of_its_own_letters_only(tiny):
    found = lm.language_models(tiny(orders=["sfmf", "s2f2"], peer="gpt2", prompt_length=4))
    assert [*found] == ["GPT-2", "sublayers sfmf", "sublayers s2f2", "x-transformers s2f2"]


@needs_peer
def test_tasks_of_the_peer_do_the_same(models):
    _, ours, peer = models("(sf)2")
    ids = torch.randint(50, (2, 12))
    for make, model in ((lm.transformers_calls, ours), (lm.x_transformers_calls, peer)):
        calls = make(model.eval(), ids)
        logits = calls["forward"]()
        assert logits.shape == (2, 12, 50)
        expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        torch.testing.assert_close(calls["train step"](), expected)
        assert [tensor.shape for tensor in calls["prefill"]()] == [(2, 2, 12, 8)] * 4
        # x-transformers leaves the prompt out
        assert contenders.decode(model, ids[:, :4], 3).shape[1] == (7 if model is ours else 3)


def test_any_letter_runs_and_its_states_count(tiny):
    found = lm.language_models(tiny(orders=["rgesw"], peer="gpt2", prompt_length=4, recurrence="gated_delta"))
    ours = found["sublayers rgesw"].eval()
    assert ours.config.recurrence == "gated_delta"
    prefill = lm.transformers_calls(ours, torch.randint(50, (2, 12)))["prefill"]
    states = [tuple(tensor.shape) for tensor in prefill() if tensor.ndim < 4 or tensor.shape[2] != 12]
    sizes, width = shape(ours.config.sizes), ours.config.hidden_size
    matrix = (2, sizes.heads, sizes.state_size, sizes.head_dim)
    # a cache keeps as many tokens as a window may need beside the next one
    assert {(2, sizes.channels, sizes.conv_kernel - 1), matrix, (2, width, 2), (2, 2, 3, 8)} <= {*states}
