"""Flags are the fields of dataclasses."""

import re
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Literal

import pytest

from sublayers.training.flags import flag, parse_flags, positive


@dataclass
class Flags:
    """Flags of each kind."""

    orders: list[str] = flag("what is drawn", MISSING, positional=True, metavar="ORDER")
    number: int = flag("of layers", 3, type=positive)
    rate: float | int | None = flag("of learning")
    kind: Literal["one", "two"] | None = flag("of it")
    on: bool = flag("on by default", True)
    off: bool = flag("off by default", False, aliases=["--out"])
    place: Path | None = flag("folder")
    parts: dict[str, int] | None = flag("as JSON")
    some: list[int] | None = flag("numbers")


# the test's own module is not of the package, whose fields --help shows
Flags.__module__ = "sublayers.test"


@dataclass
class Words:
    """A command whose last word may be left out."""

    first: str = flag("needed", MISSING, positional=True)
    second: str | None = flag("or not", None, positional=True)
    seed: int = flag("of it", 0)


def read(words, kind=Flags, settings=""):
    return vars(parse_flags(words.split(), [kind], "sublayers test", settings)[0])


@pytest.mark.parametrize(
    ("words", "values"),
    {
        "s f --number 4": {"orders": ["s", "f"], "number": 4},
        "--out s f --on false": {"orders": ["s", "f"], "off": True, "on": False},
        "--kind one s --no_on --out --place x": {
            "orders": ["s"], "kind": "one", "on": False, "off": True, "place": Path("x")
        },
        's --parts {"a":1} --some 1 2 --rate 2': {"parts": {"a": 1}, "some": [1, 2], "rate": 2.0},
        "s --some --on=False --off=yes": {"some": [], "on": False, "off": True},
    }.items(),
)  # fmt: skip
def test_text_becomes_the_values_of_fields(words, values):
    defaults = {"number": 3, "on": True, "off": False} | dict.fromkeys(("rate", "kind", "place", "parts", "some"))
    assert read(words) == defaults | {"orders": ["s"]} | values


@pytest.mark.parametrize(
    ("words", "sentence"),
    {
        "s --number 0": "argument --number: 0 is not a positive number",
        "s --number x": "argument --number: invalid positive value: 'x'",
        "s --kind three": "argument --kind: invalid choice: 'three' (choose from 'one', 'two')",
        "s --off=maybe": "argument --off/--out: 'maybe' is neither true nor false",
        "s --rate nan": "argument --rate: 'nan' is not a finite number",
        "s --numbr=3": "unknown option 'numbr', did you mean 'number'?",
        "s --num 3": "unknown option 'num', did you mean 'number'?",
        "--number 3": "the following arguments are required: ORDER",
    }.items(),
)
def test_other_text_is_refused_in_a_sentence(words, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        read(words)


@dataclass
class Listed:
    order: str | None = flag("or not", None, positional=True)
    json: bool = flag("printed", False)


def test_a_word_after_a_switch_is_not_its_value():
    assert read("", Listed) == {"order": None, "json": False}
    assert read("--json", Listed) == {"order": None, "json": True}
    assert read("--json s", Listed) == {"order": "s", "json": True}
    assert read("--json no s", Listed) == {"order": "s", "json": False}


def test_settings_come_after_the_words_that_have_no_flag(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text("seed: 3\n")
    assert read("a b", Words) == {"first": "a", "second": "b", "seed": 0}
    assert read("a --seed 2", Words) == {"first": "a", "second": None, "seed": 2}
    assert read("a --seed 2", Words, "glue") == {"first": "a", "second": None, "seed": 2}
    assert read("a b own.yaml", Words, "glue") == {"first": "a", "second": "b", "seed": 3}
    assert read("a b own.yaml --seed 4", Words, "glue")["seed"] == 4


def test_help_shows_words_choices_and_defaults_where_there_are_any(capsys):
    with pytest.raises(SystemExit):
        read("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "ORDER what is drawn" in shown
    assert "--number of layers (default: 3) --rate of learning --kind {one,two} of it --on on by default" in shown
