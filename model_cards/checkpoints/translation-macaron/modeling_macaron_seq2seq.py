from .versions import TRANSFORMERS  # noqa: F401

"""The Macaron encoder-decoder.

Lu et al. (2019), "Understanding and Improving Transformer From a Multi-Particle Dynamic System Point of View".
"""

from .configuration_macaron_seq2seq import MacaronSeq2SeqConfig
from .modeling_reordered_seq2seq import (
    ReorderedSeq2SeqForConditionalGeneration,
    ReorderedSeq2SeqForSequenceClassification,
    ReorderedSeq2SeqModel,
)


class MacaronSeq2SeqModel(ReorderedSeq2SeqModel):
    """See `ReorderedSeq2SeqModel`."""

    config: MacaronSeq2SeqConfig


class MacaronSeq2SeqForConditionalGeneration(ReorderedSeq2SeqForConditionalGeneration):
    """See `ReorderedSeq2SeqForConditionalGeneration`."""

    config: MacaronSeq2SeqConfig


class MacaronSeq2SeqForSequenceClassification(ReorderedSeq2SeqForSequenceClassification):
    """See `ReorderedSeq2SeqForSequenceClassification`."""

    config: MacaronSeq2SeqConfig


# transformers copies the files that a saved module imports; these lines name the whole family
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .configuration_macaron_seq2seq import MacaronSeq2SeqConfig
    from .text2text_generation import TranslationPipeline
