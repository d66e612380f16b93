"""Configuration of the sandwich encoder-decoder."""

from sublayers.configuration.configuration_reordered_seq2seq import ReorderedSeq2SeqConfig
from sublayers.configuration.field_values import strict


@strict
class SandwichSeq2SeqConfig(ReorderedSeq2SeqConfig):
    """A Transformer for translation whose encoder or decoder is a sandwich.

    The defaults are the large model of Press, Smith and Levy (2020), section 5.3, with the encoder that scored best
    there, `sandwich(6, 3)`. A sandwiched decoder, `sandwich(6, k, decoder=True)`, keeps self- and cross-attention
    together.
    """

    model_type = "sandwich_seq2seq"

    encoder_sublayer_order: str = "s3(sf)3f3"
    decoder_sublayer_order: str = "(scf)6"
    hidden_size: int = 1024
    intermediate_size: int | list[int] = 4096
    num_attention_heads: int = 16
    dropout: float | int = 0.3
