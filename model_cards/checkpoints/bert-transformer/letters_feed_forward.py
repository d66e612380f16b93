"""`f`: a feed-forward block for each position."""

from .letters_letter import Letter, Sizes, Work


def _parameters(sizes: Sizes) -> int:
    inner = (1 + sizes.gated_feed_forward) * sizes.intermediate_size
    return sizes.hidden_size * (inner + sizes.intermediate_size) + sizes.mlp_bias * (inner + sizes.hidden_size)


def _multiply_adds(sizes: Sizes, work: Work) -> int:
    return (2 + sizes.gated_feed_forward) * work.read * sizes.hidden_size * sizes.intermediate_size


LETTER = Letter(
    name="feed-forward",
    colour="#b39ddb",
    square="🟪",
    group="feed-forward",
    cache=None,
    parameters=_parameters,
    multiply_adds=_multiply_adds,
    has_width=True,
    units=2,
    tensor_parallel_plan={"gate": "colwise", "fc1": "colwise", "fc2": "rowwise"},
)
