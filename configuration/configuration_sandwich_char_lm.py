"""Configuration of the sandwich character model."""

from typing import Literal

from sublayers.configuration.configuration_recurrent_lm import RecurrentLMConfig
from sublayers.configuration.field_values import number, strict


@strict
class SandwichCharLMConfig(RecurrentLMConfig):
    """A character model that learns how far back each attention head looks, over sublayers in any order.

    The defaults are the model of Press, Smith and Levy (2020), section 5.2, on enwik8, which is that of Sukhbaatar et
    al. (2019), "Adaptive Attention Span in Transformers", in another order: 209 million parameters.

    Raises:
        ValueError: what every configuration refuses.
    """

    model_type = "sandwich_char_lm"
    reach_field = "attention_span"

    sublayer_order: str = "s5(sf)19f5"
    vocab_size: int = 205
    hidden_size: int = 768
    dropout: float | int = 0.0
    attention_dropout: float | int = 0.4
    activation_dropout: float | int = 0.4
    position_embedding_type: Literal["key_table"] = "key_table"  # type: ignore[assignment]
    scale_embedding: bool = False
    tie_word_embeddings: bool = False
    # how many tokens before it each token sees, itself not included
    attention_span: int = number(8192, least=1)
    # whether every head learns which share of the span it reads, or else reads all of it
    adaptive_span: bool = True
    # over how many tokens the attention of a head fades out
    span_ramp_size: int = number(32, least=1)
    # what share that is in the beginning
    initial_span_share: float | int = number(0.0, most=1)
    # what each token of a head's mean span adds to the loss
    span_loss: float = number(5e-7)
