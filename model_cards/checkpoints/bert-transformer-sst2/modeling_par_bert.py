from .versions import TRANSFORMERS  # noqa: F401

"""PAR BERT: BERT with fewer attention and more feed-forward sublayers, in any order.

Mandava et al. (2020), "Pay Attention when Required", section 3.2.
"""

from .configuration_par_bert import PARBertConfig
from .modeling_reordered_bert import (
    ReorderedBertForMaskedLM,
    ReorderedBertForMultipleChoice,
    ReorderedBertForNextSentencePrediction,
    ReorderedBertForPreTraining,
    ReorderedBertForQuestionAnswering,
    ReorderedBertForSequenceClassification,
    ReorderedBertForTokenClassification,
    ReorderedBertModel,
)


class PARBertModel(ReorderedBertModel):
    """The encoder of PAR BERT."""

    config: PARBertConfig


class PARBertForPreTraining(ReorderedBertForPreTraining):
    """PAR BERT with the heads for masked words and the next sentence."""

    config: PARBertConfig


class PARBertForMaskedLM(ReorderedBertForMaskedLM):
    """PAR BERT with the head for masked words."""

    config: PARBertConfig


class PARBertForNextSentencePrediction(ReorderedBertForNextSentencePrediction):
    """PAR BERT with the head for the next sentence."""

    config: PARBertConfig


class PARBertForSequenceClassification(ReorderedBertForSequenceClassification):
    """PAR BERT that labels texts: one label, several, or a number."""

    config: PARBertConfig


class PARBertForTokenClassification(ReorderedBertForTokenClassification):
    """PAR BERT that labels tokens."""

    config: PARBertConfig


class PARBertForQuestionAnswering(ReorderedBertForQuestionAnswering):
    """PAR BERT that finds answers in a text."""

    config: PARBertConfig


class PARBertForMultipleChoice(ReorderedBertForMultipleChoice):
    """PAR BERT that chooses between texts."""

    config: PARBertConfig


# transformers copies the files that a saved module imports; these lines name the whole family
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .configuration_par_bert import PARBertConfig
    from .question_answering import QuestionAnsweringPipeline
