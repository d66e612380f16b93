"""The letters of the order language."""

from .letters_cross_attention import LETTER as CROSS_ATTENTION
from .letters_dynamic_convolution import LETTER as DYNAMIC_CONVOLUTION
from .letters_experts import LETTER as EXPERTS
from .letters_feed_forward import LETTER as FEED_FORWARD
from .letters_letter import Letter
from .letters_lightweight_convolution import LETTER as LIGHTWEIGHT_CONVOLUTION
from .letters_local_attention import LETTER as LOCAL_ATTENTION
from .letters_recurrence import LETTER as RECURRENCE
from .letters_self_attention import LETTER as SELF_ATTENTION
from .letters_short_convolution import LETTER as SHORT_CONVOLUTION
from .letters_single_input_attention import LETTER as SINGLE_INPUT_ATTENTION

# random draws depend on the sequence
ALPHABET: dict[str, Letter] = {
    "s": SELF_ATTENTION,
    "w": LOCAL_ATTENTION,
    "c": CROSS_ATTENTION,
    "f": FEED_FORWARD,
    "d": DYNAMIC_CONVOLUTION,
    "l": LIGHTWEIGHT_CONVOLUTION,
    "m": SINGLE_INPUT_ATTENTION,
    "g": SHORT_CONVOLUTION,
    "e": EXPERTS,
    "r": RECURRENCE,
}
