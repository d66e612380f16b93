"""The linear map of every sublayer and head, at the speed that the processor has."""

from pathlib import Path

import torch
from torch import nn
from torch.autograd.function import once_differentiable

# there MKL, by which torch multiplies, is at least as fast as oneDNN
CPUINFO = Path("/proc/cpuinfo")
ON_INTEL = CPUINFO.exists() and "GenuineIntel" in CPUINFO.read_text(encoding="utf-8")


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


class Linear(nn.Linear):
    """nn.Linear that runs in oneDNN on a CPU that is not Intel's: (..., in) -> (..., out).

    torch multiplies by MKL there, which leaves the wide vectors of other makers' processors unused, and reads the
    weights of a single row, the case of decoding, with one core. `torch.backends.mkldnn.set_flags(False)` turns this
    class back into nn.Linear.
    """

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Multiply and add the bias."""
        onednn = (
            not ON_INTEL
            and hidden_states.device.type == "cpu"
            and hidden_states.dtype == self.weight.dtype == torch.float32
            and hidden_states.ndim > 1
            and hidden_states.numel() > 0
            # quantised and sharded tensors bring their own products, compilers choose theirs
            and type(hidden_states) is torch.Tensor
            and type(self.weight) is nn.Parameter
            and not torch.compiler.is_compiling()
            and not torch.is_autocast_enabled("cpu")
            and torch.backends.mkldnn.is_available()
            and torch.backends.mkldnn.enabled
        )
        if not onednn:
            return super().forward(hidden_states)
        if not torch.is_grad_enabled():
            # an autograd function costs as much as the product of a small matrix
            return multiply(hidden_states, self.weight, self.bias)
        return OneDNNLinear.apply(hidden_states, self.weight, self.bias)


class OutputLinear(Linear):
    """The last linear map of a mixer, whose result is added to the residual stream of so many sublayers."""

    # the stack says
    num_sublayers = 1
