"""The flags of searches, known before torch and the models, which take seconds to import."""

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from sublayers.configuration.sublayer_cost import READS
from sublayers.training.flags import finite, flag, positive
from sublayers.training.trials import add_flags

if TYPE_CHECKING:
    from sublayers.training.lab.search.price import Price

Cost = Literal["flops", "parameters", "milliseconds", "cache"]


@dataclasses.dataclass
class Settings:
    """How a super-network searches; the defaults are the paper's or, where it has none, those of FBNet, its source.

    What has a help is a flag of `sublayers search supernet`.

    Attributes:
        field: name of the order that is searched.
        letters: the candidates of a layer.
        price: what sublayers cost, if it matters.
        budget: what the order may cost, in the price's unit.
        price_rate: how fast the weight of the price in the loss grows while the mean cost is above the budget.
    """

    field: str
    letters: str
    warmup_share: float = flag("of the steps, in which the architecture is frozen", 0.25)
    held_out_share: float = flag("of the training data, which trains the architecture alone", 0.2)
    learning_rate: float = flag("of the architecture", 1e-2)
    weight_decay: float = flag("of the architecture", 5e-4)
    temperatures: tuple[float, float] = flag(
        "of the Gumbel softmax, when the search begins and when it ends", (5.0, 0.1)
    )
    patience: float = flag("share of the steps after the warm-up in which an unchanged order ends the search", 0.75)
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


def costs_of(order: str) -> str:
    """Name the attribute of a study that holds what an order costs."""
    return f"costs of {order}"


def add_price_flags(parser: argparse.ArgumentParser, effect: str = "") -> None:
    """Add the flags of a search that knows what orders cost; `effect` says what else a budget does."""
    parser.add_argument("--cost", choices=get_args(Cost), default="flops", help="what an order costs")
    parser.add_argument("--read", choices=[*READS], default="all", help="positions that are read; classifiers read one")
    budget_help = f"what an order may cost, as a share of the cost of the one that the flags give{effect}"
    parser.add_argument("--budget", type=finite, help=budget_help)


def make_parser(kind: str, description: str | None) -> argparse.ArgumentParser:
    """Make the parser of `sublayers search KIND` with the flags that all searches have."""
    parser = argparse.ArgumentParser(prog=f"sublayers search {kind}", description=description, allow_abbrev=False)
    folder = f"runs/search-{kind}"
    folder_help = f"default {folder}; what is finished in it is not run again"
    parser.add_argument("training", choices=("pretrain", "seq2seq"), help="the command that trains an order")
    parser.add_argument("--output_dir", type=Path, default=Path(folder), help=folder_help)
    parser.add_argument("--stack", choices=("encoder", "decoder"), default="decoder", help="of an encoder-decoder")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="each order is trained with each seed")
    add_flags(parser)
    parser.add_argument("--length", type=positive, default=128, help="tokens of a sequence whose cost is counted")
    parser.epilog = (
        "All other flags are those of the training, after an optional recipe or settings file of it. The order that "
        "they give says which sublayers there are, and how many. Give a tokenizer; otherwise each run trains one."
    )
    return parser
