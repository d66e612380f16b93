"""The letters of the order language, and what each kind of sublayer costs."""

from collections.abc import Callable
from typing import Literal, NamedTuple


class Sizes(NamedTuple):
    """What the cost of a sublayer depends on, beside its letter.

    Where self-attention remembers tokens, it is that of Transformer-XL, which knows distances and has no biases.
    """

    hidden_size: int
    intermediate_size: int
    kernel_size: int = 31
    num_attention_heads: int = 16
    gated_convolutions: bool = True
    # tokens before a segment; None: attention without memory
    memory_length: int | None = None


class Work(NamedTuple):
    """How much a sublayer has to do: tokens in all, those whose output is used, tokens of the source, keys to keep."""

    length: int
    read: int
    source_length: int
    keeps_cache: bool = False


class Letter(NamedTuple):
    """What the project knows of a kind of sublayer, but for the module that runs it.

    Attributes:
        name: for people.
        colour: of its box, as RGB.
        square: of the same colour, as text.
        stacks: where it may stand: in a "single" stack, an "encoder" or a "decoder".
        cache: which cache it has slots in, that of the "self" or of the "cross" sequence, or None.
        is_position_wise: it treats every position on its own.
        parameters: its weights and biases without the norm.
        multiply_adds: of one sequence.
        tensor_parallel_plan: how its linear maps are split, by their names below the mixer, if it has them.
    """

    name: str
    colour: str
    square: str
    stacks: tuple[str, ...]
    cache: Literal["self", "cross"] | None
    is_position_wise: bool
    parameters: Callable[[Sizes], int]
    multiply_adds: Callable[[Sizes, Work], int]
    tensor_parallel_plan: dict[str, str]


def _attention_parameters(sizes: Sizes) -> int:
    return 4 * sizes.hidden_size**2 + 4 * sizes.hidden_size


def _self_attention_parameters(sizes: Sizes) -> int:
    return _attention_parameters(sizes) if sizes.memory_length is None else 5 * sizes.hidden_size**2


def _attention(sizes: Sizes, read: int, keys: int) -> int:
    # queries and output, keys and values, scores and mix
    return 2 * sizes.hidden_size * (read * sizes.hidden_size + keys * sizes.hidden_size + read * keys)


def _self_attention(sizes: Sizes, work: Work) -> int:
    if sizes.memory_length is None:
        if work.read == 1 < work.length and not work.keeps_cache:
            # query, output, and the maps of keys and values for one token; each head's scores and mix of whole states
            return 2 * sizes.hidden_size * (2 * sizes.hidden_size + sizes.num_attention_heads * work.length)
        return _attention(sizes, work.read, work.length)
    keys = work.length + sizes.memory_length
    # queries and output; keys, values and distances. Rows of distances follow each other, so all queries are computed
    maps = work.length + work.read + 3 * keys
    # content, distances, mix
    return sizes.hidden_size * (maps * sizes.hidden_size + 3 * work.length * keys)


def _feed_forward_parameters(sizes: Sizes) -> int:
    return 2 * sizes.hidden_size * sizes.intermediate_size + sizes.hidden_size + sizes.intermediate_size


def _convolution_parameters(sizes: Sizes, kernel_inputs: int) -> int:
    # a projection with its gate, if it has one, and the output; one kernel for each head
    maps = (2 + sizes.gated_convolutions) * (sizes.hidden_size**2 + sizes.hidden_size)
    return maps + kernel_inputs * sizes.num_attention_heads * sizes.kernel_size


def _convolution(sizes: Sizes, work: Work, kernels: int) -> int:
    # projection and gate, kernels, sums under them, output
    per_token = (1 + sizes.gated_convolutions) * sizes.hidden_size + kernels + sizes.kernel_size
    return sizes.hidden_size * (work.length * per_token + work.read * sizes.hidden_size)


_ATTENTION_PLAN = {"q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "o_proj": "rowwise"}
# each process has some of the heads that they learn from
_ATTENTION_PLAN |= dict.fromkeys(("q_norm", "k_norm"), "replicated_with_grad_allreduce")
ALPHABET = {
    "s": Letter(
        "self-attention",
        "#7fc97f",
        "🟩",
        stacks=("single", "encoder", "decoder"),
        cache="self",
        is_position_wise=False,
        parameters=_self_attention_parameters,
        multiply_adds=_self_attention,
        tensor_parallel_plan=_ATTENTION_PLAN,
    ),
    "c": Letter(
        "cross-attention",
        "#7fb3d5",
        "🟦",
        stacks=("decoder",),
        cache="cross",
        is_position_wise=False,
        parameters=_attention_parameters,
        multiply_adds=lambda sizes, work: _attention(sizes, work.read, work.source_length),
        tensor_parallel_plan=_ATTENTION_PLAN,
    ),
    "f": Letter(
        "feed-forward",
        "#b39ddb",
        "🟪",
        stacks=("single", "encoder", "decoder"),
        cache=None,
        is_position_wise=True,
        parameters=_feed_forward_parameters,
        multiply_adds=lambda sizes, work: 2 * work.read * sizes.hidden_size * sizes.intermediate_size,
        tensor_parallel_plan={"gate": "colwise", "fc1": "colwise", "fc2": "rowwise"},
    ),
    # a dynamic kernel needs all channels of its position: every process runs whole convolutions
    "d": Letter(
        "dynamic convolution",
        "#f5a742",
        "🟧",
        stacks=("encoder", "decoder"),
        cache="self",
        is_position_wise=False,
        parameters=lambda sizes: _convolution_parameters(sizes, sizes.hidden_size),
        multiply_adds=lambda sizes, work: _convolution(sizes, work, sizes.num_attention_heads * sizes.kernel_size),
        tensor_parallel_plan={},
    ),
    "l": Letter(
        "lightweight convolution",
        "#f2e27e",
        "🟨",
        stacks=("encoder", "decoder"),
        cache="self",
        is_position_wise=False,
        parameters=lambda sizes: _convolution_parameters(sizes, 1),
        multiply_adds=lambda sizes, work: _convolution(sizes, work, 0),
        tensor_parallel_plan={},
    ),
}
