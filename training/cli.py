"""The command `sublayers`: one sub-command per task, and how all of them read flags and report bad input."""

import argparse
import difflib
import importlib
import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import yaml

# importing a command's module is slow (torch), so it waits until the command is chosen
COMMANDS = {
    "order": ("sublayers.training.order", "draw sublayer orders and compare their costs"),
    "tokenizer": ("sublayers.training.tokenizer", "train a tokenizer"),
    "pretrain": ("sublayers.training.pretrain", "train or evaluate a language model"),
    "seq2seq": ("sublayers.training.seq2seq", "train and evaluate encoder-decoders, such as for translation"),
    "glue": ("sublayers.training.glue", "fine-tune and evaluate on the GLUE tasks"),
    "squad": ("sublayers.training.squad", "fine-tune and evaluate on SQuAD, both versions"),
    "bench": ("sublayers.training.bench", "measure speed and memory against peers"),
    "study": ("sublayers.training.study", "pre-train and fine-tune several orders, draw quality against cost"),
    "study-seq2seq": ("sublayers.training.study_seq2seq", "train several encoder-decoders and compare what they write"),
    "study-orders": ("sublayers.training.study_orders", "study what the order does to what encoder-decoders write"),
    "convert": ("sublayers.training.convert", "convert checkpoints of transformers, fairseq and the authors"),
    "export": ("sublayers.training.export", "write a model's folder with the code, licence and card that it needs"),
    "push": ("sublayers.training.push", "publish a model on the Hugging Face Hub"),
    "demo": ("sublayers.training.demo", "train a sandwich and its interleaved twin, and compare them"),
}
# with which a run holds its folder; one that was killed leaves the file, but not the lock on it
LOCK = ".lock"


def main(argv: list[str] | None = None) -> None:
    """Run the sub-command that the first argument names, with the others as its arguments.

    Raises:
        SystemExit: with status 2 and one sentence on standard error for bad input and files that cannot be read or
            written; other errors keep their traceback.
    """
    command, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if command in ("-h", "--help"):
        print("usage: sublayers COMMAND [--help] ...\n")
        for name, (_, purpose) in COMMANDS.items():
            print(f"  {name:<13} {purpose}")
        return
    if command not in COMMANDS:
        _exit(f"sublayers: unknown command {command!r}{_nearest(command, COMMANDS)}; choose from {', '.join(COMMANDS)}")
    try:
        module = importlib.import_module(COMMANDS[command][0])
    except ModuleNotFoundError as error:
        _exit(f"sublayers {command} needs {error.name}; pip install 'sublayers[train]'")
    try:
        module.main(rest)
    except Exception as error:
        if not (isinstance(error, (ValueError, OSError)) or is_of_a_file(error)):
            raise
        _exit(f"sublayers {command}: {error}")


def parse_flags(argv: list[str], dataclass_types: list[Any], usage: str) -> tuple[Any, ...]:
    """Read flags into one instance per dataclass.

    Raises:
        ValueError: an unknown flag, with the nearest known one, or a value of the wrong type.
    """
    from transformers import HfArgumentParser

    class Parser(HfArgumentParser):
        def error(self, message: str) -> NoReturn:
            # argparse would print all of the hundred flags before the one sentence that matters
            raise ValueError(message)

    parser = Parser(dataclass_types, usage=usage, allow_abbrev=False)
    _, unknown = parser.parse_known_args(argv)
    if unknown:
        name = unknown[0].split("=")[0].lstrip("-").replace("-", "_")
        known = [f.name for dataclass_type in dataclass_types for f in fields(dataclass_type)]
        raise ValueError(f"unknown option {name!r}{_nearest(name, known)}")
    return parser.parse_args_into_dataclasses(argv, look_for_args_file=False)


def expand_settings_file(argv: list[str]) -> list[str]:
    """Replace a leading .yaml, .yml or .json file, or the name of a recipe, by the flags that its keys stand for.

    Later flags override them.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: there is no such recipe, or the file is no mapping of options to values.
    """
    if not argv or argv[0].startswith("-"):
        return argv
    path, *flags = argv
    if not path.endswith((".yaml", ".yml", ".json")):
        recipes = {recipe.stem: str(recipe) for recipe in sorted(Path(__file__).with_name("recipes").glob("*.yaml"))}
        if path not in recipes:
            raise ValueError(f"unknown recipe {path!r}; choose from {', '.join(recipes)} or give a .yaml file")
        path = recipes[path]
    try:
        # yaml reads json, too
        settings = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{path} should map options to values, such as 'block_size: 512'")
    from_file: list[str] = []
    for name, value in settings.items():
        if isinstance(value, list):
            from_file += [f"--{name}", *map(str, value)]
        elif value is not None:
            from_file.append(f"--{name}={json.dumps(value) if isinstance(value, dict) else value}")
    return from_file + flags


def refuse_to_overwrite(folder: str | Path, remedy: str = "") -> None:
    """Check that a folder is new or empty.

    Raises:
        FileExistsError: it holds files.
    """
    if Path(folder).exists() and any(path.name != LOCK for path in Path(folder).iterdir()):
        raise FileExistsError(f"{folder} is not empty; choose another folder{remedy}")


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Give a place in which to make a folder; the folder has all of it in the end or, after an error, is not made."""
    parent = folder.resolve().parent
    parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=parent) as place:
        yield Path(place)
        folder.mkdir(exist_ok=True)
        for file in Path(place).iterdir():
            file.rename(folder / file.name)


def is_of_a_file(error: Exception) -> bool:
    """Find out whether an error is what safetensors or tokenizers raise for a damaged file or a full disk."""
    from safetensors import SafetensorError

    # tokenizers raise nothing more special
    return type(error) in (SafetensorError, Exception)


def without_tokens(command: list[str]) -> str:
    """Write a command line without the flags whose values are tokens."""
    return re.sub(r" --\S*token[ =]\S+", "", shlex.join(command))


def positive(text: str) -> int:
    """Read a positive number, as the `type` of an argparse option.

    Raises:
        ArgumentTypeError: it is less than 1.
    """
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def _nearest(name: str, known: Any) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {nearest[0]!r}?" if nearest else ""


def _exit(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    raise SystemExit(2)
