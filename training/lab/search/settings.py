"""The flags of searches, known before torch and the models, which take seconds to import."""

from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sublayers.configuration.sublayer_cost import READS
from sublayers.training.flags import expand_settings_file, flag, number, recipes
from sublayers.training.trials import TrialsArguments

if TYPE_CHECKING:
    from sublayers.training.lab.search.price import Price

Cost = Literal["flops", "parameters", "milliseconds", "cache"]
USAGE = "sublayers search {} pretrain|seq2seq [SETTINGS.yaml] [--name value ...]"
EPILOG = (
    "All other flags are those of the training, after an optional recipe or settings file of it. The order that they "
    "give says which sublayers there are, and how many. Give a tokenizer; otherwise each run trains one."
)


@dataclass(kw_only=True)
class SearchArguments(TrialsArguments):
    """Flags of every search; all others are those of the training."""

    training: Literal["pretrain", "seq2seq"] = flag("the command that trains an order", MISSING, positional=True)
    stack: Literal["encoder", "decoder"] = flag("of an encoder-decoder", "decoder")
    seeds: list[int] = flag("each order is trained with each seed", [0])
    length: int = number("tokens of a sequence whose cost is counted", 128)
    cost: Cost = flag("what an order costs", "flops")
    read: str = flag("positions that are read; classifiers read one", "all", choices=[*READS])
    budget: float | None = flag("what an order may cost, as a share of the cost of the one that the flags give")


@dataclass(kw_only=True)
class ArchitectureArguments:
    """How a super-network searches; the defaults are the paper's or, where it has none, those of FBNet, its source.

    Raises:
        ValueError: a share that is none, or what would learn nothing.
    """

    _argument_group_name: ClassVar[str] = "architecture"

    warmup_share: float = flag("of the steps, in which the architecture is frozen", 0.2)
    architecture_update_share: float = flag("of the other steps, each followed by an update of the architecture", 0.2)
    held_out_share: float = flag("of the training data, which trains the architecture alone", 0.2)
    architecture_learning_rate: float = flag("of the architecture", 1e-2)
    architecture_weight_decay: float = flag("of the architecture", 5e-4)
    temperatures: list[float] = flag("of the Gumbel softmax, at the beginning and at the end", [5.0, 0.1], nargs=2)
    patience: float = flag("share of the steps after the warm-up in which an unchanged order ends the search", 0.75)

    def __post_init__(self):
        for name in ("warmup_share", "held_out_share", "patience"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is no share; give a number between 0 and 1")
        if not 0 < self.architecture_update_share <= 1:
            fault = f"architecture_update_share={self.architecture_update_share} is no share of the steps"
            raise ValueError(f"{fault}; give more than 0, and at most 1")
        if (least := min(self.architecture_learning_rate, *self.temperatures)) <= 0:
            raise ValueError(f"a learning rate or temperature of {least} would learn nothing; give more than 0")


@dataclass
class Settings(ArchitectureArguments):
    """What a super-network needs to know to search.

    Attributes:
        field: name of the order that is searched.
        letters: the candidates of a layer.
        price: what sublayers cost, if it matters.
        budget: what the order may cost, in the price's unit.
        price_rate: how fast the weight of the price in the loss grows while the mean cost is above the budget.
    """

    field: str
    letters: str
    price: "Price | None" = None
    budget: float | None = None
    price_rate: float = 0.02


def expand_recipe(argv: list[str]) -> list[str]:
    """Replace the name of a search's recipe, after the command that trains, by its flags; leave all other words."""
    if argv[1:] and argv[1] in recipes("search"):
        return [argv[0], *expand_settings_file(argv[1:], "search")]
    return argv


def costs_of(order: str) -> str:
    """Name the attribute of a study that holds what an order costs."""
    return f"costs of {order}"
