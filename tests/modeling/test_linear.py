import copy
import gc
import pickle
from collections.abc import Callable

import pytest
import torch
from families import build, every_family
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModel

from sublayers.modeling import linear
from sublayers.modeling.linear import run_in_onednn
from sublayers.modeling.order_choice import OrderPredictor

# where torch is built without oneDNN, every map runs as torch has it
needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")


@pytest.fixture(autouse=True)
def gains(monkeypatch):
    monkeypatch.setattr(linear, "fastest", lambda *_, prepacks=False: "prepacked" if prepacks else "onednn")


def onednn_linear(*sizes, **options) -> nn.Linear:
    layer = nn.Linear(*sizes, **options)
    run_in_onednn(layer)
    return layer


def products(layer: Callable[[torch.Tensor], torch.Tensor], states: torch.Tensor) -> list[str]:
    """The names of the matrix products that a call runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        layer(states)
    names = {event.name for event in profiler.events()}
    return sorted(names & {"mkldnn::_linear_pointwise", "aten::addmm", "aten::mm", "aten::linear"})


@needs_onednn
@pytest.mark.parametrize("shape", [(1, 1, 24), (3, 5, 24), (7, 24), (2, 0, 24)])
@pytest.mark.parametrize("bias", [True, False])
def test_output_and_gradients_equal_those_of_torch(shape, bias):
    layer = onednn_linear(24, 40, bias=bias)
    reference = nn.Linear(24, 40, bias=bias).double()
    reference.load_state_dict(layer.state_dict())
    states = torch.randn(shape, requires_grad=True)
    wide = states.detach().double().requires_grad_()
    weights = torch.randn(*shape[:-1], 40)
    (layer(states) * weights).sum().backward()
    (reference(wide) * weights.double()).sum().backward()
    torch.testing.assert_close(layer(states).double(), reference(wide), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(states.grad.double(), wide.grad, atol=1e-5, rtol=1e-5)
    for ours, theirs in zip(layer.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.double(), theirs.grad, atol=1e-5, rtol=1e-5)


@needs_onednn
@pytest.mark.parametrize("gain", [True, False])
def test_bare_parameters_are_multiplied_as_maps_are(gain, monkeypatch):
    monkeypatch.setattr(linear, "fastest", lambda *_: "onednn" if gain else "torch")
    layer, states = nn.Linear(24, 40), torch.randn(3, 24, requires_grad=True)
    expected = layer(states)
    grads = torch.autograd.grad(expected.sum(), [states, *layer.parameters()])

    def call(states):
        return linear.linear(states, layer.weight, layer.bias)

    torch.testing.assert_close(call(states), expected, atol=1e-5, rtol=1e-5)
    for grad, known in zip(torch.autograd.grad(call(states).sum(), [states, *layer.parameters()]), grads, strict=True):
        torch.testing.assert_close(grad, known, atol=1e-5, rtol=1e-5)
    assert ("mkldnn::_linear_pointwise" in products(call, states)) == gain


@needs_onednn
def test_takes_views_and_frozen_weights():
    layer = onednn_linear(8, 6).requires_grad_(False)
    base = torch.randn(5, 16, requires_grad=True)
    view = base[:, ::2]
    layer(view).sum().backward()
    expected = torch.zeros(5, 16)
    expected[:, ::2] = layer.weight.sum(0)
    torch.testing.assert_close(base.grad, expected)
    assert layer.weight.grad is None


@needs_onednn
def test_runs_in_onednn_only_where_that_is_right(monkeypatch):
    layer, states = onednn_linear(8, 8), torch.randn(2, 8)
    assert products(layer, states) == ["mkldnn::_linear_pointwise"]
    with torch.no_grad():
        assert products(layer, states) == ["mkldnn::_linear_pointwise"]
        torch.testing.assert_close(layer(states), nn.functional.linear(states, layer.weight, layer.bias))
    assert "mkldnn::_linear_pointwise" not in products(copy.deepcopy(layer).double(), states.double())
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(states).dtype == torch.bfloat16
    torch.backends.mkldnn.set_flags(False)
    try:
        assert "mkldnn::_linear_pointwise" not in products(layer, states)
    finally:
        torch.backends.mkldnn.set_flags(True)


def prepacked_linear(*sizes) -> nn.Linear:
    layer = nn.Linear(*sizes)
    run_in_onednn(layer, prepacks=True)
    return layer


def assert_reads_its_weight(layer, states):
    torch.testing.assert_close(layer(states), nn.functional.linear(states, layer.weight, layer.bias))


CHANGES = {
    "in place": lambda layer: layer.weight.mul_(2),
    "loaded": lambda layer: layer.load_state_dict(nn.Linear(24, 40).state_dict()),
    "assigned": lambda layer: setattr(layer, "weight", nn.Parameter(torch.randn(40, 24))),
    "other memory": lambda layer: setattr(layer.weight, "data", torch.randn(40, 24)),
    "a step": lambda layer: torch.optim.SGD([layer.weight], 1.0).step(),
    "moved": lambda layer: layer.double().float().weight.add_(1),
}


@needs_onednn
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_prepacked_weights_follow_the_weights(change, mode):
    layer, states = prepacked_linear(24, 40), torch.randn(3, 5, 24)
    with mode():
        assert_reads_its_weight(layer, states)
        first = linear.prepacked(layer)
        assert linear.prepacked(layer) is first
    layer.weight.grad = torch.ones_like(layer.weight)
    with torch.no_grad():
        CHANGES[change](layer)
    with mode():
        assert_reads_its_weight(layer, states)
        assert linear.prepacked(layer) is not first


@needs_onednn
def test_prepacked_weights_go_with_their_map_and_are_not_copied():
    layer, states = prepacked_linear(24, 40), torch.randn(3, 24)
    gc.collect()
    before = len(linear.PREPACKED)
    with torch.no_grad():
        layer(states)
        assert len(linear.PREPACKED) == before + 1
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            other.weight.zero_()
            assert_reads_its_weight(other, states)
            assert_reads_its_weight(layer, states)
        del other, layer
    gc.collect()
    assert len(linear.PREPACKED) == before


@needs_onednn
def test_gradients_and_other_types_need_no_prepacked_weight():
    layer, states = prepacked_linear(24, 40), torch.randn(3, 24)
    layer(states).sum().backward()
    torch.testing.assert_close(layer.weight.grad, states.sum(0).expand(40, -1))
    with torch.inference_mode():
        made = prepacked_linear(24, 40)
        assert_reads_its_weight(made, states)
        assert_reads_its_weight(copy.deepcopy(layer).double(), states.double())
    assert layer not in linear.PREPACKED
    assert made not in linear.PREPACKED


def seconds(torch, onednn, prepacked):
    return {"torch": torch, "onednn": onednn, "prepacked": prepacked}


@pytest.mark.parametrize(
    ("measured", "chosen", "with_prepacking"),
    [
        (seconds(1, 0.5, 0.4), "onednn", "prepacked"),
        (seconds(1, 0.5, 0.5), "onednn", "onednn"),
        (seconds(1, 1, 0.7), "torch", "prepacked"),
        # what differs by less than two runs do is not worth another way
        (seconds(1, 0.99, 0.97), "torch", "torch"),
        (seconds(0.5, 1, 1), "torch", "torch"),
    ],
)
def test_runs_in_the_way_that_was_measured_to_be_clearly_faster(measured, chosen, with_prepacking, monkeypatch):
    monkeypatch.setattr(linear, "measure", lambda *_: measured)
    linear.choose.cache_clear()
    assert linear.choose(8, 4, 4, 1, False) == chosen
    assert linear.choose(8, 4, 4, 1, True) == with_prepacking
    linear.choose.cache_clear()


@pytest.mark.parametrize(("rows", "measured"), [(1, 1), (7, 1), (8, 8), (31, 8), (127, 32), (999, 128)])
def test_rows_are_measured_up_to_the_next_number_and_weights_up_to_a_size(rows, measured, monkeypatch):
    monkeypatch.undo()
    asked = []
    monkeypatch.setattr(linear, "choose", lambda *sizes: asked.append(sizes))
    linear.fastest(torch.randn(1, rows, 9), torch.empty(5000, 9, device="meta"))
    linear.fastest(torch.randn(1, rows, 300), torch.empty(100, 300, device="meta"), prepacks=True)
    threads = torch.get_num_threads()
    assert asked == [(measured, 2048, 9, threads, False), (measured, 100, 300, threads, True)]
    assert linear.fastest(torch.randn(1, rows, 9), torch.empty(9, 9)) == "onednn"


@needs_onednn
@pytest.mark.parametrize("context", [lambda: torch.device("meta"), torch.inference_mode, FakeTensorMode])
def test_is_measured_wherever_a_model_is_built_or_run(context):
    linear.measure.cache_clear()
    state = torch.get_rng_state()
    with context():
        measured = linear.measure(8, 24, 16, 1)
    assert measured.keys() == {"torch", "onednn", "prepacked"}
    assert all(0 < time < 10 for time in measured.values())
    assert torch.get_rng_state().equal(state)


@needs_onednn
def test_leaves_maps_alone_where_the_processor_gains_nothing(monkeypatch):
    monkeypatch.setattr(linear, "fastest", lambda *_: "torch")
    assert "mkldnn::_linear_pointwise" not in products(onednn_linear(8, 8), torch.randn(2, 8))


@needs_onednn
@every_family
def test_maps_of_a_model_are_plain_and_run_in_onednn(family, tmp_path):
    model = build(family)
    model.save_pretrained(tmp_path)
    body = AutoModel.from_pretrained(tmp_path)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for each in (model, body, *copies):
        # what chooses orders is a class of its own, and tiny
        maps = [m for m in each.modules() if isinstance(m, nn.Linear) and not isinstance(m, OrderPredictor)]
        for layer in maps:
            assert type(layer) is nn.Linear
            with torch.no_grad():
                layer.weight.zero_()
                states = torch.randn(2, layer.in_features)
                assert products(layer, states) == ["mkldnn::_linear_pointwise"]
                # a copy reads its own weights
                assert layer(states).eq(0 if layer.bias is None else layer.bias).all()
