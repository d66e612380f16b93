"""What subsets of a model's sublayers cost."""

from collections.abc import Iterable, Sequence
from copy import copy
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import optuna

from sublayers.configuration.alphabet import ALPHABET
from sublayers.configuration.order import Order
from sublayers.training.distill.subsets import Subset, orders_of, widths_of
from sublayers.training.metrics.order_times import milliseconds
from sublayers.training.metrics.price import count
from sublayers.training.prune.search import Price

# orders that are measured, from which the times of others follow
MEASURED = 12
# after which no new round of measurements begins
SECONDS = 60
# attribute of a study: what each of the `features` takes, for each stack
TIMES = "times"


class Use(NamedTuple):
    """What a model is used for: what times and prices are of.

    Attributes:
        read: which positions are read, see `sublayers order`; "next" is the token after the text.
        length: tokens of a text.
        rows: texts that run at once.
    """

    read: str
    length: int
    rows: int = 1


def price_by(kind: Any, model: Any, use: Use, study: optuna.Study) -> Price:
    """Make the price of subsets of a model's sublayers.

    Args:
        kind: milliseconds, flops, parameters or cache; embeddings and heads are not counted.
        model: in its whole order.
        use: what it is used for; FLOPs, parameters and cache are those of one text.
        study: keeps what was measured, so that a search which goes on has the same prices.

    Raises:
        ValueError: milliseconds of a family whose stacks are not measured, or of feed-forwards of several widths.
    """
    config = model.config
    if kind == "milliseconds" and isinstance(config.intermediate_size, list):
        raise ValueError(
            f"milliseconds are those of f of one width, and intermediate_size={config.intermediate_size} has several; "
            "give another --price, such as flops"
        )
    orders, sizes = tuple(order.letters for order in config.orders.values()), config.sizes._asdict()
    # what is kept for a next token is the decoder's
    reads = reads_of(orders, "next" if kind == "cache" else use.read)
    if kind == "milliseconds" and TIMES not in study.user_attrs:
        stacks = zip(orders, reads, strict=True)
        study.set_user_attr(TIMES, [[*time_table(config, *stack, use)] for stack in stacks])
    tables = np.array(study.user_attrs.get(TIMES))

    def cost(number: int, order: str, widths: int | list[int]) -> float:
        if kind == "milliseconds":
            return max(0.0, float(features(order) @ tables[number]))
        if kind != "parameters" and reads[number] is None:
            return 0.0
        return count(kind, order, use.length, str(reads[number]), sizes | {"intermediate_size": widths})

    def of_subset(subset: Subset) -> float:
        widths = widths_of(config, subset)
        return float(sum(cost(*each, widths) for each in enumerate(orders_of(subset, *orders))))

    return of_subset


def reads_of(orders: Sequence[str], read: str) -> list[str | None]:
    """Say what is read of each stack: all of an encoder's, and None where it has run before the next token."""
    return [None if read == "next" else "all"] * (len(orders) - 1) + [read]


def features(order: str) -> np.ndarray:
    """Count what the time of an order is a sum of: the sublayers of each kind before the tail and in it.

    The first sublayer of a tail computes less, too, but for its keys and values.
    """
    tail = Order(order).tail_start
    parts = order[: max(tail - 1, 0)], order[max(tail - 1, 0) : tail], order[tail:]
    return np.array([1.0, *chain.from_iterable(map(part.count, ALPHABET) for part in parts)])


def time_table(config: Any, order: str, read: str | None, use: Use) -> np.ndarray:
    """Measure some orders of a stack's sublayers on this machine, and say what each of the `features` takes: ms."""
    generator = np.random.default_rng(0)
    shares = np.linspace(0.2, 1, MEASURED)
    drawn = (np.sort(generator.choice(len(order), max(1, round(share * len(order))), False)) for share in shares)
    orders = [*dict.fromkeys(["".join(order[place] for place in places) for places in drawn] + [order])]
    times = time_orders(config, orders, read, use)
    rows = np.stack([features(each) for each in orders])
    found, *_ = np.linalg.lstsq(rows, np.array(times))
    return found


def measured(model: Any, subsets: Iterable[Subset], use: Use) -> dict[Subset, float]:
    """Measure how long a model with some of its sublayers takes on this machine, in milliseconds."""
    config, alike = copy(model.config), dict[Any, list[Subset]]()
    for subset in subsets:
        widths = widths_of(model.config, subset)
        alike.setdefault(tuple(widths) if isinstance(widths, list) else widths, []).append(subset)
    found: dict[Subset, float] = {}
    for widths, those in alike.items():
        config.intermediate_size = [*widths] if isinstance(widths, tuple) else widths
        orders = [orders_of(subset, *config.orders.values()) for subset in those]
        by_stack = zip(zip(*orders, strict=True), reads_of(orders[0], use.read), strict=True)
        times = [time_orders(config, *stack, use) for stack in by_stack]
        found |= zip(those, map(sum, zip(*times, strict=True)), strict=True)
    return found


def time_orders(config: Any, orders: Sequence[str], read: str | None, use: Use) -> list[float]:
    """Measure how long a stack takes in each of some orders, in milliseconds; nothing where nothing is read."""
    if read is None:
        return [0.0] * len(orders)
    times = milliseconds(config, [*dict.fromkeys(orders)], use.length, [read], use.rows, SECONDS)
    return [times[order][read] for order in orders]
