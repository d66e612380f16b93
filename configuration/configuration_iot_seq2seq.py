"""Configuration of the instance-wise ordered encoder-decoder."""

from dataclasses import field
from typing import ClassVar, Literal

from sublayers.configuration.configuration_reordered_seq2seq import ReorderedSeq2SeqConfig
from sublayers.configuration.field_values import number, strict
from sublayers.configuration.order import Order


@strict
class IOTSeq2SeqConfig(ReorderedSeq2SeqConfig):
    """A Transformer that predicts for each sentence in which order the sublayers of its blocks run.

    Zhu et al. (2021), "IOT: Instance-wise Layer Reordering for Transformer Structures". The defaults are the paper's
    four decoder orders and its model for IWSLT. Where the authors' code does something else than the paper says, a
    field chooses; the defaults are the paper's, and those of the code where the paper names none.

    Raises:
        ValueError: a list of orders that is empty, repeats one, mixes different sublayers or has self-attention and
            convolutions in several sequences, a temperature that is not positive, a least probability that this many
            orders cannot all have, or what every configuration refuses.
    """

    model_type = "iot_seq2seq"
    order_fields: ClassVar[dict[str, str]] = {"encoder_orders": "encoder", "decoder_orders": "decoder"}
    keys_to_ignore_at_inference = [
        *ReorderedSeq2SeqConfig.keys_to_ignore_at_inference,
        *("encoder_order", "decoder_order", "cross_entropy", "diversity", "sharpness"),
    ]

    # each is the order of one block; all orders of a stack have the same sublayers
    encoder_orders: list[str] = field(default_factory=lambda: ["sf"])
    decoder_orders: list[str] = field(default_factory=lambda: ["scf", "fsc", "csf", "fcs"])
    num_encoder_blocks: int = number(6, least=1)
    num_decoder_blocks: int = number(6, least=1)
    intermediate_size: int = 1024  # type: ignore[assignment]
    num_attention_heads: int = 4
    dropout: float | int = 0.3
    # the share of blocks that a training step leaves out (LayerDrop, Fan et al. 2019)
    layerdrop: float | int = number(0.0, most=1)
    # without prediction all orders are trained alike, and the first is used (section 5.4, setting 1)
    predict_order: bool = True
    # product: each encoder order with each decoder order (equation 3). paired (the authors' code): a pass for each
    # decoder order, with encoder order 0, 1, ... or the last; the encoder's orders are not predicted
    order_paths: Literal["product", "paired"] = "product"
    # the authors' code runs the encoder anew for each decoder order
    shared_encoder: bool = True
    # the authors' code drops predictor logits as it drops hidden states
    predictor_dropout: float | int = number(0.0, most=1)
    # the paper names no value; the authors' settings keep the confidences close to equal
    gumbel_temperature: float | int = number(20.0)
    gumbel_temperature_min: float | int = number(2.0)
    # the decay of the exponent per update, applied every 5,000 updates
    gumbel_temperature_decay: float | int = number(0.0)
    # the authors' code draws noise in each pass and averages
    gumbel_per_pass: bool = False
    # what probabilities are clamped to in the sharpness loss and, with clamp_gumbel, before the noise
    min_order_probability: float | int = number(0.05, most=1)
    clamp_gumbel: bool = True
    # the authors' code sums the smoothing of all orders, whatever their confidences
    weighted_smoothing: bool = True
    # c1 and c2 of equation 7
    diversity_weight: float | int = number(0.1)
    # the alternative of section 3.2, with c2 = 0: c1 falls to zero in this number of updates; None: it stays
    diversity_decay_updates: int | None = number(None, least=1)
    sharpness_weight: float | int = number(0.01)

    def __setattr__(self, name, value):
        if name in self.order_fields and isinstance(value, list) and (named := [each for each in value if "_" in each]):
            raise ValueError(
                f"{self.model_type} has no names of sublayers in its {name}, here {named[0]!r}: each block has its "
                "own; leave the names out"
            )
        super().__setattr__(name, value)

    @property
    def orders(self) -> dict[str, Order]:
        """The first order of each stack, by the name of the field that lists all of them."""
        return {name: orders[0] for name, orders in zip(self.order_fields, self.stack_orders, strict=True)}

    @property
    def stack_orders(self) -> list[list[Order]]:
        """The orders in which the whole encoder, and those in which the whole decoder can run.

        Raises:
            ValueError: a list is empty.
        """
        stacks = []
        for name, blocks in zip(self.order_fields, (self.num_encoder_blocks, self.num_decoder_blocks), strict=True):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty; give at least one order")
            stacks.append([Order(f"({order}){blocks}") for order in getattr(self, name)])
        return stacks

    @property
    def num_predicted_orders(self) -> tuple[int, int]:
        """How many orders the predictors of encoder and decoder choose from; 0 where there is nothing to predict."""
        encoder = len(self.encoder_orders) if self.order_paths == "product" else 1
        numbers = (encoder, len(self.decoder_orders))
        return tuple(number if self.predict_order and number > 1 else 0 for number in numbers)  # type: ignore[return-value]

    @property
    def paths(self) -> list[tuple[int, int]]:
        """The pairs of an encoder and a decoder order that are trained (equation 3)."""
        encoders, decoders = range(len(self.encoder_orders)), range(len(self.decoder_orders))
        if self.order_paths == "paired":
            return [(min(n, encoders[-1]), n) for n in decoders]
        return [(m, n) for m in encoders for n in decoders]

    def validate_architecture(self):
        """Check also that the orders of a stack differ, and run the same sublayers."""
        for name in self.order_fields:
            orders = [Order(order) for order in getattr(self, name)]
            if len({*orders}) < len(orders):
                raise ValueError(f"{name}={getattr(self, name)} holds an order twice; leave one of them out")
            if len({"".join(sorted(order)) for order in orders}) > 1:
                raise ValueError(
                    f"{name}={getattr(self, name)} must have the same letters in other orders; correct them"
                )
            if any(order.has_fixed_states for order in orders):
                raise ValueError(
                    f"{self.model_type} has no sublayers m in its {name}, here {getattr(self, name)}: its orders would "
                    "attend to states of different depths; use s"
                )
            # a cache needs the same slots for all rows
            remembering = {"".join(order.letters[place] for place in order.slots("self")) for order in orders}
            if len(remembering) > 1:
                raise ValueError(
                    f"{name}={getattr(self, name)} run self-attention and convolutions in the sequences "
                    f"{sorted(remembering)}; bring them into one, and vary what stands between them"
                )
            # even the uniform distribution would be clamped
            if len(orders) * self.min_order_probability > 1:
                raise ValueError(
                    f"{len(orders)} orders cannot all have min_order_probability={self.min_order_probability}; "
                    f"give at most {1 / len(orders):.3g}"
                )
        for name in ("gumbel_temperature", "gumbel_temperature_min"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)} must be positive; give a larger number")
        if self.pre_attention_act is not None:
            raise ValueError(f"{self.model_type} has several orders and no pre_attention_act; leave it out")
        super().validate_architecture()
