"""`d`: a convolution whose kernels are made from each position's state."""

from sublayers.configuration.order import Order
from sublayers.modeling.mixers.convolution import build_convolution
from sublayers.modeling.sublayer import Sublayer


def build(config, order: Order, place: int, is_causal: bool) -> Sublayer:
    """Make the sublayer at a place of an order."""
    return build_convolution(config, order, place, is_causal, is_dynamic=True)
