"""`r`: recurrence with a state of fixed size, also known as linear attention.

Of each token, every head writes the product of a key and a value into a matrix, which decays, and reads it by a query.
The kinds of `recurrence` are Mamba-2 (Dao and Gu, 2024, "Transformers are SSMs") and the gated delta rule (Yang et al.,
2024, "Gated Delta Networks"), which writes what the matrix does not yet say of the key.
"""

from typing import NamedTuple

from .letters_letter import Letter, Sizes, Work

# options that the other kind does not have
OF_ONE_KIND = {"recurrence_time_step_min": "mamba2", "recurrence_allow_neg_eigval": "gated_delta"}


class Shape(NamedTuple):
    """What the sizes of a model say of its recurrences.

    Attributes:
        kind: "mamba2" or "gated_delta".
        heads: of values, each with a matrix of its own.
        head_dim: the width of a head of values.
        groups: the heads of keys and queries, each shared by as many heads of values.
        state_size: the width of a head of keys, and of queries.
        conv_kernel: how many tokens the convolution before the recurrence sees.
        chunk_size: how many tokens are computed at once; another number gives the same but for rounding.
    """

    kind: str
    heads: int
    head_dim: int
    groups: int
    state_size: int
    conv_kernel: int
    chunk_size: int

    @property
    def is_delta(self) -> bool:
        """Whether a token writes only what the matrix does not yet say."""
        return self.kind == "gated_delta"

    @property
    def width(self) -> int:
        """The width of all values, and of the gate."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """The width of what is convolved: values, keys and queries."""
        return self.width + 2 * self.groups * self.state_size

    @property
    def inner_width(self) -> int:
        """The width of the map into the sublayer: gate, channels, and one number for each head, or two."""
        return self.width + self.channels + (1 + self.is_delta) * self.heads


def shape(sizes: Sizes) -> Shape:
    """Find the shape of a model's recurrences; what is not given has its default."""
    given = {name.removeprefix("recurrence_"): value for name, value in sizes.letter_fields.items() if value}
    kind = given["recurrence"]
    heads = given.get("num_heads", sizes.num_attention_heads)
    head_dim = given.get("head_dim", max(1, 2 * sizes.hidden_size // heads))
    is_delta = kind == "gated_delta"
    return Shape(
        kind,
        heads,
        head_dim,
        given.get("n_groups", heads if is_delta else 1),
        given.get("state_size", max(1, head_dim // 2) if is_delta else 128),
        given.get("conv_kernel", 4),
        given.get("chunk_size", 64),
    )


def _check(sizes: Sizes) -> None:
    own = shape(sizes)
    if own.conv_kernel < 2:
        raise ValueError(f"recurrence_conv_kernel={own.conv_kernel} sees no other token; give 2 or more")
    if own.heads % own.groups:
        raise ValueError(
            f"recurrence_num_heads={own.heads} is not a multiple of recurrence_n_groups={own.groups}, but equally many "
            "must share each group; give another number"
        )
    for name, kind in OF_ONE_KIND.items():
        if (value := sizes.letter_fields.get(name)) and own.kind != kind:
            raise ValueError(f"{name}={value} is of {kind!r} alone, and recurrence={own.kind!r}; leave it out")


def _parameters(sizes: Sizes) -> int:
    own = shape(sizes)
    convolution = own.channels * (own.conv_kernel + (not own.is_delta))
    # decays and their biases, what passes by the state, and the norm
    of_heads = 2 * own.heads + (own.head_dim if own.is_delta else own.heads + own.width)
    return sizes.hidden_size * (own.inner_width + own.width) + convolution + of_heads


def _multiply_adds(sizes: Sizes, work: Work) -> int:
    own = shape(sizes)
    chunk = min(own.chunk_size, work.length)
    # a token writes into the matrix and reads it; the delta rule reads it once more
    matrix = (2 + own.is_delta) * own.heads * own.state_size * own.head_dim
    # products with the tokens of its chunk
    pairs = own.groups * own.state_size + own.heads * own.head_dim
    if own.is_delta:
        pairs += own.groups * own.state_size + own.heads * (own.state_size + own.head_dim) // 2
    per_token = sizes.hidden_size * own.inner_width + own.channels * own.conv_kernel + matrix
    per_token += chunk * pairs if work.length > 1 else 0
    return work.length * per_token + work.read * own.width * sizes.hidden_size


def _state_bytes(sizes: Sizes, length: int) -> int:
    own = shape(sizes)
    numbers = own.heads * own.state_size * own.head_dim + (own.conv_kernel - 1) * own.channels
    # and a byte that counts each token
    return 4 * numbers + length


LETTER = Letter(
    name="recurrence",
    colour="#d98880",
    square="🟥",
    group="recurrence",
    # it looks back only, and no memory of segments holds its state
    stacks=("single", "decoder"),
    cache="self",
    fields={"recurrence": ("mamba2", "gated_delta")},
    options={
        "recurrence_num_heads": None,
        "recurrence_head_dim": None,
        "recurrence_n_groups": None,
        "recurrence_state_size": None,
        "recurrence_conv_kernel": None,
        "recurrence_chunk_size": None,
        # the least step of Mamba-2
        "recurrence_time_step_min": 0.0,
        # whether the gated delta rule may turn what it has read around, and not only forget it
        "recurrence_allow_neg_eigval": False,
    },
    check=_check,
    parameters=_parameters,
    multiply_adds=_multiply_adds,
    cached_tokens=lambda sizes, length: 0,
    state_bytes=_state_bytes,
    slot_type="hybrid",
)
