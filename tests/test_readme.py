"""What the README shows is run, so that it stays true."""

import re
from pathlib import Path

import pytest
from snippets import blocks, check_command, commands, run_python

from sublayers.auto_models import AUTO_CLASSES
from sublayers.hub.model_card import named_orders
from sublayers.training.flags import recipes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = commands(README, "sublayers")
# a test of the documentation runs these against a server
ON_THE_HUB = blocks("python", (ROOT / "docs/how_to/publish.md").read_text())


def test_python_snippets_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = README
    for block in ON_THE_HUB:
        text = text.replace(block, "")
    run_python(text, "README.md")


def test_make_targets_exist():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    called = [words[1] for words in commands(README, "make")]
    assert called
    assert set(called) <= set(targets)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:3]))
def test_commands_are_understood(words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    check_command(words, monkeypatch)


def test_the_table_has_every_family_with_its_default_orders():
    rows = [line for line in README.splitlines() if line.startswith("| `")]
    for config_class in AUTO_CLASSES:
        name = config_class.__name__.removesuffix("Config")
        [row] = [row for row in rows if row.startswith(f"| `{name}`")]
        assert f"model_cards/{config_class.model_type}.md" in row
        orders = [order for _, order in named_orders(config_class())]
        assert len(orders) > 2 or all(f"`{order}`" in row for order in orders)
        for recipe in re.findall("`([a-z0-9]+_?[a-z0-9_]*)`", row.split("|")[4]):
            assert recipe in {**recipes("pretrain"), **recipes("seq2seq")}


def test_linked_files_exist():
    targets = re.findall(r"\]\((?!http)([^)#]+)", README)
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target
