"""How the sublayers of each letter are made."""

from collections.abc import Callable

from .mixers_cross_attention import build as build_cross_attention
from .mixers_dynamic_convolution import build as build_dynamic_convolution
from .mixers_experts import build as build_experts
from .mixers_feed_forward import build as build_feed_forward
from .mixers_lightweight_convolution import build as build_lightweight_convolution
from .mixers_local_attention import build as build_local_attention
from .mixers_recurrence import build as build_recurrence
from .mixers_self_attention import build as build_self_attention
from .mixers_short_convolution import build as build_short_convolution
from .mixers_single_input_attention import build as build_single_input_attention
from .sublayer import Sublayer

BUILDERS: dict[str, Callable[..., Sublayer]] = {
    "s": build_self_attention,
    "w": build_local_attention,
    "c": build_cross_attention,
    "f": build_feed_forward,
    "d": build_dynamic_convolution,
    "l": build_lightweight_convolution,
    "m": build_single_input_attention,
    "g": build_short_convolution,
    "e": build_experts,
    "r": build_recurrence,
}
