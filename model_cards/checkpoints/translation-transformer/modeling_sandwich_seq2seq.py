from .versions import TRANSFORMERS  # noqa: F401

"""The sandwich encoder-decoder.

Press, Smith and Levy (2020), "Improving Transformer Models by Reordering their Sublayers", section 5.3.
"""

from .configuration_sandwich_seq2seq import SandwichSeq2SeqConfig
from .modeling_reordered_seq2seq import (
    ReorderedSeq2SeqForConditionalGeneration,
    ReorderedSeq2SeqForSequenceClassification,
    ReorderedSeq2SeqModel,
)


class SandwichSeq2SeqModel(ReorderedSeq2SeqModel):
    """See `ReorderedSeq2SeqModel`."""

    config: SandwichSeq2SeqConfig


class SandwichSeq2SeqForConditionalGeneration(ReorderedSeq2SeqForConditionalGeneration):
    """See `ReorderedSeq2SeqForConditionalGeneration`."""

    config: SandwichSeq2SeqConfig


class SandwichSeq2SeqForSequenceClassification(ReorderedSeq2SeqForSequenceClassification):
    """See `ReorderedSeq2SeqForSequenceClassification`."""

    config: SandwichSeq2SeqConfig


# transformers copies the files that a saved module imports; these lines name the whole family
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .configuration_sandwich_seq2seq import SandwichSeq2SeqConfig
    from .text2text_generation import TranslationPipeline
