from .versions import TRANSFORMERS  # noqa: F401

"""Configuration of the Macaron encoder-decoder."""

from .configuration_reordered_seq2seq import ReorderedSeq2SeqConfig
from .configuration_sublayers import NormPosition
from .field_values import strict


@strict
class MacaronSeq2SeqConfig(ReorderedSeq2SeqConfig):
    """A Transformer for translation with half a feed-forward step on both sides of its attention.

    The defaults are the base model of Lu et al. (2019), section 4.1, as its authors released it: norms before the
    sublayers and after the stacks, which the paper does not mention, and dropout in attention and feed-forward, too.
    """

    model_type = "macaron_seq2seq"

    encoder_sublayer_order: str = "(fsf)6"
    decoder_sublayer_order: str = "(fscf)6"
    intermediate_size: int = 1024
    attention_dropout: float | int = 0.1
    activation_dropout: float | int = 0.1
    norm_position: NormPosition = "pre"
    final_norm: bool = True
    feed_forward_scale: float | int = 0.5


# transformers copies the files that a saved module imports; these lines name the whole family
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .modeling_macaron_seq2seq import MacaronSeq2SeqForSequenceClassification
    from .text2text_generation import TranslationPipeline
