"""What orders cost: a sum over their sublayers, which has an exact mean where the order is not decided."""

from typing import NamedTuple

import optuna
import torch

from sublayers.configuration.alphabet import ALPHABET
from sublayers.configuration.configuration_sublayers import SublayersConfig
from sublayers.configuration.order import Order
from sublayers.configuration.sublayer_cost import READS
from sublayers.training.lab.search.settings import Cost, costs_of
from sublayers.training.metrics.order_times import can_be_measured, milliseconds
from sublayers.training.metrics.price import count
from sublayers.training.trials import results

# more sublayers of a kind in a row, so that the clock sees something
IN_A_ROW = 4


class Price(NamedTuple):
    """What a sublayer of each kind costs.

    From the last attention of an order on, that one included, only the positions that are read are computed.

    Attributes:
        full: by letter, for a sublayer before the last attention.
        read: by letter, for the others.
    """

    full: dict[str, float]
    read: dict[str, float]

    def cost(self, order: str) -> float:
        """Add up the sublayers of an order. Raises what `expand` raises."""
        read = Order(order)
        last = read.tail_start - 1
        return sum((self.full if i < last else self.read)[letter] for i, letter in enumerate(read))

    def expected(self, letters: str, probabilities: torch.Tensor) -> torch.Tensor:
        """Find the mean cost of the orders that are drawn letter by letter, exactly and with its gradient.

        The layers are drawn independently, so the letter of one says nothing about later ones. No attention comes
        after layer l with probability q_l = prod_{j>l} (1 - a_j), where a_j is the probability of an attention in
        layer j. A letter there costs (1 - q_l) * full + q_l * read in the mean, whichever it is: an attention without
        a later one is the last one, and a feed-forward sublayer is in the tail. The mean of the sum is the
        sum over all layers and letters.

        Args:
            letters: the candidates of every layer; the identity, which costs nothing, comes after them.
            probabilities: (layers, letters + 1).
        """
        mixers = [i for i, letter in enumerate(letters) if not ALPHABET[letter].is_position_wise]
        without = 1 - probabilities[:, mixers].sum(1)
        later = without.flip(0).cumprod(0).flip(0)
        none_later = torch.cat([later[1:], later.new_ones(1)])[:, None]
        full, read = (probabilities.new_tensor([table[letter] for letter in letters]) for table in self)
        return (probabilities[:, :-1] * (full * (1 - none_later) + read * none_later)).sum()


def price(config: SublayersConfig, letters: str, cost: Cost, length: int, read: str) -> Price:
    """Find what kinds of sublayers of a family cost for a sequence of a length.

    Args:
        config: of the family, with its sizes.
        letters: the kinds.
        cost: FLOPs, parameters, bytes of keys and values in half precision, or milliseconds measured on this machine.
        length: of the sequence.
        read: which of its positions are read: "all", "masked" or "one".

    Raises:
        ValueError: milliseconds of a family with memory.
    """
    if cost == "milliseconds":
        return _measured(config, letters, length, read)
    sizes = config.sizes._asdict()
    return Price(*({letter: count(cost, letter, length, some, sizes) for letter in letters} for some in ("all", read)))


def log_costs(study: optuna.Study, config: SublayersConfig, length: int) -> None:
    """Count and measure what the orders of a search cost for one sequence, and keep it as attributes of its study.

    Milliseconds can be compared where they were measured in turn, so all orders are measured again.
    """
    orders = [*dict.fromkeys(trial.user_attrs["order"] for trial in results(study))]
    if all(study.user_attrs.get(costs_of(order), {}).get("length") == length for order in orders):
        return
    sizes = config.sizes._asdict()
    times = milliseconds(config, orders, length, [*READS]) if can_be_measured(config) else {}
    for order in orders:
        counted = {read: count("flops", order, length, read, sizes) for read in READS}
        cache = {"all": count("cache", order, length, "all", sizes)}
        costs = {"flops": counted, "milliseconds": times.get(order, {}), "cache": cache}
        study.set_user_attr(costs_of(order), {"length": length, "costs": costs})


def _measured(config: SublayersConfig, letters: str, length: int, read: str) -> Price:
    single = {letter: letter * (IN_A_ROW if ALPHABET[letter].is_position_wise else 1) for letter in letters}
    full = milliseconds(config, [letter * IN_A_ROW for letter in letters], length, ["all"])
    some = milliseconds(config, [*single.values()], length, [read])
    return Price(
        {letter: full[letter * IN_A_ROW]["all"] / IN_A_ROW for letter in letters},
        {letter: some[row][read] / len(row) for letter, row in single.items()},
    )
