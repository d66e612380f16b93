"""What an order costs at given sizes, counted from its letters alone; embeddings and heads are not included."""

from collections.abc import Sequence
from typing import Any

from sublayers.configuration.letters.letter import Sizes, Work
from sublayers.configuration.order import Order


def sizes_by_place(order: Order, sizes: Sizes) -> list[Sizes]:
    """Say what the cost of the sublayer at each place depends on. Raises what `Order.widths` raises."""
    widths = order.widths(sizes.intermediate_size)
    own = {width: sizes._replace(intermediate_size=width) for width in {*widths.values()}}
    return [own[widths[place]] if place in widths else sizes for place in range(len(order))]


def parameters(
    order: str | Order, hidden_size: int, intermediate_size: int | Sequence[int], *more_sizes: Any, **named_sizes: Any
) -> int:
    """Weights, biases and the norm of every sublayer, where all convolutions have kernels of one size.

    A sublayer that runs at several places counts once.
    A list of intermediate sizes has one for each feed-forward sublayer. More sizes are those of `Sizes`.
    Raises what `Order` and `Order.widths` raise.
    """
    order = Order(order)
    sizes = sizes_by_place(order, Sizes(hidden_size, intermediate_size, *more_sizes, **named_sizes))
    own = [order.kinds[place].parameters(sizes[place]) for place in order.first_places]
    return sum(own) + len(own) * sizes[0].norm_vectors * hidden_size


def cache_bytes(
    order: str | Order,
    hidden_size: int,
    length: int,
    source_length: int | None = None,
    bytes_per_number: int = 2,
    **named_sizes: Any,
) -> int:
    """Bytes of keys and values that one sequence of `length` tokens holds while it is decoded.

    A convolution keeps its inputs in the place of both, local attention what the next token sees, and a recurrence a
    state, whose numbers have 32 bits.
    Cross-attention holds those of the `source_length` encoder tokens (default: `length`). More sizes are those of
    `Sizes`. Raises what `Order` raises.
    """
    sizes = Sizes(hidden_size, **named_sizes)
    tokens = {"self": length, "cross": length if source_length is None else source_length}
    kinds = [(kind, tokens[kind.cache]) for kind in Order(order).kinds if kind.cache]
    kept = sum(kind.cache_width(sizes) * kind.cached_tokens(sizes, count) for kind, count in kinds)
    return 2 * bytes_per_number * kept + sum(kind.state_bytes(sizes, count) for kind, count in kinds)


def memory_bytes(order: str | Order, hidden_size: int, memory_length: int, bytes_per_number: int = 2) -> int:
    """Bytes of the hidden states that one text holds while it is read in segments: those before each self-attention.

    Raises what `Order` raises.
    """
    return Order(order).counts["s"] * memory_length * hidden_size * bytes_per_number


def flops(
    order: str | Order,
    hidden_size: int,
    intermediate_size: int | Sequence[int],
    length: int,
    read: int,
    source_length: int | None = None,
    *more_sizes: Any,
    keeps_cache: bool = False,
    cached: int = 0,
    takes_mean: bool = False,
    **named_sizes: Any,
) -> int:
    """FLOPs of a forward pass over `length` tokens of which `read` positions are used, 2 for each multiply-add.

    From the last attention or convolution on, only the read positions are computed, except for the keys and values of
    that attention, or for all of that convolution but its output. Local attentions at the end of an order need fewer
    and fewer tokens around one that is read (here at an end of the text). Self-attention that is read at one position
    has no keys and values either, where it folds. Neither holds where the order `keeps_cache`, as when a prompt is
    prefilled (or a model trained). Attention scores are counted in full, also where a causal mask would hide half of
    them; norms, rotations, softmax, activations, gates' products and biases are not counted. `source_length` is the
    number of encoder tokens (default: `length`). Their keys and values are there already where a number of tokens
    before these are `cached`. More sizes are those of `Sizes`. With a `memory_length`, the tokens are a segment after a
    full memory of hidden states. Sublayers `m` see all tokens as they are before the first of them, and compute the
    read ones alone. If the tail `takes_mean` (`tail_query="mean"`), the last sublayer before it computes all tokens,
    too.

    Raises:
        ValueError: `read` is more than `length`, or the order or a list of widths is bad.
    """
    sizes = Sizes(hidden_size, intermediate_size, *more_sizes, **named_sizes)
    if not 0 <= read <= length:
        raise ValueError(f"read={read} is out of range; of {length} tokens, 0 to {length} positions can be read")
    source_length = length if source_length is None else source_length
    order = Order(order)
    # how many tokens leave at which place
    tail, near = order.tail_start, order.reaches(sizes)
    leaving = {tail - 1: read}
    if read == 1 and not keeps_cache and len(near) > 1:
        leaving = {place: min(length, 1 + max(counts)) for place, counts in near.items()}
    # what the tail attends to, or takes the mean of, is computed for all tokens
    whole_until_tail = takes_mean or order.has_fixed_states
    tokens, multiply_adds = leaving.get(-1, length), 0
    for place, (kind, own) in enumerate(zip(order.kinds, sizes_by_place(order, sizes), strict=True)):
        left = leaving.get(place, tokens)
        seen = length if kind.reads_fixed_states else tokens
        computed = tokens if whole_until_tail and place < tail else left
        multiply_adds += kind.multiply_adds(own, Work(seen, computed, source_length, keeps_cache, cached))
        tokens = left
    return 2 * multiply_adds


def read_positions(length: int) -> dict[str, int]:
    """How many of `length` positions a task reads: all of them, the masked 15 % (rounded up), or one."""
    return {"every": length, "15 %": -(-15 * length // 100), "one": 1}


# the values of --read, and what `read_positions` calls them
READS = dict(zip(("all", "masked", "one"), read_positions(1), strict=True))
