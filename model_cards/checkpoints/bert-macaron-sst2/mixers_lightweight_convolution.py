"""`l`: a convolution with the same kernels everywhere."""

from .order import Order
from .mixers_convolution import build_convolution
from .sublayer import Sublayer


def build(config, order: Order, place: int, is_causal: bool) -> Sublayer:
    """Make the sublayer at a place of an order."""
    return build_convolution(config, order, place, is_causal, is_dynamic=False)
