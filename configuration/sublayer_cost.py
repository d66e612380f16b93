"""What an order costs at given sizes, counted from its letters alone; embeddings and heads are not included."""

from sublayers.configuration.sublayer_order import counts, expand, tail_start


def parameters(order: str, hidden_size: int, intermediate_size: int) -> int:
    """Weights, biases and the LayerNorm of every sublayer. Raises what `expand` raises."""
    attention = 4 * hidden_size**2 + 4 * hidden_size
    feed_forward = 2 * hidden_size * intermediate_size + hidden_size + intermediate_size
    norm = 2 * hidden_size
    number = counts(order)
    return (number["s"] + number["c"]) * (attention + norm) + number["f"] * (feed_forward + norm)


def cache_bytes(
    order: str, hidden_size: int, length: int, source_length: int | None = None, bytes_per_number: int = 2
) -> int:
    """Bytes of keys and values that one sequence of `length` tokens holds while it is decoded.

    Cross-attention holds those of the `source_length` encoder tokens (default: `length`). Raises what `expand` raises.
    """
    number = counts(order)
    source_length = length if source_length is None else source_length
    return 2 * hidden_size * bytes_per_number * (number["s"] * length + number["c"] * source_length)


def flops(
    order: str, hidden_size: int, intermediate_size: int, length: int, read: int, source_length: int | None = None
) -> int:
    """FLOPs of a forward pass over `length` tokens of which `read` positions are used, 2 for each multiply-add.

    From the last attention sublayer on nothing but the read positions is computed, except that sublayer's keys and
    values. Attention scores are counted in full, also where a causal mask would hide half of them; norms, softmax,
    activations and biases are not counted. `source_length` is the number of encoder tokens (default: `length`).

    Raises:
        ValueError: `read` is more than `length`, or the order is bad.
    """
    if not 0 <= read <= length:
        raise ValueError(f"read={read} is out of range; of {length} tokens, 0 to {length} positions can be read")
    source_length = length if source_length is None else source_length
    last_attention = tail_start(order) - 1
    multiply_adds = 0
    for index, letter in enumerate(expand(order)):
        rows = length if index < last_attention else read
        if letter == "f":
            multiply_adds += 2 * rows * hidden_size * intermediate_size
        else:
            keys = length if letter == "s" else source_length
            # queries and output, keys and values, scores and mix
            multiply_adds += 2 * hidden_size * (rows * hidden_size + keys * hidden_size + rows * keys)
    return 2 * multiply_adds


def read_positions(length: int) -> dict[str, int]:
    """How many of `length` positions a task reads: all of them, the masked 15 % (rounded up), or one."""
    return {"every": length, "15 %": -(-15 * length // 100), "one": 1}
