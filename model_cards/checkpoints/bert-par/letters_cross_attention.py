"""`c`: attention to another sequence, that of the encoder."""

from .letters_attention import TENSOR_PARALLEL_PLAN, key_width, maps, parameters, scores
from .letters_letter import Letter

LETTER = Letter(
    name="cross-attention",
    colour="#7fb3d5",
    square="🟦",
    group="cross-attention",
    stacks=("decoder",),
    cache="cross",
    parameters=parameters,
    multiply_adds=lambda sizes, work: (
        maps(sizes, work.read, 0 if work.cached else work.source_length) + scores(sizes, work, work.source_length)
    ),
    cache_width=key_width,
    tensor_parallel_plan=TENSOR_PARALLEL_PLAN,
)
