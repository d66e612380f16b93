"""What studies and searches share: their flags, trials, runs of other commands, which are not run again, and data."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sublayers.hub.model_card import RUN
from sublayers.training import cli
from sublayers.training.flags import HELP, parse_flags
from sublayers.training.trials import TASK

if TYPE_CHECKING:
    from optuna import Trial


@dataclass(frozen=True)
class Do:
    """Does the task of a trial: the first that `find` returns is the value, the second are attributes."""

    find: Callable[..., tuple[float, dict[str, Any]]]

    def __call__(self, trial: "Trial") -> float:
        """Pass the task to `find`."""
        value, found = self.find(**trial.user_attrs[TASK])
        for name, each in found.items():
            trial.set_user_attr(name, each)
        return value


def own_flags(argv: list[str], kinds: Sequence[Any], usage: str, **texts: Any) -> tuple[tuple[Any, ...], list[str]]:
    """Read the flags of dataclasses, and leave all other words to another command. Raises what `parse_flags` raises.

    Args:
        argv: words of a command line.
        kinds: the dataclasses.
        usage: first line of `--help`.
        texts: `description` and `epilog` of `--help`.
    """
    known = [f for kind in kinds for f in fields(kind)]
    names = {f"--{f.name}" for f in known} | HELP
    positional = sum(f.metadata.get("positional", False) for f in known)
    own, others = argv[:positional], list[str]()
    words = others
    for word in argv[positional:]:
        if re.match("-[a-z-]", word):
            words = own if word.partition("=")[0] in names else others
        words.append(word)
    return parse_flags(own, kinds, usage, **texts), others


def run_once(folder: Path, title: str, command: list[str], results: str = "all_results.json") -> Any:
    """Run a command in a folder of its own, or let it go on there, unless it is finished; return the results there."""
    # `sublayers glue` writes its results last, the others their record
    last = results if command[0] == "glue" else RUN
    if not (folder / last).exists():
        Console(stderr=True).rule(title)
        resumed = ["--resume_from_checkpoint=true"] if folder.exists() else []
        cli.run([*command, f"--output_dir={folder}", *resumed])
    return read_results(folder / results)


def read_results(file: Path) -> Any:
    """Read the JSON that a run left."""
    return json.loads(file.read_text(encoding="utf-8"))


def flags_of(arguments: Any) -> dict[str, Any]:
    """List the flags of a dataclass that have a value, by their names."""
    return {name: value for name, value in vars(arguments).items() if value is not None and value is not False}


def data_names(args: Any, default: str = "the standard library") -> list[str]:
    """Name the data that the flags of a corpus or of pairs ask for, `default` where they name none."""
    # this import takes seconds, for which --help does not wait
    from sublayers.training.trainers.publish import describe_data

    return [part["name"] for part in describe_data(args, {"name": default}, args.dataset_config_name)]
