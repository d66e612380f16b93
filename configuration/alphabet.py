"""The letters of the order language."""

from sublayers.configuration.letters.cross_attention import LETTER as CROSS_ATTENTION
from sublayers.configuration.letters.dynamic_convolution import LETTER as DYNAMIC_CONVOLUTION
from sublayers.configuration.letters.experts import LETTER as EXPERTS
from sublayers.configuration.letters.feed_forward import LETTER as FEED_FORWARD
from sublayers.configuration.letters.letter import Letter
from sublayers.configuration.letters.lightweight_convolution import LETTER as LIGHTWEIGHT_CONVOLUTION
from sublayers.configuration.letters.local_attention import LETTER as LOCAL_ATTENTION
from sublayers.configuration.letters.recurrence import LETTER as RECURRENCE
from sublayers.configuration.letters.self_attention import LETTER as SELF_ATTENTION
from sublayers.configuration.letters.short_convolution import LETTER as SHORT_CONVOLUTION
from sublayers.configuration.letters.single_input_attention import LETTER as SINGLE_INPUT_ATTENTION

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
