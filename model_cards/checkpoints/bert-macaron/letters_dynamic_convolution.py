"""`d`: a convolution whose kernels are made from each position's state."""

from .letters_convolution import STACKS, multiply_adds, parameters
from .letters_letter import Letter

LETTER = Letter(
    name="dynamic convolution",
    colour="#f5a742",
    square="🟧",
    group="convolution",
    stacks=STACKS,
    cache="self",
    parameters=lambda sizes: parameters(sizes, sizes.hidden_size),
    multiply_adds=lambda sizes, work: multiply_adds(sizes, work, sizes.num_attention_heads * sizes.kernel_size),
)
