"""What the configurations of the language models with memory share."""

from typing import Literal

from sublayers.configuration.configuration_sublayers import SublayersConfig, strict, tensor_parallel_plan


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

    @SublayersConfig.base_model_tp_plan.getter  # type: ignore[attr-defined]
    def base_model_tp_plan(self) -> dict[str, str]:
        """The tensor-parallel plan; every process has all of embeddings and attention."""
        plan = tensor_parallel_plan("f") if "f" in self.sublayer_order else {}
        return {name: split for name, split in plan.items() if name != "embed_tokens"}
