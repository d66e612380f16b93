"""What the README shows is run, so that it stays true."""

import re
import shlex
from pathlib import Path

import pytest

from sublayers.training import bench, cli, glue, order, pretrain, squad

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[list[str]]:
    lines = "\n".join(blocks("bash")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


def test_python_snippets_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)


def test_make_targets_exist():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    called = [words[1] for words in commands() if words[0] == "make"]
    assert called
    assert set(called) <= set(targets)


@pytest.mark.parametrize("words", [w for w in commands() if w[0] == "sublayers"], ids=lambda words: " ".join(words[:3]))
def test_commands_are_understood(words):
    _, command, *flags = words
    parse = {"order": order.main, "bench": bench.parse}
    parse |= {"pretrain": pretrain._parse, "glue": glue._parse, "squad": squad._parse}
    if command in parse:
        parse[command](flags)
    else:
        assert command in cli.COMMANDS


def test_linked_files_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / target).exists(), target
