"""What the README shows is run, so that it stays true."""

import argparse
import importlib
import json
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from families import small
from hub_repository import ANN

from sublayers import PARBertConfig, PARBertForSequenceClassification
from sublayers.training import cli
from sublayers.training.commands import push
from sublayers.training.data.tokenizers import train_tokenizer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
# these speak to a server
[ON_THE_HUB] = re.findall(r"^## On the Hub\n.*?(?=^## )", README, re.DOTALL | re.MULTILINE)

pytest_plugins = ["hub_server"]


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands() -> list[list[str]]:
    lines = "\n".join(blocks("bash")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


def test_python_snippets_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks("python", README.replace(ON_THE_HUB, "")):
        # not every environment has other people's tools
        if "sentence_transformers" in block and not find_spec("sentence_transformers"):
            continue
        exec(compile(block, "README.md", "exec"), names)


def test_make_targets_exist():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    called = [words[1] for words in commands() if words[0] == "make"]
    assert called
    assert set(called) <= set(targets)


class UnderstoodError(Exception):
    pass


@pytest.mark.parametrize("words", [w for w in commands() if w[0] == "sublayers"], ids=lambda words: " ".join(words[:3]))
def test_commands_are_understood(words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
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
    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", stop)
    with pytest.raises(UnderstoodError):
        module.main(flags)


def test_linked_files_exist():
    targets = re.findall(r"\]\((?!http)([^)#]+)", README)
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target


def test_the_ways_into_the_hub_work_as_they_stand_here(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokenizer = train_tokenizer(["Who has never heard of it?"], "wordpiece", 60)
    PARBertForSequenceClassification(small(PARBertConfig, vocab_size=len(tokenizer))).save_pretrained("mine")
    tokenizer.save_pretrained("mine")
    push.main(["mine", "ann/par-bert"])

    for number, block in enumerate(blocks("python", ON_THE_HUB)):
        # who does not import the package does not have it, and everybody starts with an empty cache
        script = block if "import sublayers" in block else f"import sys\nsys.modules['sublayers'] = None\n{block}"
        environment = hub.environment(tmp_path / f"home{number}")
        run = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr
        if "classify" in block:
            assert "LABEL_" in run.stdout

    for name in ("train.jsonl", "dev.jsonl"):
        rows = [{"sentence": f"has it {i}", "label": i % 2, "idx": i} for i in range(4)]
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = "\n".join(blocks("bash", ON_THE_HUB)).replace("\\\n", " ").splitlines()
    called = [shlex.split(line, comments=True) for line in lines]
    for _, *command in (words for words in called if words[:1] == ["sublayers"]):
        settings = (
            ["--max_length", "16", "--report_to", "none", "--num_train_epochs", "1"] if command[0] == "glue" else []
        )
        # what training has published is there already
        cli.main([*command, *settings, *(["--overwrite"] if command[0] == "push" else [])])
    files = hub.repositories["ann/par-bert-sst2"].files()
    assert {"model.safetensors", "tokenizer.json", "modeling_par_bert.py", "LICENSE", "README.md"} <= files.keys()
    assert "sublayers glue --task_name sst2" in files["README.md"].content.decode()
    assert not any(ANN.encode() in file.content for file in files.values())
