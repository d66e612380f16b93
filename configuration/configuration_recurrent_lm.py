"""What the configurations of the language models with memory share."""

from typing import ClassVar, Literal

from sublayers.configuration.configuration_sublayers import NormPosition, SublayersConfig
from sublayers.configuration.field_values import strict
from sublayers.configuration.order import Order
from sublayers.configuration.parallel_plans import tensor_parallel_plan

# what attention with memory leaves as it is
ATTENTION = {
    "attention_window": None,
    "attention_bias": False,
    "attention_output_bias": False,
    "num_key_value_heads": None,
    "head_dim": None,
    "qk_norm": False,
    "attention_output_gate": False,
    "attn_logit_softcapping": None,
    "relative_key_distance": None,
}


@strict
class RecurrentLMConfig(SublayersConfig):
    """A causal language model whose attention sublayers remember the segments before; nothing limits a text's length.

    Raises:
        ValueError: what every configuration refuses.
    """

    order_fields: ClassVar[dict[str, str]] = {"sublayer_order": "segmented"}
    # the field that says how many tokens before its own a token sees
    reach_field: ClassVar[str]

    position_embedding_type: Literal["relative", "key_table"] = "relative"  # type: ignore[assignment]
    max_position_embeddings: int | None = None  # type: ignore[assignment]
    norm_position: NormPosition = "post"
    attention_bias: bool = False
    attention_output_bias: bool = False

    @property
    def sliding_window(self) -> int:
        """What transformers' caches call all that a new token sees, itself included; setting it sets its field."""
        return getattr(self, self.reach_field) + 1

    @sliding_window.setter
    def sliding_window(self, value: int | None):
        setattr(self, self.reach_field, value - 1 if isinstance(value, int) else value)

    @SublayersConfig.base_model_tp_plan.getter  # type: ignore[attr-defined]
    def base_model_tp_plan(self) -> dict[str, str]:
        """The tensor-parallel plan; every process has all of embeddings and attention."""
        kinds = zip(self.order, self.order.kinds, strict=True)
        whole = "".join(letter for letter, kind in kinds if kind.is_position_wise)
        plan = tensor_parallel_plan(self, Order(whole)) if whole else {}
        return {name: split for name, split in plan.items() if name != "embed_tokens"}

    def validate_architecture(self):
        """Check also that no option is set that attention to distances does not have."""
        super().validate_architecture()
        if self.order.has_fixed_states:
            raise ValueError(
                f"{self.model_type} has no sublayers m in its sublayer_order, here {self.sublayer_order!r}: what it "
                "remembers belongs to each attention; use s"
            )
        for name, only in ATTENTION.items():
            if (value := getattr(self, name)) != only:
                raise ValueError(f"{self.model_type} cannot have {name}={value}; leave it {only}")
