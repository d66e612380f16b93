"""`m`: self-attention to the states before the first `m`."""

from sublayers.configuration.letters.attention import TENSOR_PARALLEL_PLAN, key_width, parameters
from sublayers.configuration.letters.letter import Letter
from sublayers.configuration.letters.self_attention import self_maps, self_scores

LETTER = Letter(
    name="single-input attention",
    colour="#4fa6a0",
    square="🔵",
    group="self-attention",
    cache="self",
    parameters=parameters,
    multiply_adds=lambda sizes, work: self_maps(sizes, work) + self_scores(sizes, work),
    cache_width=key_width,
    reads_fixed_states=True,
    twin="s",
    tensor_parallel_plan=TENSOR_PARALLEL_PLAN,
)
