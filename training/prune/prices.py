"""What subsets of a model's sublayers cost."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from sublayers.configuration.sublayer_cost import READS, cache_bytes, flops, parameters, read_positions
from sublayers.configuration.sublayer_order import expand, tail_start
from sublayers.training.distill.subsets import order_of
from sublayers.training.log import Log
from sublayers.training.metrics.order_times import milliseconds
from sublayers.training.prune.search import Price

# orders that are measured, from which the times of others follow
MEASURED = 12


def price_by(kind: str, config: Any, length: int, read: str, log: Log) -> Price:
    """Make the price of subsets of a model's sublayers.

    Args:
        kind: milliseconds, flops, parameters or cache; embeddings and heads are not counted.
        config: of the model, in its whole order.
        length: tokens of a text.
        read: which positions are read, see `sublayers order`; "next" is a token behind the text.
        log: keeps what was measured, so that a search which goes on has the same prices.

    Raises:
        ValueError: milliseconds of a family whose stacks are not measured.
    """
    order, sizes = expand(config.sublayer_order), config.sizes._asdict()
    if kind == "milliseconds":
        if not log.events("times"):
            log.append("times", table=[*time_table(config, length, read)])
        table = np.array(log.events("times")[0]["table"])
        return lambda subset: max(0.0, float(features(order_of(subset, order)) @ table))
    by_order: dict[str, Any] = {
        "parameters": lambda letters: parameters(letters, **sizes),
        "cache": lambda letters: cache_bytes(letters, length=length, **sizes),
    }
    if read == "next":
        by_order["flops"] = lambda letters: flops(letters, length=1, read=1, keeps_cache=True, **sizes)
    else:
        number = read_positions(length)[READS[read]]
        by_order["flops"] = lambda letters: flops(letters, length=length, read=number, **sizes)
    return lambda subset: float(by_order[kind](order_of(subset, order)))


def features(order: str) -> np.ndarray:
    """Count what the time of an order is a sum of: attention and others, in front of the tail and in it, and the rest.

    The first sublayer of a tail computes less, too, but for its keys and values.
    """
    tail = tail_start(order)
    parts = order[: max(tail - 1, 0)], order[max(tail - 1, 0) : tail], order[tail:]
    return np.array(
        [1.0, *(float(sum((letter == "f") == is_f for letter in part)) for part in parts for is_f in (0, 1))]
    )


def time_table(config: Any, length: int, read: str) -> np.ndarray:
    """Measure some orders of the sublayers on this machine, and say what each of the `features` takes: milliseconds."""
    order = expand(config.sublayer_order)
    generator = np.random.default_rng(0)
    shares = np.linspace(0.2, 1, MEASURED)
    drawn = (np.sort(generator.choice(len(order), max(1, round(share * len(order))), False)) for share in shares)
    orders = dict.fromkeys(["".join(order[place] for place in places) for places in drawn] + [order])
    times = measured(config, orders, length, read)
    rows = np.stack([features(each) for each in orders])
    found, *_ = np.linalg.lstsq(rows, np.array([times[each] for each in orders]))
    return found


def measured(config: Any, orders: Iterable[str], length: int, read: str) -> dict[str, float]:
    """Measure how long orders take on this machine, in milliseconds."""
    times = milliseconds(config, [*dict.fromkeys(orders)], length, [read], seconds=60)
    return {order: found[read] for order, found in times.items()}
