"""The linear maps of a model, at the speed that the processor has."""

from functools import cache, partial
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


class Prepacked(NamedTuple):
    """A weight (out, in), its version, and a copy of it as oneDNN reads it.

    The weight keeps its memory, which would otherwise go to another one that could not be told apart.
    """

    weight: torch.Tensor
    version: int
    ordered: torch.Tensor


# by the maps that have them: attributes would be copied and saved with these
PREPACKED: WeakKeyDictionary[nn.Linear, Prepacked] = WeakKeyDictionary()
# the rows of a product for which the layout is chosen; more rows are about as fast in it as in their own
FEW_ROWS = 32


@cache
def gains_from_onednn() -> bool:
    """Say whether oneDNN multiplies faster than torch, which takes MKL, on this processor.

    On processors not made by Intel, MKL leaves the wide vectors unused. For a single row, as in decoding, it reads the
    weights with one core.
    """
    cpuinfo = Path("/proc/cpuinfo")
    on_intel = cpuinfo.exists() and "GenuineIntel" in cpuinfo.read_text(encoding="utf-8")
    # the operator is one of torch's own, which it may drop
    return not on_intel and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


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
    """Multiply in oneDNN where it has the product, else as torch does: (..., in), (out, in), (out,) -> (..., out)."""
    if not runs_in_onednn(states, weight):
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
    is_faster = not torch.compiler.is_compiling() and gains_from_onednn()
    return (onednn_linear if is_faster else nn.functional.linear)(states, weight, bias)


def run_in_onednn(model: nn.Module, prepacks: bool = False) -> None:
    """Let the linear maps of a model run in oneDNN if this processor gains from it; they stay plain nn.Linear.

    Tools that replace linear maps, such as quantisers, look for exactly that type. oneDNN orders a weight anew for each
    product, which takes a quarter of the time of a short text. A model that `prepacks` keeps the ordered weights beside
    its own, in as much memory again. `torch.backends.mkldnn.set_flags(False)` goes back to torch's product.
    """
    if gains_from_onednn():
        forward = prepacked_forward if prepacks else onednn_forward
        for module in model.modules():
            if type(module) is nn.Linear:
                module.forward = partial(forward, module)  # type: ignore[method-assign]
