"""How orders are written: spellings are read as sublayers, and sublayers are written in the canonical form.

A sublayer is written as its letter or, where others are the same sublayer, with a name: `s_0`.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from unicodedata import normalize

from .alphabet import ALPHABET

# far beyond the deepest published order (48 sublayers), and small enough that a mistyped repeat costs nothing
MAX_SUBLAYERS = 1024
# room for all of them one by one, each with a name, a space and a repeat
MAX_CHARACTERS = 8 * MAX_SUBLAYERS
# as many of a long order are shown in a message
SHOWN = 100
SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")

# whatever is no parenthesis, sublayer or repeat is caught as a token of its own, and refused
_NAME = r"_(?:(?:0|[1-9][0-9]*)(?![0-9])|\{(?:0|[1-9][0-9]*)\})"
_REPEAT = r"(?:\s*(?:[x×*^]?\s*([0-9]+)|\^\s*\{\s*([0-9]+)\s*\}))?"  # noqa: RUF001
_TOKEN = re.compile(rf"\(|(?:\)|[a-z](?:{_NAME})?){_REPEAT}|\S")
_UNIT = re.compile(rf"[a-z](?:{_NAME})?|\S")
# while groups are found, each name is one of these characters
_PRIVATE = 0xE000


def tidy(order: str) -> str:
    """Write an order in small letters, and repeats and names that stand above and below the line as others.

    Raises:
        ValueError: it is too long.
    """
    if len(order) > MAX_CHARACTERS:
        raise ValueError(
            f"an order of {len(order)} characters is too long; write it in at most {MAX_CHARACTERS}, with repeats such "
            "as s6 or (sf)10"
        )
    # tabs and line breaks would push the caret out of line
    order = re.sub(r"\s", " ", order.lower())
    order = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda digits: f"^{normalize('NFKC', digits[0])}", order)
    return re.sub("[₀₁₂₃₄₅₆₇₈₉]+", lambda digits: f"_{{{normalize('NFKC', digits[0])}}}", order)


def read(order: str) -> list[str]:
    """Read an order that is tidy as its sublayers, one after the other.

    Raises:
        ValueError: it cannot be read; the message points at the character.
    """
    open_groups: list[tuple[list[str], int]] = []
    sublayers: list[str] = []
    for token in _TOKEN.finditer(order):
        position, before = token.start(), sublayers
        written: str = _UNIT.match(token[0])[0]  # type: ignore[index]
        unit = [written.replace("{", "").replace("}", "")]
        if written == ".":
            continue
        if written[0] not in ("(", ")", *ALPHABET):
            raise _error(_explain(written), order, position)
        if written == "(":
            open_groups.append((before, position))
            sublayers = []
            continue
        if written == ")":
            if not open_groups:
                raise _error("this ')' has no '(' before it; remove it, or add a '('", order, position)
            unit = sublayers
            before, start = open_groups.pop()
            if not unit:
                raise _error("this group is empty; put sublayers into it or remove it", order, start)
        digits = "1"
        if token.lastindex:
            digits, position = token[token.lastindex], token.start(token.lastindex)
        repeats = read_number(digits)
        if not repeats:
            raise _error("a repeat of zero leaves nothing; give 1 or more, or remove what it repeats", order, position)
        if len(before) + len(unit) * repeats > MAX_SUBLAYERS:
            raise _error(f"an order has at most {MAX_SUBLAYERS} sublayers; shorten it from here", order, position)
        sublayers = before + unit * repeats
    if open_groups:
        raise _error("this parenthesis is never closed; add a ')'", order, open_groups[-1][1])
    if not sublayers:
        raise _error(f"the order is empty; give at least one of the letters {', '.join(ALPHABET)}", order, 0)
    if fault := find_fault([sublayer[0] for sublayer in sublayers]):
        problem, place = fault
        raise _error(problem, "".join(sublayers), len("".join(sublayers[:place])))
    return sublayers


def write(sublayers: Sequence[str], first: int) -> str:
    """Write sublayers in the canonical form, with no group that begins before the first `m` and ends after it."""
    names = sorted({sublayer for sublayer in sublayers if len(sublayer) > 1})
    short = {name: chr(_PRIVATE + number) for number, name in enumerate(names)}
    coded = "".join(short.get(sublayer, sublayer) for sublayer in sublayers)
    found = _compact(coded[:first]) + _compact(coded[first:])

    def spell(match: re.Match[str]) -> str:
        name = names[ord(match[1]) - _PRIVATE]
        return f"({name}){match[2]}" if match[2] else name

    return re.sub(f"([{chr(_PRIVATE)}-{chr(_PRIVATE + MAX_SUBLAYERS)}])([0-9]*)", spell, found)


def find_fault(letters: Sequence[str]) -> tuple[str, int] | None:
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


def read_number(digits: str) -> int:
    """Read the number of a repeat."""
    # nine digits are too many already, and int() refuses some thousands
    return int(digits.lstrip("0")[:9] or "0")


def _mixes(letter: str) -> bool:
    row = ALPHABET[letter]
    return row.cache == "self" and not row.reads_fixed_states


def _error(problem: str, order: str, position: int) -> ValueError:
    start = max(0, position - SHOWN // 2)
    return ValueError(f"{problem}\n  {order[start : start + SHOWN]}\n  {' ' * (position - start)}^")


def _explain(character: str) -> str:
    if character == "_":
        return (
            "'_' is part of a name, which needs a letter before it and a number; write names such as s_0 or s_{12}, "
            "and repeats of them such as (s_0)3"
        )
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
