"""What an order costs, counted from its letters: FLOPs, parameters, or the cache of a text."""

from typing import Any, Literal

from sublayers.configuration.sublayer_cost import READS, cache_bytes, flops, parameters, read_positions

Counted = Literal["flops", "parameters", "cache"]


def count(kind: Counted, order: str, length: int, read: str, sizes: dict[str, Any]) -> float:
    """Count what the sublayers of one stack cost for one text; embeddings and heads are not included.

    Args:
        kind: FLOPs, parameters, or bytes of keys and values in half precision.
        order: of the sublayers.
        length: tokens of the text and, for cross-attention, of its source.
        read: which positions are read, one of `READS`, or "next": the token after the text, whose keys and values, and
            those of the source, are cached.
        sizes: of the model, as `config.sizes` names them.

    Raises:
        ValueError: a bad order.
    """
    if kind == "parameters":
        return parameters(order, **sizes)
    if kind == "cache":
        return cache_bytes(order, length=length, **sizes)
    if read == "next":
        return flops(order, length=1, read=1, source_length=0, keeps_cache=True, **sizes)
    return flops(order, length=length, read=read_positions(length)[READS[read]], **sizes)
