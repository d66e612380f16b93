"""Configuration of the Macaron encoder-decoder."""

from sublayers.configuration.configuration_reordered_seq2seq import ReorderedSeq2SeqConfig
from sublayers.configuration.configuration_sublayers import NormPosition
from sublayers.configuration.field_values import strict


@strict
class MacaronSeq2SeqConfig(ReorderedSeq2SeqConfig):
    """A Transformer for translation with half a feed-forward step on both sides of its attention.

    The defaults are the base model of Lu et al. (2019), section 4.1, as its authors released it: norms before the
    sublayers and after the stacks, which the paper does not mention, and dropout in attention and feed-forward, too.
    """

    model_type = "macaron_seq2seq"

    encoder_sublayer_order: str = "(fsf)6"
    decoder_sublayer_order: str = "(fscf)6"
    intermediate_size: int | list[int] = 1024
    attention_dropout: float | int = 0.1
    activation_dropout: float | int = 0.1
    norm_position: NormPosition = "pre"
    final_norm: bool = True
    feed_forward_scale: float | int = 0.5
