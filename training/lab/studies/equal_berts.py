"""The BERTs that a study compares: with equal parameters, and controls of equal cost."""

from typing import NamedTuple

from sublayers.configuration.order import Order, compact, interleaved
from sublayers.configuration.sublayer_cost import flops, parameters

# the positions that are read in the cost
LENGTH = 128


class Studied(NamedTuple):
    """A model of the study: its family, and the order of its sublayers.

    A control of equal cost has a `width` as a share of the others', and feed-forward sublayers four times as wide as
    its states; without one, a model has BERT's number of sublayer parameters.
    """

    model_type: str
    order: str
    width: float | None = None

    @property
    def kind(self) -> str:
        """What the model is beside BERT."""
        if self.width not in (None, 1):
            return "narrower"
        if Order(self.order).has_fixed_states:
            return "attending tail"
        return "plain" if self.order == interleaved(Order(self.order).counts["s"]) else "re-ordered"

    def sizes(self, hidden_size: int, num_attention_heads: int) -> tuple[int, int]:
        """Find the widths of states and of feed-forward sublayers, among models of that width."""
        if self.width is None:
            return hidden_size, intermediate_size(self.order, hidden_size)
        own = num_attention_heads * round(self.width * hidden_size / num_attention_heads)
        return own, 4 * own

    def cost(self, hidden_size: int, num_attention_heads: int) -> float:
        """Count the FLOPs of classifying a text, as a share of BERT's."""
        own, bert = self.sizes(hidden_size, num_attention_heads), (hidden_size, 4 * hidden_size)
        counted = [
            flops(order, *widths, LENGTH, 1, num_attention_heads=num_attention_heads)
            for order, widths in ((self.order, own), (interleaved(12), bert))
        ]
        return counted[0] / counted[1]


MODELS = {
    "bert": Studied("par_bert", "(sf)12"),
    "par_bert": Studied("par_bert", "(sff)5f9"),
    "macaron_bert": Studied("macaron_bert", "(fsf)12"),
    "s12f12": Studied("par_bert", "s12f12"),
    "s5f19": Studied("par_bert", "s5f19"),
    # what s12f12 and s5f19 cost can be had with fewer layers, or narrower ones
    "5_layers": Studied("par_bert", "(sf)5", 1),
    "3_layers": Studied("par_bert", "(sf)3", 1),
    "2_layers": Studied("par_bert", "(sf)2", 1),
    "narrow_s12f12": Studied("par_bert", "(sf)12", 0.625),
    "narrow_s5f19": Studied("par_bert", "(sf)12", 0.375),
}


def intermediate_size(order: str, hidden_size: int) -> int:
    """Find the feed-forward width that gives an order as many parameters as BERT of 12 layers has in its sublayers.

    Rounded to a multiple of 8, which processors like.
    """
    budget = parameters(interleaved(12), hidden_size, 4 * hidden_size)
    fixed = parameters(order, hidden_size, 0)
    return 8 * round((budget - fixed) / (parameters(order, hidden_size, 1) - fixed) / 8)


def read_model(name: str) -> Studied:
    """Find a model by its name, or make one of an order. Raises ValueError where it is neither."""
    if name in MODELS:
        return MODELS[name]
    try:
        return Studied("par_bert", compact(name), 1)
    except ValueError as error:
        raise ValueError(f"unknown model {name!r}; choose from {', '.join(MODELS)}, or write an order") from error
