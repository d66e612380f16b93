"""The linear maps of a model, at the speed that the processor has."""

import logging
from collections.abc import Callable
from functools import cache, partial
from time import perf_counter
from typing import Literal, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

logger = logging.getLogger(__name__)

# in torch's own library, in oneDNN, or there with a weight in the layout that it reads
Product: TypeAlias = Literal["torch", "onednn", "prepacked"]


class Prepacked(NamedTuple):
    """A weight (out, in), its version, and a copy of it as oneDNN reads it.

    The weight is kept so that no other tensor gets its memory, by which it is recognised.
    """

    weight: torch.Tensor
    version: int
    ordered: torch.Tensor


# by the maps that have them: attributes would be copied and saved with these
PREPACKED: WeakKeyDictionary[nn.Linear, Prepacked] = WeakKeyDictionary()
# the rows of a product for which the layout is chosen; more rows are about as fast in it as in their own
FEW_ROWS = 32
# numbers of rows that are measured, for which and for more; and the largest size of a weight
ROWS, LARGEST = (128, 32, 8, 1), 2048
# weights of fewer numbers always run in oneDNN, whose results do not depend on where in memory they lie, as MKL's do
SMALLEST = 128 * 128
# measurements of each way, and the share of the time below which another way is taken
ROUNDS, GAIN = 5, 0.95


@cache
def has_onednn() -> bool:
    """Say whether torch has oneDNN's product; the operator is one of its own, which it may drop."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def measure(rows: int, outputs: int, inputs: int, threads: int) -> dict[Product, float]:
    """Measure a product of this size in each way with the present number of threads: seconds, the least of some."""
    # models are also built and run where all new tensors are without values, or of other types
    with torch.no_grad(), _disable_current_modes(), torch.autocast("cpu", enabled=False):
        weight, states = (
            torch.ones(number, inputs, dtype=torch.float32, device="cpu", requires_grad=False)
            for number in (outputs, rows)
        )
        ordered = torch.ops.mkldnn._reorder_linear_weight(weight, FEW_ROWS)
        calls: dict[Product, Callable[[], torch.Tensor]] = {
            "torch": partial(nn.functional.linear, states, weight),
            "onednn": partial(multiply, states, weight),
            "prepacked": partial(multiply, states, ordered),
        }
        seconds = dict.fromkeys(calls, float("inf"))
        for name, call in [*calls.items()] * ROUNDS:
            start = perf_counter()
            call()
            seconds[name] = min(seconds[name], perf_counter() - start)
    return seconds


@cache
def choose(rows: int, outputs: int, inputs: int, threads: int, prepacks: bool) -> Product:
    """Choose how a product of this size runs: in another way than torch's own if that is clearly faster.

    Neither is faster everywhere. MKL, which torch takes, leaves the widest vectors of other makers' processors unused;
    for few rows oneDNN divides the work better among cores, for many MKL may win.
    """
    seconds = measure(rows, outputs, inputs, threads)
    chosen: Product = "onednn" if seconds["onednn"] < GAIN * seconds["torch"] else "torch"
    if prepacks and seconds["prepacked"] < GAIN * seconds[chosen]:
        chosen = "prepacked"
    listed = ", ".join(f"{name} {1e6 * least:.0f}" for name, least in seconds.items())
    logger.info("(%s, %s) x (%s, %s) runs in %s; microseconds: %s", rows, inputs, inputs, outputs, chosen, listed)
    return chosen


def fastest(states: torch.Tensor, weight: torch.Tensor, prepacks: bool = False) -> Product:
    """Say how a product of states (..., in) with a weight (out, in) runs, which is measured once for each size."""
    if weight.numel() < SMALLEST:
        return "prepacked" if prepacks else "onednn"
    rows = states.numel() // states.shape[-1]
    rows = next(number for number in ROWS if number <= rows)
    outputs, inputs = (min(size, LARGEST) for size in weight.shape)
    return choose(rows, outputs, inputs, torch.get_num_threads(), prepacks)


def multiply(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Multiply by the transposed weight in oneDNN, add the bias: (..., in), (out, in), (out,) -> (..., out)."""
    return torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")


class OneDNNLinear(torch.autograd.Function):
    """The linear map with its gradients: (..., in), (out, in), (out,) -> (..., out)."""

    @staticmethod
    def forward(ctx, states, weight, bias):
        """Multiply, and keep what the gradients need."""
        ctx.save_for_backward(states, weight)
        return multiply(states, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        """Compute only those gradients that are asked for."""
        states, weight = ctx.saved_tensors
        of_states, of_weight, of_bias = ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        return (
            multiply(grad, weight.T) if of_states else None,
            multiply(rows.T, states.flatten(0, -2).T) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def runs_in_onednn(states: torch.Tensor, weight: torch.Tensor) -> bool:
    """Say whether oneDNN has the product of states (..., in) and a weight (out, in), and nobody else has to see it."""
    return (
        # quantised, sharded and fake tensors bring their own products, compilers choose theirs
        type(states) is torch.Tensor
        and type(weight) is nn.Parameter
        and states.dtype == weight.dtype == torch.float32
        and states.device.type == "cpu"
        and states.ndim > 1
        and states.numel() > 0
        and bool(torch.backends.mkldnn.enabled)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        # tracing cannot record this private operator
        and not torch.jit.is_tracing()
    )


def onednn_linear(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Multiply in oneDNN where it has the product and is faster, else as torch does.

    Shapes are (..., in), (out, in), (out,) -> (..., out).
    """
    if not runs_in_onednn(states, weight) or fastest(states, weight) == "torch":
        return nn.functional.linear(states, weight, bias)
    if not torch.is_grad_enabled():
        # for small matrices an autograd function costs as much as the product
        return multiply(states, weight, bias)
    return OneDNNLinear.apply(states, weight, bias)


def onednn_forward(layer: nn.Linear, states: torch.Tensor) -> torch.Tensor:
    """Run a linear map as `onednn_linear` does: (..., in) -> (..., out)."""
    return onednn_linear(states, layer.weight, layer.bias)


def prepacked(layer: nn.Linear) -> torch.Tensor:
    """Copy a map's weight into the layout in which oneDNN multiplies by it, once for as long as the weight stays."""
    weight = layer.weight.detach()
    found = PREPACKED.get(layer)
    if found is None or found.version != weight._version or found.weight.data_ptr() != weight.data_ptr():
        ordered = torch.ops.mkldnn._reorder_linear_weight(weight, FEW_ROWS)
        found = PREPACKED[layer] = Prepacked(weight, weight._version, ordered)
    return found.ordered


def prepacked_forward(layer: nn.Linear, states: torch.Tensor) -> torch.Tensor:
    """Run a linear map with its prepacked weight, where there are no gradients: (..., in) -> (..., out)."""
    if torch.is_grad_enabled() or layer.weight.is_inference() or not runs_in_onednn(states, layer.weight):
        return onednn_forward(layer, states)
    if fastest(states, layer.weight, prepacks=True) != "prepacked":
        return onednn_forward(layer, states)
    return multiply(states, prepacked(layer), layer.bias)


def is_bare(layer: nn.Linear, states: torch.Tensor) -> bool:
    """Say whether a product of states with the weight is all that a linear map does.

    Adapters, quantisers and offloading replace the map or its weight, and hooks need it to be called.
    """
    return (
        type(layer) is nn.Linear
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
        and not is_traceable_wrapper_subclass(layer.weight)
        and layer.weight.device == states.device
    )


def linear(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Multiply by a bare parameter as fast as this processor can: (..., in), (out, in), (out,) -> (..., out)."""
    is_known = not torch.compiler.is_compiling() and has_onednn()
    return (onednn_linear if is_known else nn.functional.linear)(states, weight, bias)


def run_in_onednn(model: nn.Module, prepacks: bool = False) -> None:
    """Let the linear maps of a model run in oneDNN where it is faster here; they stay plain nn.Linear.

    Tools that replace linear maps, such as quantisers, look for exactly that type. oneDNN orders a weight anew for each
    product, which takes a quarter of the time of a short text. A model that `prepacks` keeps ordered weights beside its
    own, in as much memory again. `torch.backends.mkldnn.set_flags(False)` goes back to torch's product.
    """
    if has_onednn():
        forward = prepacked_forward if prepacks else onednn_forward
        for module in model.modules():
            if type(module) is nn.Linear:
                module.forward = partial(forward, module)  # type: ignore[method-assign]
