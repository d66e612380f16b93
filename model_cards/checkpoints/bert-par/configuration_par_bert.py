from .versions import TRANSFORMERS  # noqa: F401

"""Configuration of PAR BERT."""

from .configuration_reordered_bert import ReorderedBertConfig
from .field_values import strict


@strict
class PARBertConfig(ReorderedBertConfig):
    """BERT with fewer attention and more feed-forward sublayers; with the order `(sf)12` it is BERT.

    Unlike in BERT, padding on the left or in between is not counted as positions.

    The defaults are PAR BERT base of Mandava et al. (2020), section 3.2: 5 self-attention, 19 feed-forward sublayers.
    """

    model_type = "par_bert"

    sublayer_order: str = "(sff)5f9"


# transformers copies the files that a saved module imports; these lines name the whole family
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .modeling_par_bert import PARBertForMultipleChoice
    from .question_answering import QuestionAnsweringPipeline
