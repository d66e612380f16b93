"""Runs of other commands, of which a study that was killed keeps those that were finished."""

import shutil
from pathlib import Path

from rich.console import Console

from sublayers.training import cli


def run_once(results: Path, title: str, command: list[str]) -> None:
    """Run a command that leaves its results in a folder of their own, if it has not yet."""
    if not results.exists():
        Console(stderr=True).rule(title)
        # a run that was killed may have left files
        shutil.rmtree(results.parent, ignore_errors=True)
        cli.run([*command, f"--output_dir={results.parent}"])
