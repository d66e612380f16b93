"""Flags, which are fields of dataclasses, and the settings files and recipes that give their values."""

import argparse
import difflib
import json
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, field, fields, make_dataclass
from enum import Enum
from inspect import get_annotations
from itertools import pairwise, takewhile
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import yaml

from sublayers.configuration.tapered import tapered

# flags that ask for help
HELP = {"-h", "--help", "--help_all"}
RECIPES = Path(__file__).with_name("recipes")
TRUTH = dict.fromkeys(("yes", "true", "t", "y", "1"), True) | dict.fromkeys(("no", "false", "f", "n", "0"), False)


def flag(help_text: str, value: Any = None, **metadata: Any) -> Any:
    """Declare a field of a dataclass of flags.

    Args:
        help_text: for `--help`.
        value: its default, which may be a list, or MISSING where the flag is required.
        metadata: what else argparse should know, such as `choices`, `type` or `metavar`; `aliases`, other names; and
            `positional`, whether the value is given without a name, as a list or an optional one may be, too.
    """
    given = {"default_factory": value.copy} if isinstance(value, list) else {"default": value}
    return field(**given, metadata={"help": help_text, **metadata})


def number(help_text: str, value: Any = None, **metadata: Any) -> Any:
    """Declare a field, or the numbers of a list, that must be positive; see `flag`."""
    return flag(help_text, value, type=positive, **metadata)


def parse_flags(
    argv: list[str], dataclass_types: Sequence[Any], usage: str, settings: str = "", **texts: Any
) -> tuple[Any, ...]:
    """Read flags into one instance per dataclass.

    `--help` shows the flags that our own dataclasses name, `--help_all` also those that they inherit from the Trainer's
    and those of a model's configuration.

    Args:
        argv: words of a command line.
        dataclass_types: with fields that `flag` has declared.
        usage: first line of `--help`.
        settings: the folder of the recipes of a command that may have one, or a settings file, after its positional
            arguments.
        texts: `description` and `epilog` of `--help`.

    Raises:
        ValueError: an unknown flag, with the nearest known one, or a value of the wrong type.
    """
    known = [f for kind in dataclass_types for f in fields(kind) if f.init]
    # make_dataclass may say that its classes are from this module
    bases = {base for kind in dataclass_types for base in kind.__mro__ if base.__module__ != __name__}
    own = {name for base in bases if base.__module__.startswith("sublayers.") for name in get_annotations(base)}
    parser = _Parser(usage=usage, allow_abbrev=False, formatter_class=_Formatter, **texts)
    if not {f.name for f in known} <= own:
        help_text = "show the flags of transformers' Trainer and of a new model, too"
        parser.add_argument("--help_all", action="help", help=help_text)
    for kind in dataclass_types:
        title = getattr(kind, "_argument_group_name", None)
        group, types = parser.add_argument_group(title) if title else parser, get_type_hints(kind)
        for f in fields(kind):
            if f.init:
                _add(group, f, types[f.name], is_shown=f.name in own or "--help_all" in argv)
    if settings:
        words = sum(f.metadata.get("positional", False) for f in known)
        leading = sum(1 for _ in takewhile(lambda word: not word.startswith("-"), argv[:words]))
        argv = [*argv[:leading], *expand_settings_file(argv[leading:], settings)]
    if any(f.metadata.get("positional") for f in known):
        # the word after a flag that is on or off may be one of these
        names = (name for f in known if f.type is bool for name in (f.name, *f.metadata.get("aliases", ())))
        switches = {name if name.startswith("-") else f"--{name}" for name in names}
        following = pairwise([*argv, "true"])
        argv = [word if word not in switches or after.lower() in TRUTH else f"{word}=true" for word, after in following]
    namespace, unknown = parser.parse_known_args(argv)
    if unknown:
        name = unknown[0].split("=")[0].lstrip("-")
        raise ValueError(f"unknown option {name!r}{nearest(name, [f.name for f in known])}")
    given = vars(namespace)
    # a misspelt flag may be the one that is missing, so unknown ones are named first
    if missing := [f"--{f.name}" for f in known if f.name not in given]:
        raise ValueError(f"the following arguments are required: {', '.join(missing)}")
    return tuple(kind(**{f.name: given[f.name] for f in fields(kind) if f.init}) for kind in dataclass_types)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse would print all of the hundred flags before the one sentence that matters
        raise ValueError(message)


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    def _format_action_invocation(self, action: argparse.Action) -> str:
        name, *_ = action.option_strings or [str(action.metavar or action.dest)]
        return name + (" {" + ",".join(map(str, action.choices)) + "}" if action.choices else "")

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False, []) else super()._get_help_string(action)


class _OneOrMore(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        first, *others = values
        setattr(namespace, self.dest, values if others else first)


def _add(group: Any, f: Field, kind: Any, is_shown: bool) -> None:
    """Declare a field as an argument of a parser, or of a group of one."""
    metadata = {**f.metadata}
    positional, names = metadata.pop("positional", False), [f"--{f.name}", *metadata.pop("aliases", [])]
    default = f.default if f.default_factory is MISSING else f.default_factory()
    options = _how_to_read(kind, default) | {"default": argparse.SUPPRESS if default is MISSING else default} | metadata
    if not is_shown:
        options["help"] = argparse.SUPPRESS
    if positional:
        # a default makes it optional
        optional = {} if default is MISSING else {"nargs": "*" if isinstance(default, list) else "?"}
        group.add_argument(f.name, **options | optional)
        return
    group.add_argument(*names, dest=f.name, **options)
    if kind is bool and default is True:
        off = {**metadata, "help": options["help"], "action": "store_false", "default": False}
        group.add_argument(f"--no_{f.name}", dest=f.name, **off)


def _how_to_read(kind: Any, default: Any) -> dict[str, Any]:
    """Say to argparse how a text becomes a value of a type; of several types, the simplest is read."""
    is_union = get_origin(kind) in (Union, UnionType)
    first, *others = parts = [part for part in get_args(kind) if part is not NoneType] if is_union else [kind]
    origin = get_origin(first)
    if isinstance(first, type) and issubclass(first, Enum):
        return {"choices": [each.value for each in first]}
    if bool in (first, *others):
        return {"type": truth, "nargs": "?", "const": True}
    if str in (first, *others):
        return {}
    if {*parts} == {int, list[int]}:
        return {"type": width, "nargs": "+", "action": _OneOrMore}
    if origin is Literal:
        return {"choices": get_args(first)}
    if origin is dict:
        return {"type": JsonDict}
    if origin is list:
        # without a value a list of a configuration is None, which need not be its default
        return _how_to_read(get_args(first)[0], None) | {"nargs": "*" if default is None else "+"}
    return {"type": finite if float in (first, *others) else first}


def expand_settings_file(argv: list[str], command: str) -> list[str]:
    """Replace a leading .yaml, .yml or .json file, or the name of a command's recipe, by the flags it stands for.

    Later flags override them, and a file those of the file that it has as `base`: another one beside it, or a recipe. A
    recipe writes into `runs`, into a folder of its name.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: there is no such recipe, or the file is no mapping of options to values.
    """
    if not argv or argv[0].startswith("-"):
        return argv
    name, *flags = argv
    return as_flags(read_settings(name, command)) + flags


def as_flags(settings: dict[str, Any]) -> list[str]:
    """Write names and values as flags; a list has one word each, and None is left out."""
    words: list[str] = []
    for name, value in settings.items():
        if isinstance(value, (list, tuple)):
            words += [f"--{name}", *map(str, value)]
        elif value is not None:
            words.append(f"--{name}={json.dumps(value) if isinstance(value, dict) else value}")
    return words


def recipes(command: str) -> dict[str, Path]:
    """Find a command's recipes by their names."""
    return {path.stem: path for path in sorted((RECIPES / command).glob("*.yaml"))}


def read_settings(name: str, command: str, folder: Path = Path()) -> dict[str, Any]:
    """Read a settings file, or a command's recipe, with those of its `base`. Raises what `expand_settings_file` does.

    Args:
        name: of the file or recipe.
        command: the folder of its recipes.
        folder: where the file is.
    """
    own: dict[str, Any] = {}
    if name.endswith((".yaml", ".yml", ".json")):
        path = folder / name
    elif name in (known := recipes(command)):
        path, own = known[name], {"output_dir": f"runs/{name}"}
    else:
        others = {recipe.stem: recipe.parent.name for recipe in RECIPES.rglob("*.yaml")}
        of = f" belongs to sublayers {others[name]}" if name in others else " is unknown"
        raise ValueError(f"recipe {name!r}{of}; choose from {', '.join(known)} or give a .yaml file")
    try:
        # JSON is YAML, too
        settings = yaml.load(path.read_text(encoding="utf-8"), Loader=_OnceLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{path} should map options to values, such as 'block_size: 512'")
    base = settings.pop("base", None)
    return (read_settings(str(base), command, path.parent) if base else {}) | own | settings


class _OnceLoader(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML would take the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep) for key, _ in node.value]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]!r} stands there twice", node.start_mark)
        return super().construct_mapping(node, deep)


class JsonDict(dict):
    """A mapping that is given as JSON."""

    def __init__(self, text: str):
        super().__init__(json.loads(text))


def config_flags(config_class: type, run: type, decided: Collection[str] = ()) -> type:
    """Make a dataclass of flags from the fields of a configuration class.

    Args:
        config_class: configuration of a new model.
        run: dataclass of the command's own flags, which take precedence over fields of the same name.
        decided: fields that are no flags because the command or the tokenizer decides on them.
    """
    from transformers import PreTrainedConfig, TrainingArguments

    taken = {f.name for base in (PreTrainedConfig, TrainingArguments, run) for f in fields(base)} | {*decided}
    flags = []
    for f in fields(config_class):
        # the tokenizer decides on the special tokens as well as on vocab_size
        if f.name not in taken and not f.name.endswith("_token_id") and get_origin(f.type) is not dict:
            default = f.default if f.default_factory is MISSING else f.default_factory()
            kind: Any = f.type
            flags.append((f.name, kind | None, flag(f"{default!r} when not given")))
    group = {"_argument_group_name": f"{config_class.__name__} of a new model"}
    return make_dataclass("ConfigFlags", flags, namespace=group)


def words_by_flag(argv: list[str]) -> dict[str, list[str]]:
    """Find the words that follow each flag, without a parser that would have to know all flags.

    Of a flag that stands there twice, the last words count.
    """
    found: dict[str, list[str]] = {}
    words: list[str] = []
    for word in argv:
        if match := re.fullmatch(r"--(\w+)(?:=(.*))?", word, re.DOTALL):
            words = found[match[1]] = [] if match[2] is None else [match[2]]
        else:
            words.append(word)
    return found


def deciding_flags(argv: list[str], **known: Collection[str]) -> dict[str, str]:
    """Read the flags that decide which other flags there are, as far as they are given.

    Args:
        argv: all flags.
        known: the values that each of them can have.

    Raises:
        ValueError: another value, or none.
    """
    given = {name: words for name, words in words_by_flag(argv).items() if name in known}
    for name, words in given.items():
        if len(words) != 1:
            raise ValueError(f"argument --{name}: expected one argument")
        if words[0] not in known[name]:
            raise ValueError(f"unknown {name} {words[0]!r}; choose from {', '.join(known[name])}")
    return {name: word for name, [word] in given.items()}


def underscored(argv: list[str]) -> list[str]:
    """Spell the flags of a command line with underscores, as transformers does; their values stay as they are."""
    # a value may be a text of flags itself, with spaces between
    flag = re.compile(r"^--([\w-]+)(?==|$)")
    return [flag.sub(lambda found: "--" + found[1].replace("-", "_"), word) for word in argv]


def given_flags(flags: Any) -> dict[str, Any]:
    """Choose the flags that were given; one of a list without values stands for None."""
    return {name: None if value == [] else value for name, value in vars(flags).items() if value is not None}


def positive(text: str) -> int:
    """Read a positive number, as the `type` of an argparse option.

    Raises:
        ArgumentTypeError: it is less than 1.
    """
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def width(text: str) -> int | list[int]:
    """Read a width, or those of `tapered`, as the `type` of an argparse option.

    Raises:
        ArgumentTypeError: it is neither.
    """
    try:
        if (call := re.fullmatch(r"\s*tapered\s*\((.+)\)\s*", text)) is None:
            return positive(text)
        values = call[1].split(",")
        if len(values) not in (2, 4):
            raise ValueError("write tapered(8, 1024) or tapered(8, 1024, 1.5, 0.5)")
        first, last = map(finite, values[2:] or ("1.5", "0.5"))
        return tapered(int(values[0]), int(values[1]), first, last)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a width nor several: {error}") from error


def finite(text: str) -> float:
    """Read a number that is neither NaN nor infinite, as the `type` of an argparse option.

    Raises:
        ArgumentTypeError: it is one of these, or no number.
    """
    with suppress(ValueError):
        if isfinite(number := float(text)):
            return number
    raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")


def truth(text: str) -> bool:
    """Read whether a flag is on, as the `type` of an argparse option.

    Raises:
        ArgumentTypeError: the text says neither.
    """
    if text.lower() not in TRUTH:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return TRUTH[text.lower()]


def nearest(name: str, known: Collection[str]) -> str:
    """Ask, at the end of a sentence, whether one of the known names was meant.

    Those are names with the same words and more, or whose initials it is, or else the nearest one.
    """
    words = {*name.split("_")}
    meant = [each for each in known if words < {*each.split("_")} or name == "".join(re.findall("(?:^|_)(.)", each))]
    meant = difflib.get_close_matches(name, meant, n=3, cutoff=0) or difflib.get_close_matches(name, known, n=1)
    return f", did you mean {' or '.join(map(repr, meant))}?" if meant else ""
