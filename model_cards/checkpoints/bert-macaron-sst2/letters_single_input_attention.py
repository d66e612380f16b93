"""`m`: self-attention to the states before the first `m`."""

from dataclasses import replace

from .letters_attention import parameters
from .letters_self_attention import LETTER as SELF_ATTENTION

LETTER = replace(
    SELF_ATTENTION,
    name="single-input attention",
    colour="#4fa6a0",
    square="🔵",
    # there is no such attention with memory
    parameters=parameters,
    reads_fixed_states=True,
    twin="s",
)
