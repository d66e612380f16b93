"""The order language: a Transformer is a string in which each letter is a residual sublayer.

`s` is self-attention, `w` local self-attention, `c` cross-attention, `f` a feed-forward block, `e` are experts, `d` and
`l` dynamic and lightweight convolutions, `g` is a gated short convolution, `r` a recurrence, and `m` self-attention to
the states before the first `m`. `sssfsfff` may be written `s2(sf)2f2`, in the papers' spellings `(s)x2 (sf)x2 (f)x2`,
`s^{2} (sf)^2 f^2` or `S²(SF)²F²`, and with spaces anywhere. In the Sandwich paper's release, `s.s.sfsf.f.f`, a point
stands for a sublayer that a layer lacks. The papers' patterns are orders, too: `par(24, 5)`,
`sandwich(6, 3, decoder=True)`. Letters of one name are one sublayer, which runs at all their places: `(s_0f_0)12` has
two. `compact` gives the canonical form.
"""

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from inspect import signature
from typing import Literal

from .alphabet import ALPHABET
from .letters_letter import Letter, Sizes
from .spelling import (
    MAX_SUBLAYERS,
    SHOWN,
    SUBSCRIPTS,
    find_fault,
    read,
    read_number,
    tidy,
    write,
)

_CALL = re.compile(r"\s*([a-z]+)\s*\(\s*([0-9]+\s*(?:,\s*[0-9]+\s*)*)(,\s*decoder\s*=\s*true\s*)?\)\s*")


@dataclass(frozen=True, init=False, repr=False)
class Order:
    """An order of sublayers: read once from any spelling, compared by what it says, printed in its canonical form.

    Attributes:
        letters: one for each place.
        sublayers: the number of the sublayer that runs at each place, 0, 1, ... as they first run.

    Raises:
        TypeError: what is given is no string.
        ValueError: the order cannot be read; the message points at the character.
    """

    letters: str
    sublayers: tuple[int, ...]

    def __init__(self, order: "str | Order"):
        if not isinstance(order, str | Order):
            kind = type(order).__name__
            raise TypeError(f"an order is a string such as 's6(sf)10f6', not {order!r} of type {kind}")
        spelled = _read(order) if isinstance(order, str) else order.spelled
        numbers: dict[str | int, int] = {}
        # without a name, each place has a sublayer of its own
        keys = [sublayer if len(sublayer) > 1 else place for place, sublayer in enumerate(spelled)]
        object.__setattr__(self, "letters", "".join(sublayer[0] for sublayer in spelled))
        object.__setattr__(self, "sublayers", tuple(numbers.setdefault(key, len(numbers)) for key in keys))

    def __reduce__(self) -> tuple[type["Order"], tuple[str]]:
        # what is cached holds functions, which cannot be sent to other processes
        return Order, ("".join(self.spelled),)

    def __str__(self) -> str:
        return self.canonical

    def __repr__(self) -> str:
        return f"Order({self.canonical!r})"

    def __len__(self) -> int:
        return len(self.letters)

    def __iter__(self) -> Iterator[str]:
        return iter(self.letters)

    def __contains__(self, letter: str) -> bool:
        return letter in self.letters

    @cached_property
    def canonical(self) -> str:
        """The canonical form: `ssfsff` and all other spellings of it are `s(sf)2f`.

        The longest repeated group is taken first, then those on its left and right; what remains is counted by letter.
        No group begins before the first `m` and ends after it. Sublayers that run once have no name; others have the
        numbers 0, 1, ... of their letter.
        """
        return write(self.spelled, self.tail_start if self.has_fixed_states else len(self))

    @cached_property
    def spelled(self) -> tuple[str, ...]:
        """What is written for each place: its letter or, if its sublayer runs at other places too, a name: `s_0`."""
        runs, names = Counter(self.sublayers), dict[int, str]()
        for letter, sublayer in zip(self.letters, self.sublayers, strict=True):
            if runs[sublayer] > 1 and sublayer not in names:
                names[sublayer] = f"{letter}_{sum(name[0] == letter for name in names.values())}"
        return tuple(names.get(sublayer, letter) for letter, sublayer in zip(self, self.sublayers, strict=True))

    @property
    def labels(self) -> tuple[str, ...]:
        """What pictures call each place: `s₀` for `s_0`."""
        return tuple(sublayer.replace("_", "").translate(SUBSCRIPTS) for sublayer in self.spelled)

    @cached_property
    def first_places(self) -> tuple[int, ...]:
        """Where each sublayer runs for the first time."""
        return tuple(self.sublayers.index(sublayer) for sublayer in range(max(self.sublayers) + 1))

    @property
    def unique_letters(self) -> str:
        """The letter of each sublayer, however often it runs."""
        return "".join(self.letters[place] for place in self.first_places)

    @property
    def shares_sublayers(self) -> bool:
        """Whether a sublayer runs at several places."""
        return len(self.first_places) < len(self)

    @cached_property
    def kinds(self) -> tuple[Letter, ...]:
        """What the alphabet says of the sublayer at each place."""
        return tuple(ALPHABET[letter] for letter in self)

    @property
    def alphabet(self) -> str:
        """Each of its letters once, in the sequence of the alphabet."""
        return "".join(letter for letter in ALPHABET if letter in self)

    @property
    def counts(self) -> dict[str, int]:
        """How many places have each kind of sublayer, by all letters of the alphabet."""
        return {letter: self.letters.count(letter) for letter in ALPHABET}

    @property
    def units(self) -> int:
        """Its parameters in units of 4 d^2: 2 for a feed-forward sublayer, 1 for others (Sandwich, section 3.2)."""
        return sum(self.kinds[place].units for place in self.first_places)

    @cached_property
    def tail_start(self) -> int:
        """Index of the first sublayer of the tail, where no position changes what another one sees.

        These are the first `m` and what follows it or, in an order without `m`, all that is position-wise after the
        last attention or convolution: 0 for feed-forward sublayers alone, the length of the order where one of the
        others comes last.
        """
        mixing = [place for place, kind in enumerate(self.kinds) if not kind.is_position_wise]
        fixed = (place for place in mixing if self.kinds[place].reads_fixed_states)
        return next(fixed, mixing[-1] + 1 if mixing else 0)

    @cached_property
    def has_fixed_states(self) -> bool:
        """Whether the tail attends to the states before it, which no longer change there."""
        return any(kind.reads_fixed_states for kind in self.kinds)

    @property
    def has_windows(self) -> bool:
        """Whether some attention is local."""
        return any(kind.is_local for kind in self.kinds)

    @cached_property
    def by_weights(self) -> str:
        """The letters whose weights the sublayers at its places have: `s` for `m`."""
        return "".join(kind.twin or letter for letter, kind in zip(self, self.kinds, strict=True))

    def widths(self, given: int | Sequence[int]) -> dict[int, int]:
        """Say how wide sublayers are inside, by place: a list has a width for each of those that have one.

        Raises:
            ValueError: a list of another length.
        """
        wide = [number for number, place in enumerate(self.first_places) if self.kinds[place].has_width]
        if isinstance(given, int):
            given = [given] * len(wide)
        if len(given) != len(wide):
            raise ValueError(
                f"intermediate_size={[*given]} has {len(given)} widths, but the order {str(self)!r} has {len(wide)} "
                "sublayers that need one; give one for each, or one number for all"
            )
        own = dict(zip(wide, given, strict=True))
        return {place: own[number] for place, number in enumerate(self.sublayers) if number in own}

    def slots(self, cache: Literal["self", "cross"]) -> list[int]:
        """Find the places that have a slot in one of the caches; the first one has slot 0."""
        return [place for place, kind in enumerate(self.kinds) if kind.cache == cache]

    def slot(self, place: int) -> int:
        """Number a place among those before it with slots in the same cache.

        They take the slots 0, 1, ...: a cache with gaps silently breaks generation.
        """
        return sum(kind.cache == self.kinds[place].cache for kind in self.kinds[:place])

    def reaches(self, sizes: Sizes) -> dict[int, tuple[int, int]]:
        """Say how far from a token that is read others matter to it, after each sublayer where that becomes less.

        These are the last sublayer that sees the whole text, or -1 for the start of an order without one, and all later
        ones that see some of it.

        Returns:
            How many tokens before the one that is read and how many after it matter, by the sublayer's place.
        """
        if self.has_fixed_states:
            # the tail sees the whole text
            return {self.tail_start - 1: (0, 0)}
        before = after = 0
        found: dict[int, tuple[int, int]] = {}
        for place in range(len(self) - 1, -1, -1):
            kind = self.kinds[place]
            if kind.is_position_wise or kind.cache == "cross":
                continue
            found[place] = before, after
            if kind.reach is None:
                break
            more = kind.reach(sizes)
            before, after = before + more[0], after + more[1]
        else:
            found[-1] = before, after
        return dict(reversed(found.items()))


def expand(order: str | Order) -> str:
    """Spell an order out, place by place: `s2(sf)x2` becomes `sssfsf`. Raises what `Order` raises."""
    return "".join(Order(order).spelled)


def compact(order: str | Order) -> str:
    """Write an order in its canonical form, see `Order.canonical`. Raises what `Order` raises."""
    return str(Order(order))


@lru_cache(maxsize=4096)
def _read(order: str) -> tuple[str, ...]:
    order = tidy(order)
    call = _CALL.fullmatch(order)
    return tuple(read(_call(call) if call and call[1] in PATTERNS else order))


def _call(call: re.Match[str]) -> str:
    pattern = PATTERNS[call[1]]
    try:
        return pattern(*map(read_number, re.findall("[0-9]+", call[2])), **{"decoder": True} if call[3] else {})
    except TypeError:
        usage = f"{call[1]}({', '.join(signature(pattern).parameters)})"
        raise ValueError(f"{call[0][:SHOWN].strip()!r} has too few numbers or too many; write {usage}") from None


def _check(name: str, value: float, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name}={value} is out of range; give a number from {low} to {high}")


def interleaved(n: int, decoder: bool = False) -> str:
    """The plain Transformer of `n` layers, `(sf)n`, or `(scf)n` in a decoder. Raises what `sandwich` raises."""
    return sandwich(n, 0, decoder)


def sandwich(n: int, k: int, decoder: bool = False) -> str:
    """`n` layers with sandwiching coefficient `k`: attention first, feed-forward last (Sandwich, sections 4 and 5.3).

    A decoder keeps self- and cross-attention together: `(sc)k (scf)n-k fk`. The paper's `k` ends at `n - 1`, which is
    the same order as `n`.

    Raises:
        ValueError: `n` or `k` is out of range.
    """
    attention = "sc" if decoder else "s"
    _check("n", n, 1, MAX_SUBLAYERS // (len(attention) + 1))
    _check("k", k, 0, n)
    return compact(attention * k + (attention + "f") * (n - k) + "f" * k)


def par(num_sublayers: int, p: float) -> str:
    """One self-attention in `p` sublayers, spread over the first two thirds (PAR, section 2.3).

    The paper prints three orders and no formula; this one gives all three, and the interleaved order for `p` = 2 and an
    even number of sublayers.

    Raises:
        ValueError: `num_sublayers` or `p` is out of range.
    """
    _check("num_sublayers", num_sublayers, 3, MAX_SUBLAYERS)
    _check("p", p, 1, num_sublayers)
    n = math.floor(num_sublayers / p + 0.5)
    spacing = min(math.ceil((2 * num_sublayers // 3 - 1) / n), num_sublayers // n)
    return compact(("s" + "f" * (spacing - 1)) * n + "f" * (num_sublayers - n * spacing))


def macaron(n: int, decoder: bool = False) -> str:
    """`n` layers with feed-forward sublayers on both sides, `(fsf)n`, or `(fscf)n` in a decoder (Macaron, section 3.3).

    The residual scale of one half belongs to the model, not to its order.

    Raises:
        ValueError: `n` is out of range.
    """
    unit = "fscf" if decoder else "fsf"
    _check("n", n, 1, MAX_SUBLAYERS // len(unit))
    return compact(unit * n)


def shuffled(order: str | Order, seed: int) -> str:
    """A uniform permutation of an order's sublayers that is an order. Raises what `Order` raises."""
    drawn, draw = sorted(Order(order).spelled, key=lambda each: [*ALPHABET].index(each[0])), random.Random(seed)
    draw.shuffle(drawn)
    # every m stands after all that mixes tokens
    places = [i for i, each in enumerate(drawn) if ALPHABET[each[0]].cache == "self"]
    sorted_there = sorted((drawn[i] for i in places), key=lambda each: ALPHABET[each[0]].reads_fixed_states)
    for i, each in zip(places, sorted_there, strict=True):
        drawn[i] = each
    return compact("".join(drawn))


def random_balanced(n: int, seed: int) -> str:
    """A uniform permutation of `n` self-attention and `n` feed-forward sublayers (Sandwich, section 3.1).

    Raises what `interleaved` raises.
    """
    return shuffled(interleaved(n), seed)


def random_unbalanced(budget: int, seed: int, letters: str = "sf") -> str:
    """Draw letters until `budget` units of 4 d^2 parameters are spent, 2 by each `f` (Sandwich, section 3.2).

    Raises:
        ValueError: `budget` is out of range.
    """
    _check("budget", budget, 1, MAX_SUBLAYERS)
    draw, order = random.Random(seed), ""
    while budget > 0:
        # the paper leaves open what follows when f is drawn for the last unit; only attention fills the budget exactly
        fitting = [letter for letter in letters if ALPHABET[letter].units <= budget]
        order += draw.choice([letter for letter in fitting if not find_fault(order + letter)])
        budget -= ALPHABET[order[-1]].units
    return compact(order)


# what an order can be written as, other than in letters
PATTERNS: dict[str, Callable[..., str]] = {
    "interleaved": interleaved,
    "sandwich": sandwich,
    "par": par,
    "macaron": macaron,
}
