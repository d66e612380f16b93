"""Configuration of PAR BERT."""

from sublayers.configuration.configuration_reordered_bert import ReorderedBertConfig
from sublayers.configuration.field_values import strict


@strict
class PARBertConfig(ReorderedBertConfig):
    """BERT with fewer attention and more feed-forward sublayers; with the order `(sf)12` it is BERT.

    Unlike in BERT, padding on the left or in between is not counted as positions.

    The defaults are PAR BERT base of Mandava et al. (2020), section 3.2: 5 self-attention, 19 feed-forward sublayers.
    """

    model_type = "par_bert"

    sublayer_order: str = "(sff)5f9"
