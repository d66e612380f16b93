"""Configuration of the sandwich language model."""

from huggingface_hub.dataclasses import strict
from transformers.utils.type_validators import interval

from sublayers.configuration.configuration_sublayers import SublayersConfig


@strict
class SandwichLMConfig(SublayersConfig):
    """A causal language model over self-attention and feed-forward sublayers in any order.

    The defaults are the model of Press, Smith and Levy (2020), section 5.1: the pre-norm decoder of Baevski and Auli
    with sinusoidal positions, scaled embeddings tied to the output, no norm after the last sublayer and, as in the
    released code, 8 heads.
    """

    model_type = "sandwich_lm"
    keys_to_ignore_at_inference = ["past_key_values"]

    sublayer_order: str = "s6(sf)10f6"
    dropout: float | int = interval(min=0.0, max=1.0)(default=0.3)
