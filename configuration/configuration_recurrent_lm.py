"""What the configurations of the language models with memory share."""

from typing import Literal

from sublayers.configuration.configuration_sublayers import SublayersConfig, strict


@strict
class RecurrentLMConfig(SublayersConfig):
    """A causal language model whose attention sublayers remember the segments before; nothing limits a text's length.

    Raises:
        ValueError: what every configuration refuses.
    """

    keys_to_ignore_at_inference = ["past_key_values", "memory"]

    position_embedding_type: Literal["relative", "key_table"] = "relative"  # type: ignore[assignment]
    max_position_embeddings: int | None = None  # type: ignore[assignment]
    norm_position: Literal["pre", "post"] = "post"
