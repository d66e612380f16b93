"""What convolutions cost. A kernel may need all channels of its position, so every process runs whole ones."""

from .letters_letter import Sizes, Work

STACKS = ("encoder", "decoder")


def parameters(sizes: Sizes, kernel_inputs: int) -> int:
    """Count a projection with its gate, if it has one, and the output; one kernel for each head."""
    maps = (2 + sizes.gated_convolutions) * (sizes.hidden_size**2 + sizes.hidden_size)
    return maps + kernel_inputs * sizes.num_attention_heads * sizes.kernel_size


def multiply_adds(sizes: Sizes, work: Work, kernels: int) -> int:
    """Count projection and gate, kernels, sums under them, and the output."""
    per_token = (1 + sizes.gated_convolutions) * sizes.hidden_size + kernels + sizes.kernel_size
    return sizes.hidden_size * (work.length * per_token + work.read * sizes.hidden_size)
