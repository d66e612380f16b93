"""What the project knows of a kind of sublayer, except the module that runs it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple


class Sizes(NamedTuple):
    """What the cost of a sublayer depends on, beside its letter.

    Self-attention with memory is that of Transformer-XL, with relative positions and without biases.
    """

    hidden_size: int
    # a number or, before it is known which sublayer is meant, a list with one for each that has a width
    intermediate_size: Any = 0
    kernel_size: int = 31
    num_attention_heads: int = 16
    gated_convolutions: bool = True
    # tokens before a segment; None: attention without memory
    memory_length: int | None = None
    # as in every configuration
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    qk_norm: bool = False
    qk_norm_per_head: bool = True
    attention_output_gate: bool = False
    relative_key_distance: int | None = None
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
    # the other fields that letters declare, by their names
    letter_fields: Mapping[str, Any] = MappingProxyType({})

    @property
    def distances(self) -> int:
        """How many distances have keys."""
        return 0 if self.relative_key_distance is None else 2 * self.relative_key_distance + 1

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
    """How much a sublayer has to do: tokens that it sees and that it computes, tokens of the source, keys to keep.

    Before the tokens, others may be `cached`, and with them the source's.
    """

    length: int
    read: int
    source_length: int
    keeps_cache: bool = False
    cached: int = 0


def field_type(declared: Any) -> Any:
    """Say of which type the values of a field are that a letter declares, see `Letter.fields`."""
    return Literal[declared] if isinstance(declared, tuple) else int


def option_type(default: Any) -> Any:
    """Say of which type the values of an option are, see `Letter.options`."""
    if default is None:
        return int | None
    return float | int if isinstance(default, float) else type(default)


def remedy(declared: Any) -> str:
    """Say what to give for a field that a letter needs."""
    return " or ".join(map(repr, declared)) if isinstance(declared, tuple) else "a number"


@dataclass(frozen=True, kw_only=True)
class Letter:
    """A kind of sublayer, as the file of a letter declares it.

    Attributes:
        name: for people.
        colour: of its box, as RGB.
        square: of the same colour, as text.
        group: what it is one of.
        stacks: where it may stand: in a "single" stack that looks back, a "bidirectional" one, a "segmented" one, which
            remembers earlier segments, an "encoder" or a "decoder".
        cache: which cache it has slots in, that of the "self" or of the "cross" sequence, or None.
        fields: of the configuration, which orders with it need and others must not have: a number with its least value,
            or one of some words.
        options: more fields that only orders with it may set, with what they are otherwise; None stands for a whole
            number that follows from other fields.
        check: raises a ValueError where its fields do not fit each other.
        parameters: its weights and biases without the norm.
        multiply_adds: of one sequence.
        has_width: whether it is as wide inside as `intermediate_size` says, where a list has a width for each of these.
        units: its parameters in units of 4 d^2, as the Sandwich paper counts them (section 3.2).
        cache_width: the width of what each half of its slot, keys and values, keeps of a token.
        cached_tokens: how many tokens of a text it keeps.
        state_bytes: the bytes of its state after a text of some length, whose numbers have 32 bits in every model.
        slot_type: what transformers' `layer_types` call its slot. A state of fixed size needs a "hybrid" one, in which
            the mixer also counts tokens, or a "conv" one, which becomes "hybrid" where no other slot counts them.
        reach: how many tokens before its own and how many after it each one sees; None: the whole text.
        reads_fixed_states: its keys and values come from the states before the first such sublayer of the order.
        twin: the letter with interchangeable weights.
        tensor_parallel_plan: how its linear maps are split, by their names below the mixer, if it has them.
        expert_parallel_plan: how its experts are divided, by the same names.
    """

    name: str
    colour: str
    square: str
    group: Literal["self-attention", "cross-attention", "convolution", "feed-forward", "recurrence"]
    stacks: tuple[str, ...] = ("single", "bidirectional", "segmented", "encoder", "decoder")
    cache: Literal["self", "cross"] | None
    fields: Mapping[str, int | tuple[str, ...]] = field(default_factory=dict, hash=False)
    options: Mapping[str, float | None] = field(default_factory=dict, hash=False)
    check: Callable[[Sizes], None] = lambda sizes: None
    parameters: Callable[[Sizes], int]
    multiply_adds: Callable[[Sizes, Work], int]
    has_width: bool = False
    units: int = 1
    cache_width: Callable[[Sizes], int] = lambda sizes: sizes.hidden_size
    cached_tokens: Callable[[Sizes, int], int] = lambda sizes, length: length
    state_bytes: Callable[[Sizes, int], int] = lambda sizes, length: 0
    slot_type: Literal["full_attention", "sliding_attention", "hybrid", "conv"] = "full_attention"
    reach: Callable[[Sizes], tuple[int, int]] | None = None
    reads_fixed_states: bool = False
    twin: str | None = None
    tensor_parallel_plan: Mapping[str, str] = field(default_factory=dict, hash=False)
    expert_parallel_plan: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def is_position_wise(self) -> bool:
        """Whether it treats every position on its own."""
        return self.cache is None

    @property
    def keeps_state(self) -> bool:
        """Whether its slot has a state of fixed size."""
        return self.slot_type in ("hybrid", "conv")

    @property
    def is_local(self) -> bool:
        """Whether it attends to the tokens in a window."""
        return "attention_window" in self.fields
