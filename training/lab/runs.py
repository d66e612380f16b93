"""What studies and searches share: runs of other commands, which are not run again, and the names of their data."""

import json
import shutil
from pathlib import Path
from typing import Any

from rich.console import Console

from sublayers.training import cli


def run_once(results: Path, title: str, command: list[str]) -> None:
    """Run a command that leaves its results in a folder of their own, if it has not yet."""
    if not results.exists():
        Console(stderr=True).rule(title)
        # a run that was killed may have left files
        shutil.rmtree(results.parent, ignore_errors=True)
        cli.run([*command, f"--output_dir={results.parent}"])


def read_results(file: Path) -> Any:
    """Read the JSON that a run left."""
    return json.loads(file.read_text(encoding="utf-8"))


def as_flags(values: dict[str, Any]) -> list[str]:
    """Write names and values as flags; a list has one word each."""
    return [
        word
        for name, value in values.items()
        for word in (f"--{name}", *map(str, value if isinstance(value, (list, tuple)) else [value]))
    ]


def data_names(args: Any, default: str = "the standard library") -> list[str]:
    """Name the data that the flags of a corpus or of pairs ask for, `default` where they name none."""
    # this import takes seconds, for which --help does not wait
    from sublayers.training.trainers.publish import describe_data

    return [part["name"] for part in describe_data(args, {"name": default}, args.dataset_config_name)]
