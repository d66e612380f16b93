"""The order language: a Transformer is a string in which each letter is a residual sublayer.

`s` is self-attention, `w` local self-attention, `c` cross-attention, `f` a feed-forward block, `d` and `l` are dynamic
and lightweight convolutions, and `m` is self-attention to the states before the first `m`. `sssfsfff` may be
written `s2(sf)2f2`, in the papers' spellings `(s)x2 (sf)x2 (f)x2`, `s^{2} (sf)^2 f^2` or `S²(SF)²F²`, and with spaces
anywhere. In the Sandwich paper's release, `s.s.sfsf.f.f`, a point
stands for a sublayer that a layer lacks. The papers' patterns are orders, too: `par(24, 5)`, `sandwich(6, 3,
decoder=True)`. `compact` gives the canonical form.
"""

import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from inspect import signature
from itertools import groupby
from typing import Literal
from unicodedata import normalize

from sublayers.configuration.alphabet import ALPHABET
from sublayers.configuration.letters.letter import Letter, Sizes

# far beyond the deepest published order (48 sublayers), and small enough that a mistyped repeat costs nothing
MAX_SUBLAYERS = 1024
# room for all of them one by one, each with a space and a repeat
MAX_CHARACTERS = 4 * MAX_SUBLAYERS
# as many of a long order are shown in a message
SHOWN = 100

# whatever is no parenthesis, letter or repeat is caught as a token of its own, and refused
_REPEAT = r"(?:\s*(?:[x×*^]?\s*([0-9]+)|\^\s*\{\s*([0-9]+)\s*\}))?"  # noqa: RUF001
_TOKEN = re.compile(rf"\(|[)a-z]{_REPEAT}|\S")
_CALL = re.compile(r"\s*([a-z]+)\s*\(\s*([0-9]+\s*(?:,\s*[0-9]+\s*)*)(,\s*decoder\s*=\s*true\s*)?\)\s*")


@dataclass(frozen=True, init=False, repr=False)
class Order:
    """An order of sublayers: read once from any spelling, compared by its letters, printed in its canonical form.

    Attributes:
        letters: one for each sublayer.

    Raises:
        TypeError: what is given is no string.
        ValueError: the order cannot be read; the message points at the character.
    """

    letters: str

    def __init__(self, order: "str | Order"):
        if not isinstance(order, str | Order):
            kind = type(order).__name__
            raise TypeError(f"an order is a string such as 's6(sf)10f6', not {order!r} of type {kind}")
        object.__setattr__(self, "letters", _read(order) if isinstance(order, str) else order.letters)

    def __reduce__(self) -> tuple[type["Order"], tuple[str]]:
        # what is cached holds functions, which cannot be sent to other processes
        return Order, (self.letters,)

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
        No group begins before the first `m` and ends after it.
        """
        first = self.tail_start if self.has_fixed_states else len(self)
        return _compact(self.letters[:first]) + _compact(self.letters[first:])

    @cached_property
    def kinds(self) -> tuple[Letter, ...]:
        """What the alphabet says of each sublayer."""
        return tuple(ALPHABET[letter] for letter in self)

    @property
    def alphabet(self) -> str:
        """Each of its letters once, in the sequence of the alphabet."""
        return "".join(letter for letter in ALPHABET if letter in self)

    @property
    def counts(self) -> dict[str, int]:
        """How many sublayers of each kind there are, by all letters of the alphabet."""
        return {letter: self.letters.count(letter) for letter in ALPHABET}

    @property
    def units(self) -> int:
        """Its parameters in units of 4 d^2: 2 for a feed-forward sublayer, 1 for others (Sandwich, section 3.2)."""
        return sum(kind.units for kind in self.kinds)

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
        """The letters whose weights its sublayers have: `s` for `m`."""
        return "".join(kind.twin or letter for letter, kind in zip(self, self.kinds, strict=True))

    def slots(self, cache: Literal["self", "cross"]) -> list[int]:
        """Find the sublayers that have a slot in one of the caches; the first one has slot 0."""
        return [place for place, kind in enumerate(self.kinds) if kind.cache == cache]

    def slot(self, place: int) -> int:
        """Number a sublayer among those before it with slots in the same cache.

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
    """Spell an order out, one letter a sublayer: `s2(sf)x2` becomes `sssfsf`. Raises what `Order` raises."""
    return Order(order).letters


def compact(order: str | Order) -> str:
    """Write an order in its canonical form, see `Order.canonical`. Raises what `Order` raises."""
    return str(Order(order))


@lru_cache(maxsize=4096)
def _read(order: str) -> str:
    if len(order) > MAX_CHARACTERS:
        raise ValueError(
            f"an order of {len(order)} characters is too long; write it in at most {MAX_CHARACTERS}, with repeats such "
            "as s6 or (sf)10"
        )
    # tabs and line breaks would push the caret out of line
    order = re.sub(r"\s", " ", order.lower())
    order = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda digits: f"^{normalize('NFKC', digits[0])}", order)
    if (call := _CALL.fullmatch(order)) and call[1] in PATTERNS:
        return Order(_call(call)).letters
    open_groups: list[tuple[str, int]] = []
    expanded = ""
    for token in _TOKEN.finditer(order):
        position, before, unit = token.start(), expanded, token[0][0]
        if unit == ".":
            continue
        if unit not in ("(", ")", *ALPHABET):
            raise _error(_explain(unit), order, position)
        if unit == "(":
            open_groups.append((before, position))
            expanded = ""
            continue
        if unit == ")":
            if not open_groups:
                raise _error("this ')' has no '(' before it; remove it, or add a '('", order, position)
            unit = expanded
            before, start = open_groups.pop()
            if not unit:
                raise _error("this group is empty; put sublayers into it or remove it", order, start)
        digits = "1"
        if token.lastindex:
            digits, position = token[token.lastindex], token.start(token.lastindex)
        repeats = _number(digits)
        if not repeats:
            raise _error("a repeat of zero leaves nothing; give 1 or more, or remove what it repeats", order, position)
        if len(before) + len(unit) * repeats > MAX_SUBLAYERS:
            raise _error(f"an order has at most {MAX_SUBLAYERS} sublayers; shorten it from here", order, position)
        expanded = before + unit * repeats
    if open_groups:
        raise _error("this parenthesis is never closed; add a ')'", order, open_groups[-1][1])
    if not expanded:
        raise _error(f"the order is empty; give at least one of the letters {', '.join(ALPHABET)}", order, 0)
    if fault := _fault(expanded):
        raise _error(fault[0], expanded, fault[1])
    return expanded


def _mixes(letter: str) -> bool:
    row = ALPHABET[letter]
    return row.cache == "self" and not row.reads_fixed_states


def _fault(letters: Sequence[str]) -> tuple[str, int] | None:
    """Find what is wrong with the tail of an order, and where."""
    first = next((i for i, letter in enumerate(letters) if ALPHABET[letter].reads_fixed_states), None)
    if first is None:
        return None
    m, changing = letters[first], [i for i in range(first, len(letters)) if _mixes(letters[i])]
    if not any(map(_mixes, letters[:first])):
        return f"{m!r} attends to the states before it, where no token has seen another; put an s there", first
    if not changing:
        return None
    problem = f"the states that {m!r} attends to must not change after it, so {letters[changing[0]]!r} cannot follow"
    return f"{problem}; put it before the first {m}, or write {m} in its place", changing[0]


def _number(digits: str) -> int:
    # nine digits are too many already, and int() refuses some thousands
    return int(digits.lstrip("0")[:9] or "0")


def _call(call: re.Match[str]) -> str:
    pattern = PATTERNS[call[1]]
    try:
        return pattern(*map(_number, re.findall("[0-9]+", call[2])), **{"decoder": True} if call[3] else {})
    except TypeError:
        usage = f"{call[1]}({', '.join(signature(pattern).parameters)})"
        raise ValueError(f"{call[0][:SHOWN].strip()!r} has too few numbers or too many; write {usage}") from None


def _error(problem: str, order: str, position: int) -> ValueError:
    start = max(0, position - SHOWN // 2)
    return ValueError(f"{problem}\n  {order[start : start + SHOWN]}\n  {' ' * (position - start)}^")


def _explain(character: str) -> str:
    if character in "0123456789^x×*{}":  # noqa: RUF001
        return (
            f"{character!r} is part of a repeat, which needs a letter or a group before it and a number; write "
            "repeats such as s6, (sf)x10 or s^{6}"
        )
    letters = ", ".join(f"{letter} ({row.name})" for letter, row in ALPHABET.items())
    return f"{character!r} is not a sublayer; use the letters {letters}"


@lru_cache(maxsize=4096)
def _compact(order: str) -> str:
    for length in range(len(order) // 2, 1, -1):
        # a run of positions that agree with the one a unit later is a group that repeats
        agrees = "".join(" ="[a == b] for a, b in zip(order, order[length:], strict=False))
        runs = [
            run.span()
            for run in re.finditer(f"={{{length},}}", agrees)
            # a unit that is itself a repetition appears inside its own double
            if (unit := order[run.start() : run.start() + length]) not in (unit + unit)[1:-1]
        ]
        if runs:
            start, end = max(runs, key=lambda run: (run[1] - run[0]) // length)
            count = (end - start) // length + 1
            unit, rest = order[start : start + length], order[start + count * length :]
            return f"{_compact(order[:start])}({unit}){count}{_compact(rest)}"
    runs_of_letters = ((letter, len(list(group))) for letter, group in groupby(order))
    return "".join(f"{letter}{count}" if count > 1 else letter for letter, count in runs_of_letters)


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
    letters, draw = sorted(Order(order), key=[*ALPHABET].index), random.Random(seed)
    draw.shuffle(letters)
    # every m stands after all that mixes tokens
    places = [i for i, letter in enumerate(letters) if ALPHABET[letter].cache == "self"]
    sorted_there = sorted((letters[i] for i in places), key=lambda letter: ALPHABET[letter].reads_fixed_states)
    for i, letter in zip(places, sorted_there, strict=True):
        letters[i] = letter
    return compact("".join(letters))


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
        order += draw.choice([letter for letter in fitting if not _fault(order + letter)])
        budget -= ALPHABET[order[-1]].units
    return compact(order)


# what an order can be written as, other than in letters
PATTERNS: dict[str, Callable[..., str]] = {
    "interleaved": interleaved,
    "sandwich": sandwich,
    "par": par,
    "macaron": macaron,
}
