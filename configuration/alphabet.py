"""The letters of the order language, and what each kind of sublayer costs."""

from collections.abc import Callable
from typing import Literal, NamedTuple


class Sizes(NamedTuple):
    """What the cost of a sublayer depends on, beside its letter.

    Self-attention with memory is that of Transformer-XL, with relative positions and without biases.
    """

    hidden_size: int
    intermediate_size: int = 0
    kernel_size: int = 31
    num_attention_heads: int = 16
    gated_convolutions: bool = True
    # tokens before a segment; None: attention without memory
    memory_length: int | None = None
    # as in every configuration
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    qk_norm: bool = False
    folds_attention: bool = True
    gated_feed_forward: bool = False
    attention_bias: bool = True
    attention_output_bias: bool = True
    mlp_bias: bool = True
    # gain and bias
    norm_vectors: int = 2
    # the window of local attention, and whether it looks back only
    attention_window: int = 0
    is_causal: bool = False

    @property
    def query_width(self) -> int:
        """The width of all heads of queries."""
        return self.hidden_size if self.head_dim is None else self.num_attention_heads * self.head_dim

    @property
    def key_width(self) -> int:
        """The width of all heads of keys, and of values."""
        heads = self.num_key_value_heads or self.num_attention_heads
        return self.query_width * heads // self.num_attention_heads


class Work(NamedTuple):
    """How much a sublayer has to do: tokens that it sees and that it computes, tokens of the source, keys to keep."""

    length: int
    read: int
    source_length: int
    keeps_cache: bool = False


class Letter(NamedTuple):
    """What the project knows of a kind of sublayer, except the module that runs it.

    Attributes:
        name: for people.
        colour: of its box, as RGB.
        square: of the same colour, as text.
        stacks: where it may stand: in a "single" stack, an "encoder" or a "decoder".
        cache: which cache it has slots in, that of the "self" or of the "cross" sequence, or None.
        is_position_wise: it treats every position on its own.
        reach: how many tokens before its own and how many behind each one sees; None: the whole text.
        parameters: its weights and biases without the norm.
        multiply_adds: of one sequence.
        tensor_parallel_plan: how its linear maps are split, by their names below the mixer, if it has them.
        cache_width: the width of what each half of its slot, keys and values, keeps of a token.
        cached_tokens: how many tokens of a text it keeps.
        reads_fixed_states: its keys and values come from the states in front of the first such sublayer of the order.
        weights_of: the letter whose weights it has, and that it can run as.
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
    reach: Callable[[Sizes], tuple[int, int]] | None = None
    cache_width: Callable[[Sizes], int] = lambda sizes: sizes.hidden_size
    cached_tokens: Callable[[Sizes, int], int] = lambda sizes, length: length
    reads_fixed_states: bool = False
    weights_of: str | None = None


def reach(window: int, is_causal: bool) -> tuple[int, int]:
    """Say how many tokens before its own and how many behind local attention sees from each."""
    return (window - 1, 0) if is_causal else (window // 2, window // 2)


def block_size(length: int, before: int, after: int) -> int | None:
    """Choose how many tokens of a text local attention computes at once; None: the whole text, as it is short."""
    size = 64 * max(1, (before + after) // 256)
    return size if length >= 2 * (size + before + after) else None


def _attention_parameters(sizes: Sizes) -> int:
    hidden, queries, keys = sizes.hidden_size, sizes.query_width, sizes.key_width
    biases = sizes.attention_bias * (queries + 2 * keys) + sizes.attention_output_bias * hidden
    norms = sizes.qk_norm * 2 * (queries // sizes.num_attention_heads)
    return 2 * hidden * (queries + keys) + biases + norms


def _self_attention_parameters(sizes: Sizes) -> int:
    return _attention_parameters(sizes) if sizes.memory_length is None else 5 * sizes.hidden_size**2


def _attention_maps(sizes: Sizes, read: int, keys: int) -> int:
    # queries and output, keys and values
    return 2 * sizes.hidden_size * (read * sizes.query_width + keys * sizes.key_width)


def _folds(sizes: Sizes, work: Work) -> bool:
    return work.read == 1 < work.length and not work.keeps_cache and sizes.folds_attention


def _self_scores(sizes: Sizes, work: Work) -> int:
    if sizes.memory_length is not None:
        # content, distances, mix
        return 3 * sizes.hidden_size * work.length * (work.length + sizes.memory_length)
    if _folds(sizes, work):
        # each head's scores and mix of whole states
        return 2 * sizes.hidden_size * sizes.num_attention_heads * work.length
    return 2 * work.read * work.length * sizes.query_width


def _self_attention(sizes: Sizes, work: Work) -> int:
    if sizes.memory_length is not None:
        # queries and output; keys, values and distances. Rows of distances follow each other, so all queries are
        # computed
        tokens = work.length + work.read + 3 * (work.length + sizes.memory_length)
        maps = tokens * sizes.hidden_size**2
    elif _folds(sizes, work):
        # query, output, and the maps of keys and values for one token
        maps = 4 * sizes.hidden_size * sizes.query_width
    else:
        maps = _attention_maps(sizes, work.read, work.length)
    return maps + _self_scores(sizes, work)


def _cross_attention(sizes: Sizes, work: Work) -> int:
    scores = 2 * work.read * work.source_length * sizes.query_width
    return _attention_maps(sizes, work.read, work.source_length) + scores


def _local_scores(sizes: Sizes, work: Work) -> int:
    before, after = reach(sizes.attention_window, sizes.is_causal)
    size = block_size(work.length, before, after)
    if work.read < work.length or size is None:
        return _self_scores(sizes, work)
    # the keys of a block are those of its tokens and on both sides of them
    pairs = -(-work.length // size) * size * (size + before + after)
    return 2 * pairs * sizes.query_width


def _local_attention(sizes: Sizes, work: Work) -> int:
    return _self_attention(sizes, work) - _self_scores(sizes, work) + _local_scores(sizes, work)


def _feed_forward_parameters(sizes: Sizes) -> int:
    inner = (1 + sizes.gated_feed_forward) * sizes.intermediate_size
    return sizes.hidden_size * (inner + sizes.intermediate_size) + sizes.mlp_bias * (inner + sizes.hidden_size)


def _feed_forward(sizes: Sizes, work: Work) -> int:
    return (2 + sizes.gated_feed_forward) * work.read * sizes.hidden_size * sizes.intermediate_size


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
        cache_width=lambda sizes: sizes.key_width,
    ),
    "w": Letter(
        "local attention",
        "#bfe3a8",
        "🟢",
        stacks=("single", "encoder", "decoder"),
        cache="self",
        is_position_wise=False,
        parameters=_attention_parameters,
        multiply_adds=_local_attention,
        tensor_parallel_plan=_ATTENTION_PLAN,
        reach=lambda sizes: reach(sizes.attention_window, sizes.is_causal),
        cache_width=lambda sizes: sizes.key_width,
        cached_tokens=lambda sizes, length: min(length, sizes.attention_window - 1),
    ),
    "c": Letter(
        "cross-attention",
        "#7fb3d5",
        "🟦",
        stacks=("decoder",),
        cache="cross",
        is_position_wise=False,
        parameters=_attention_parameters,
        multiply_adds=_cross_attention,
        tensor_parallel_plan=_ATTENTION_PLAN,
        cache_width=lambda sizes: sizes.key_width,
    ),
    "f": Letter(
        "feed-forward",
        "#b39ddb",
        "🟪",
        stacks=("single", "encoder", "decoder"),
        cache=None,
        is_position_wise=True,
        parameters=_feed_forward_parameters,
        multiply_adds=_feed_forward,
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
    "m": Letter(
        "single-input attention",
        "#4fa6a0",
        "🔵",
        stacks=("single", "encoder", "decoder"),
        cache="self",
        is_position_wise=False,
        parameters=_attention_parameters,
        multiply_adds=_self_attention,
        tensor_parallel_plan=_ATTENTION_PLAN,
        cache_width=lambda sizes: sizes.key_width,
        reads_fixed_states=True,
        weights_of="s",
    ),
}
