"""`s`: self-attention, of the kind that the positions of a model need."""

from .order import Order
from .memory import RecurrentSublayer
from .mixers_attention import SelfAttention
from .mixers_relative_attention import RelativeAttention
from .mixers_relative_key_attention import RelativeKeyAttention
from .mixers_span_attention import SpanAttention
from .sublayer import Sublayer


def build(config, order: Order, place: int, is_causal: bool) -> Sublayer:
    """Make the sublayer at a place of an order."""
    slot = order.slot(place)
    if config.position_embedding_type == "relative":
        return RecurrentSublayer(config, RelativeAttention(config, slot))
    if config.position_embedding_type == "key_table":
        return RecurrentSublayer(config, SpanAttention(config, slot))
    kind = SelfAttention if config.relative_key_distance is None else RelativeKeyAttention
    return Sublayer(config, kind(config, slot, is_causal))
