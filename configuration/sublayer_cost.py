"""What an order costs at given sizes, counted from its letters alone; embeddings and heads are not included."""

from sublayers.configuration.sublayer_order import SELF_MIXERS, counts, expand, tail_start


def parameters(
    order: str,
    hidden_size: int,
    intermediate_size: int,
    kernel_size: int = 31,
    num_attention_heads: int = 16,
    gated_convolutions: bool = True,
) -> int:
    """Weights, biases and the LayerNorm of every sublayer, where all convolutions have kernels of one size.

    Raises what `expand` raises.
    """
    attention = 4 * hidden_size**2 + 4 * hidden_size
    feed_forward = 2 * hidden_size * intermediate_size + hidden_size + intermediate_size
    # a projection with its gate, if it has one, one kernel for each head, and the output
    lightweight = (2 + gated_convolutions) * (hidden_size**2 + hidden_size) + num_attention_heads * kernel_size
    dynamic = lightweight + (hidden_size - 1) * num_attention_heads * kernel_size
    norm = 2 * hidden_size
    size = {"s": attention, "c": attention, "f": feed_forward, "d": dynamic, "l": lightweight}
    return sum(number * (size[letter] + norm) for letter, number in counts(order).items())


def cache_bytes(
    order: str, hidden_size: int, length: int, source_length: int | None = None, bytes_per_number: int = 2
) -> int:
    """Bytes of keys and values that one sequence of `length` tokens holds while it is decoded.

    A convolution keeps its inputs in the place of both.
    Cross-attention holds those of the `source_length` encoder tokens (default: `length`). Raises what `expand` raises.
    """
    number = counts(order)
    source_length = length if source_length is None else source_length
    own = sum(number[letter] for letter in SELF_MIXERS)
    return 2 * hidden_size * bytes_per_number * (own * length + number["c"] * source_length)


def flops(
    order: str,
    hidden_size: int,
    intermediate_size: int,
    length: int,
    read: int,
    source_length: int | None = None,
    kernel_size: int = 31,
    num_attention_heads: int = 16,
    gated_convolutions: bool = True,
) -> int:
    """FLOPs of a forward pass over `length` tokens of which `read` positions are used, 2 for each multiply-add.

    From the last attention or convolution on nothing but the read positions is computed, except that attention's keys
    and values, or all of that convolution but its output. Attention scores are counted in full, also where a causal
    mask would hide half of them; norms, softmax, activations and biases are not counted. `source_length` is the number
    of encoder tokens (default: `length`).

    Raises:
        ValueError: `read` is more than `length`, or the order is bad.
    """
    if not 0 <= read <= length:
        raise ValueError(f"read={read} is out of range; of {length} tokens, 0 to {length} positions can be read")
    source_length = length if source_length is None else source_length
    last_mixer = tail_start(order) - 1
    multiply_adds = 0
    for index, letter in enumerate(expand(order)):
        rows = length if index < last_mixer else read
        if letter == "f":
            multiply_adds += 2 * rows * hidden_size * intermediate_size
        elif letter in "dl":
            kernels = num_attention_heads * kernel_size if letter == "d" else 0
            projected = (1 + gated_convolutions) * hidden_size
            # projection and gate, kernels, sums under them, output
            multiply_adds += hidden_size * (length * (projected + kernels + kernel_size) + rows * hidden_size)
        else:
            keys = length if letter == "s" else source_length
            # queries and output, keys and values, scores and mix
            multiply_adds += 2 * hidden_size * (rows * hidden_size + keys * hidden_size + rows * keys)
    return 2 * multiply_adds


def read_positions(length: int) -> dict[str, int]:
    """How many of `length` positions a task reads: all of them, the masked 15 % (rounded up), or one."""
    return {"every": length, "15 %": -(-15 * length // 100), "one": 1}
