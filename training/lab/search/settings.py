"""What a search can be asked for, known before torch and the models, which take seconds to import."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sublayers.training.lab.search.price import Price

Cost = Literal["flops", "parameters", "milliseconds", "cache"]


@dataclass
class Settings:
    """How a super-network searches; the defaults are the paper's or, where it has none, those of FBNet, its source.

    Attributes:
        field: name of the order that is searched.
        letters: the candidates of a layer.
        warmup_share: of all steps, in which all candidates weigh alike in the mean and only the model is trained.
        held_out_share: of the data, which trains the architecture and never the model.
        learning_rate: of the architecture.
        weight_decay: of the architecture.
        temperatures: of the Gumbel softmax, when the search begins and when it ends.
        patience: share of the steps after the warm-up for which the order must not have changed to end the search.
        price: what sublayers cost, if it matters.
        budget: what the order may cost, in the price's unit.
        price_rate: how fast the weight of the price in the loss grows while the mean cost is above the budget.
    """

    field: str
    letters: str
    warmup_share: float = 0.25
    held_out_share: float = 0.2
    learning_rate: float = 1e-2
    weight_decay: float = 5e-4
    temperatures: tuple[float, float] = (5.0, 0.1)
    patience: float = 0.75
    price: "Price | None" = None
    budget: float | None = None
    price_rate: float = 0.02

    def __post_init__(self):
        for name in ("warmup_share", "held_out_share", "patience"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is no share; give a number between 0 and 1")
        for name, value in (("learning_rate", self.learning_rate), ("temperatures", min(self.temperatures))):
            if value <= 0:
                raise ValueError(f"{name} of {value} would learn nothing; give more than 0")
