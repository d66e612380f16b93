"""The orders that a search trains: drawn at random, the papers' patterns, or all that a file names."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sublayers.configuration.order import (
    Order,
    compact,
    interleaved,
    par,
    random_unbalanced,
    sandwich,
    shuffled,
)

if TYPE_CHECKING:
    from sublayers.training.lab.search.price import Price

# the name of the order that the flags of a training give
BASELINE = "baseline"
# after this number of draws without a new order none is left; orders of a cost are chosen from as many draws
TRIES = 2000
# the share by which the cost of orders of equal cost may differ
TOLERANCE = 0.05


class Candidate(NamedTuple):
    """An order to be trained: its canonical form, where it is from, and the seed that it was drawn with, if it was."""

    order: str
    name: str
    draw_seed: int | None = None


def draw(order: str, number: int, seed: int, unbalanced: bool = False) -> list[Candidate]:
    """Draw different orders (Sandwich, sections 3.1 and 3.2), with the seeds from the given one on.

    They permute the sublayers of an order or, if unbalanced, spend its number of parameters letter by letter.

    Raises:
        ValueError: there are fewer.
    """
    like = Order(order)

    def one(seed: int) -> str:
        return random_unbalanced(like.units, seed, like.alphabet) if unbalanced else shuffled(like, seed)

    return _distinct(one, number, seed, f"like {order!r}")


def draw_within(
    order: str, price: "Price", budget: float, number: int, seed: int, runs: Callable[[str], bool]
) -> list[Candidate]:
    """Draw different orders of the letters of one, of any length and balance, that cost at most a budget.

    Args:
        order: that has the letters.
        price: what orders cost.
        budget: the highest cost.
        number: of orders.
        seed: of the first one.
        runs: says whether the family can run an order.

    Raises:
        ValueError: there are fewer.
    """

    def one(seed: int) -> str | None:
        drawn = _of_any_length(order, seed)
        return drawn if price.cost(drawn) <= budget and runs(drawn) else None

    return _distinct(one, number, seed, "within the budget")


def draw_at_cost(order: str, price: "Price", cost: float, number: int, seed: int) -> list[Candidate]:
    """Draw different orders of the letters of one, of any length and balance, at about a given cost.

    The first ones whose cost differs by at most 5 % or, where there are too few, those whose cost is nearest.
    """
    drawn: dict[str, Candidate] = {}
    for one in range(seed, seed + TRIES):
        other = _of_any_length(order, one)
        drawn.setdefault(other, Candidate(other, f"random {one}", one))
    distances = {other: max(TOLERANCE, abs(price.cost(other) / cost - 1)) for other in drawn}
    return sorted(drawn.values(), key=lambda candidate: distances[candidate.order])[:number]


def _of_any_length(order: str, seed: int) -> str:
    # an order that costs as little as another one may have more parameters
    like = Order(order)
    step = min(kind.units for kind in like.kinds)
    return random_unbalanced(
        random.Random(f"budget {seed}").randrange(step, 2 * like.units + 1, step), seed, like.alphabet
    )


def _distinct(one: Callable[[int], str | None], number: int, seed: int, which: str) -> list[Candidate]:
    found: dict[str, Candidate] = {}
    last = seed
    while len(found) < number:
        if (drawn := one(seed)) and drawn not in found:
            found[drawn], last = Candidate(drawn, f"random {seed}", seed), seed
        if seed - last == TRIES:
            raise ValueError(f"there seem to be only {len(found)} orders {which}, not {number}; give another --number")
        seed += 1
    return [*found.values()]


def patterns(letters: str, price: "Price", cost: float) -> list[Candidate]:
    """Choose of each of the papers' patterns, for a decoder if the letters have a `c`, the one nearest to a cost."""
    decoder, layers = "c" in letters, range(1, 65)
    kinds = {
        "interleaved": [interleaved(n, decoder) for n in layers],
        # the coefficient that did best in the paper, 6 of 16
        "sandwich": [sandwich(n, round(3 * n / 8), decoder) for n in layers],
    }
    if not decoder:
        kinds["par"] = [par(2 * n, 5) for n in layers if n > 2]
    return [
        Candidate(min(orders, key=lambda order: abs(price.cost(order) - cost)), name) for name, orders in kinds.items()
    ]


def read_orders(file: Path) -> list[Candidate]:
    """Read the orders of a text file, one in each line, in any spelling.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: there is no order in it, or one that cannot be read.
    """
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    found = {compact(line): Candidate(compact(line), line) for line in lines if line}
    if not found:
        raise ValueError(f"{file} has no orders; write one in each line")
    return [*found.values()]
