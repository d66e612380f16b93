"""`l`: a convolution with the same kernels everywhere."""

from .letters_convolution import STACKS, multiply_adds, parameters
from .letters_letter import Letter

LETTER = Letter(
    name="lightweight convolution",
    colour="#f2e27e",
    square="🟨",
    group="convolution",
    stacks=STACKS,
    cache="self",
    parameters=lambda sizes: parameters(sizes, 1),
    multiply_adds=lambda sizes, work: multiply_adds(sizes, work, 0),
)
