"""`w`: self-attention to the tokens in a window.

A decoder's sees `attention_window` tokens, the last of which is its own; an encoder's half as many on each side.
"""

from .letters_attention import TENSOR_PARALLEL_PLAN, key_width, parameters
from .letters_letter import Letter, Sizes, Work
from .letters_self_attention import self_maps, self_scores


def reach(window: int, is_causal: bool) -> tuple[int, int]:
    """Say how many tokens before its own and how many after it local attention sees from each."""
    return (window - 1, 0) if is_causal else (window // 2, window // 2)


def block_size(length: int, before: int, after: int) -> int | None:
    """Choose how many tokens of a text local attention computes at once; None: the whole text, as it is short."""
    size = 64 * max(1, (before + after) // 256)
    return size if length >= 2 * (size + before + after) else None


def _scores(sizes: Sizes, work: Work) -> int:
    before, after = reach(sizes.attention_window, sizes.is_causal)
    size = block_size(work.length, before, after)
    if work.read < work.length or size is None:
        return self_scores(sizes, work._replace(cached=min(work.cached, before)))
    # the keys of a block are those of its tokens and on both sides of them
    pairs = -(-work.length // size) * size * (size + before + after)
    return 2 * pairs * sizes.query_width


LETTER = Letter(
    name="local attention",
    colour="#bfe3a8",
    square="🟢",
    group="self-attention",
    cache="self",
    fields={"attention_window": 1},
    parameters=parameters,
    multiply_adds=lambda sizes, work: self_maps(sizes, work) + _scores(sizes, work),
    reach=lambda sizes: reach(sizes.attention_window, sizes.is_causal),
    cache_width=key_width,
    slot_type="sliding_attention",
    cached_tokens=lambda sizes, length: min(length, sizes.attention_window - 1),
    tensor_parallel_plan=TENSOR_PARALLEL_PLAN,
)
