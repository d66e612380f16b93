from .versions import TRANSFORMERS  # noqa: F401

"""Macaron BERT: half a feed-forward step on both sides of attention, in any order.

Lu et al. (2019), "Understanding and Improving Transformer From a Multi-Particle Dynamic System Point of View".
"""

from .configuration_macaron_bert import MacaronBertConfig
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


class MacaronBertModel(ReorderedBertModel):
    """The encoder of Macaron BERT."""

    config: MacaronBertConfig


class MacaronBertForPreTraining(ReorderedBertForPreTraining):
    """Macaron BERT with the heads for masked words and the next sentence."""

    config: MacaronBertConfig


class MacaronBertForMaskedLM(ReorderedBertForMaskedLM):
    """Macaron BERT with the head for masked words."""

    config: MacaronBertConfig


class MacaronBertForNextSentencePrediction(ReorderedBertForNextSentencePrediction):
    """Macaron BERT with the head for the next sentence."""

    config: MacaronBertConfig


class MacaronBertForSequenceClassification(ReorderedBertForSequenceClassification):
    """Macaron BERT that labels texts: one label, several, or a number."""

    config: MacaronBertConfig


class MacaronBertForTokenClassification(ReorderedBertForTokenClassification):
    """Macaron BERT that labels tokens."""

    config: MacaronBertConfig


class MacaronBertForQuestionAnswering(ReorderedBertForQuestionAnswering):
    """Macaron BERT that finds answers in a text."""

    config: MacaronBertConfig


class MacaronBertForMultipleChoice(ReorderedBertForMultipleChoice):
    """Macaron BERT that chooses between texts."""

    config: MacaronBertConfig


# transformers copies the files that a saved module imports; these lines name the whole family
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .configuration_macaron_bert import MacaronBertConfig
    from .question_answering import QuestionAnsweringPipeline
