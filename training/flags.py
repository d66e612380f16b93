"""Reading flags, settings files and recipes."""

import argparse
import difflib
import json
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import MISSING, field, fields, make_dataclass
from inspect import get_annotations
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

import yaml

# flags that ask for help
HELP = {"-h", "--help", "--help_all"}
RECIPES = Path(__file__).with_name("recipes")


def flag(help_text: str, value: Any = None, **metadata: Any) -> Any:
    """Declare a field of a dataclass of flags.

    Args:
        help_text: for `--help`.
        value: its default, which may be a list, or MISSING where the flag is required.
        metadata: what else argparse should know, such as `choices`, or `aliases`.
    """
    given = {"default_factory": value.copy} if isinstance(value, list) else {"default": value}
    return field(**given, metadata={"help": help_text, **metadata})


def parse_flags(argv: list[str], dataclass_types: Sequence[Any], usage: str) -> tuple[Any, ...]:
    """Read flags into one instance per dataclass.

    `--help` shows the flags that our own dataclasses name, `--help_all` also those that they inherit from the Trainer's
    and those of a model's configuration.

    Raises:
        ValueError: an unknown flag, with the nearest known one, or a value of the wrong type.
    """
    from transformers import HfArgumentParser

    class Parser(HfArgumentParser):
        def error(self, message: str) -> NoReturn:
            # argparse would print all of the hundred flags before the one sentence that matters
            raise ValueError(message)

    class Formatter(argparse.ArgumentDefaultsHelpFormatter):
        def _format_action_invocation(self, action: argparse.Action) -> str:
            # HfArgumentParser declares a flag with dashes, too
            choices = " {" + ",".join(map(str, action.choices)) + "}" if action.choices else ""
            return action.option_strings[0] + choices

    parser = Parser([*dataclass_types], usage=usage, allow_abbrev=False, formatter_class=Formatter)
    # make_dataclass may say that its classes are from this module
    bases = {base for given in dataclass_types for base in given.__mro__ if base.__module__ != __name__}
    own = {name for base in bases if base.__module__.startswith("sublayers.") for name in get_annotations(base)}
    for action in parser._actions:
        action.type = finite if action.type is float else action.type
        if action.nargs == "+" and action.default is None:
            # without a value a list of a configuration is None, which need not be its default
            action.nargs = "*"
    others = [action for action in parser._actions if action.dest not in {"help", *own}]
    if others:
        help_text = "show the flags of transformers' Trainer and of a new model, too"
        parser.add_argument("--help_all", action="help", help=help_text)
    if "--help_all" not in argv:
        for action in others:
            action.help = argparse.SUPPRESS
    _, unknown = parser.parse_known_args(argv)
    if unknown:
        name = unknown[0].split("=")[0].lstrip("-")
        known = [f.name for dataclass_type in dataclass_types for f in fields(dataclass_type) if f.init]
        raise ValueError(f"unknown option {name!r}{nearest(name, known)}")
    return parser.parse_args_into_dataclasses(argv, look_for_args_file=False)


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
    from_file: list[str] = []
    for option, value in read_settings(name, command).items():
        if isinstance(value, list):
            from_file += [f"--{option}", *map(str, value)]
        elif value is not None:
            from_file.append(f"--{option}={json.dumps(value) if isinstance(value, dict) else value}")
    return from_file + flags


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
            # argparse turns text into one type only
            kind: Any = float if {float, int} <= {*get_args(f.type)} else f.type
            kind = JsonDict if any(get_origin(part) is dict for part in get_args(f.type)) else kind
            bare = {"nargs": "?", "const": True} if kind is bool else {}
            default = f.default if f.default_factory is MISSING else f.default_factory()
            help_text = f"{default!r} when not given"
            flags.append((f.name, kind | None, field(default=None, metadata={"help": help_text, **bare})))
    group = {"_argument_group_name": f"{config_class.__name__} of a new model"}
    return make_dataclass("ConfigFlags", flags, namespace=group)


def deciding_flags(argv: list[str], **known: Collection[str]) -> dict[str, str]:
    """Read the flags that decide which other flags there are, as far as they are given.

    Args:
        argv: all flags.
        known: the values that each of them can have.

    Raises:
        ValueError: another value, or none.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in known:
        parser.add_argument(f"--{name}")
    try:
        given = given_flags(parser.parse_known_args(argv)[0])
    except argparse.ArgumentError as error:
        raise ValueError(str(error)) from error
    for name, value in given.items():
        if value not in known[name]:
            raise ValueError(f"unknown {name} {value!r}; choose from {', '.join(known[name])}")
    return given


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


def finite(text: str) -> float:
    """Read a number that is neither NaN nor infinite, as the `type` of an argparse option.

    Raises:
        ArgumentTypeError: it is one of these, or no number.
    """
    with suppress(ValueError):
        if isfinite(number := float(text)):
            return number
    raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")


def nearest(name: str, known: Collection[str]) -> str:
    """Ask, at the end of a sentence, whether one of the known names was meant.

    Those are names with the same words and more, or whose initials it is, or else the nearest one.
    """
    words = {*name.split("_")}
    meant = [each for each in known if words < {*each.split("_")} or name == "".join(re.findall("(?:^|_)(.)", each))]
    meant = difflib.get_close_matches(name, meant, n=3, cutoff=0) or difflib.get_close_matches(name, known, n=1)
    return f", did you mean {' or '.join(map(repr, meant))}?" if meant else ""
