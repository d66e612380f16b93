"""What a text shows is run: its python blocks one after the other, and its commands as far as their flags are read."""

import argparse
import ast
import importlib
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest

from sublayers.training import cli

# what a block of python prints may follow it
PYTHON = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)

BLOCK = re.compile(r"```(bash|python)\n(.*?)```", re.DOTALL)


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands(text: str, program: str) -> list[list[str]]:
    """The words of each line of bash that runs a program, from its name on: others may launch it."""
    lines = "\n".join(blocks("bash", text)).replace("\\\n", " ").splitlines()
    called = [shlex.split(line, comments=True) for line in lines]
    return [words[words.index(program) :] for words in called if program in words]


def run_python(text: str, name: str) -> None:
    """Run blocks in one name space, and compare what they print with what the text says of it."""
    names: dict[str, object] = {}
    for block, told in PYTHON.findall(text):
        # not every environment has other people's tools
        if not all(find_spec(module) for module in imported(block)):
            continue
        with redirect_stdout(StringIO()) as printed:
            exec(compile(block, name, "exec"), names)
        assert not told or printed.getvalue() == told


def run_as_written(text: str, folder: Path, environment: dict[str, str]) -> str:
    """Run all blocks in order, each in a process of its own, and return what they print.

    What makes environments, `pip` and `make`, is left out.
    """
    printed = ""
    for language, block in BLOCK.findall(text):
        lines = block.replace("\\\n", " ").splitlines()
        script = "\n".join(line for line in lines if not line.startswith(("pip ", "make ")))
        words = {"python": [sys.executable, "-c", block], "bash": ["bash", "-euo", "pipefail", "-c", script]}[language]
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        printed += done.stdout
    return printed


def imported(block: str) -> set[str]:
    nodes = [*ast.walk(ast.parse(block))]
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    return {module.split(".")[0] for module in modules}


class UnderstoodError(Exception):
    pass


def check_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a command of `sublayers` read its flags, and nothing more."""
    name, flags = cli.find(words[1:])
    module = importlib.import_module(f"sublayers.training.{cli.COMMANDS[name][0]}")
    if hasattr(module, "parse"):
        module.parse(flags)
        return

    def stop(parser, *args, parse=argparse.ArgumentParser.parse_known_args, **kwargs):
        _, unknown = parse(parser, *args, **kwargs)
        assert not unknown
        raise UnderstoodError

    # what follows once the flags are read
    with monkeypatch.context() as patched:
        patched.setattr(argparse.ArgumentParser, "parse_known_args", stop)
        with pytest.raises(UnderstoodError):
            module.main(flags)
