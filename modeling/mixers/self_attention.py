"""`s`: self-attention, of the kind that the positions of a model need."""

from sublayers.configuration.order import Order
from sublayers.modeling.memory import RecurrentSublayer
from sublayers.modeling.mixers.attention import SelfAttention
from sublayers.modeling.mixers.relative_attention import RelativeAttention
from sublayers.modeling.mixers.relative_key_attention import RelativeKeyAttention
from sublayers.modeling.mixers.span_attention import SpanAttention
from sublayers.modeling.sublayer import Sublayer


def build(config, order: Order, place: int, is_causal: bool) -> Sublayer:
    """Make the sublayer at a place of an order."""
    slot = order.slot(place)
    if config.position_embedding_type == "relative":
        return RecurrentSublayer(config, RelativeAttention(config, slot))
    if config.position_embedding_type == "key_table":
        return RecurrentSublayer(config, SpanAttention(config, slot))
    kind = SelfAttention if config.relative_key_distance is None else RelativeKeyAttention
    return Sublayer(config, kind(config, slot, is_causal))
