"""How the sublayers of each letter are made."""

from collections.abc import Callable

from sublayers.modeling.mixers.cross_attention import build as build_cross_attention
from sublayers.modeling.mixers.dynamic_convolution import build as build_dynamic_convolution
from sublayers.modeling.mixers.experts import build as build_experts
from sublayers.modeling.mixers.feed_forward import build as build_feed_forward
from sublayers.modeling.mixers.lightweight_convolution import build as build_lightweight_convolution
from sublayers.modeling.mixers.local_attention import build as build_local_attention
from sublayers.modeling.mixers.recurrence import build as build_recurrence
from sublayers.modeling.mixers.self_attention import build as build_self_attention
from sublayers.modeling.mixers.short_convolution import build as build_short_convolution
from sublayers.modeling.mixers.single_input_attention import build as build_single_input_attention
from sublayers.modeling.sublayer import Sublayer

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
