import copy

import pytest
import torch
from torch import nn

from sublayers.modeling import linear
from sublayers.modeling.linear import Linear

# where torch is built without oneDNN, Linear is nn.Linear
needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")


@pytest.fixture(autouse=True)
def not_intel(monkeypatch):
    monkeypatch.setattr(linear, "ON_INTEL", False)


def products(layer: nn.Linear, states: torch.Tensor) -> list[str]:
    """The names of the matrix products that a call runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        layer(states)
    names = {event.name for event in profiler.events()}
    return sorted(names & {"mkldnn::_linear_pointwise", "aten::addmm", "aten::mm", "aten::linear"})


@needs_onednn
@pytest.mark.parametrize("shape", [(1, 1, 24), (3, 5, 24), (7, 24), (2, 0, 24)])
@pytest.mark.parametrize("bias", [True, False])
def test_output_and_gradients_equal_those_of_torch(shape, bias):
    layer = Linear(24, 40, bias=bias)
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
def test_takes_views_and_frozen_weights():
    layer = Linear(8, 6).requires_grad_(False)
    base = torch.randn(5, 16, requires_grad=True)
    view = base[:, ::2]
    layer(view).sum().backward()
    expected = torch.zeros(5, 16)
    expected[:, ::2] = layer.weight.sum(0)
    torch.testing.assert_close(base.grad, expected)
    assert layer.weight.grad is None


@needs_onednn
def test_runs_in_onednn_only_where_that_is_right(monkeypatch):
    layer, states = Linear(8, 8), torch.randn(2, 8)
    assert products(layer, states) == ["mkldnn::_linear_pointwise"]
    with torch.no_grad():
        assert products(layer, states) == ["mkldnn::_linear_pointwise"]
        torch.testing.assert_close(layer(states), nn.functional.linear(states, layer.weight, layer.bias))
    monkeypatch.setattr(linear, "ON_INTEL", True)
    assert "mkldnn::_linear_pointwise" not in products(layer, states)
    monkeypatch.setattr(linear, "ON_INTEL", False)
    assert "mkldnn::_linear_pointwise" not in products(copy.deepcopy(layer).double(), states.double())
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(states).dtype == torch.bfloat16
    torch.backends.mkldnn.set_flags(False)
    try:
        assert "mkldnn::_linear_pointwise" not in products(layer, states)
    finally:
        torch.backends.mkldnn.set_flags(True)
