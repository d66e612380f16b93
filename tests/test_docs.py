"""What README and documentation show is run, so that it stays true, and the pages are built."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from glue_rows import make_rows, write
from hub_repository import ANN
from launched import python
from snippets import blocks, check_command, commands, run_as_written, run_python
from tiny_models import save_model
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

import sublayers
from sublayers.hub.model_card import named_orders
from sublayers.training import cli
from sublayers.training.commands import pretrain, push
from sublayers.training.results import read

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in FILES}
# speaks to a server
ON_THE_HUB = PAGES["docs/how_to/publish.md"]
README = PAGES["README.md"]
SNIPPETS = [page for page, text in PAGES.items() if blocks("python", text) and text not in (ON_THE_HUB, README)]
COMMANDS = [(page, words) for page, text in PAGES.items() for words in commands(text, "sublayers")]
# the tables and figures of the papers
PARTS = {file.stem: read(file) for file in sorted((ROOT / "results" / "papers").glob("*.csv"))}
COMMANDS += [(f"{name} {row['part']}", shlex.split(row["command"])) for name, rows in PARTS.items() for row in rows]
COMMANDS = [(page, words) for page, words in COMMANDS if words]

pytest_plugins = ["hub_server"]


@pytest.mark.parametrize("page", SNIPPETS)
def test_python_snippets_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = PAGES[page]
    for block in blocks("python", ON_THE_HUB):
        text = text.replace(block, "")
    run_python(text, page)


@pytest.fixture
def clone(tmp_path):
    """All files of the repository that are not ignored, in a folder of their own."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, files.split("\0")):
        if os.path.lexists(ROOT / name):
            (tmp_path / "sublayers" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / "sublayers" / name, follow_symlinks=False)
    return tmp_path / "sublayers"


@pytest.mark.full
def test_every_block_of_readme_runs_in_order_in_a_clone(clone, tmp_path):
    here = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(clone / "src")}
    nothing = {"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "huggingface"), "HF_HUB_OFFLINE": "1"}
    printed = run_as_written(README, clone, os.environ | here | nothing | {"OMP_NUM_THREADS": "1"})
    assert re.search(
        r"^BERT: \d+\.\d+ s\noptimized: \d+\.\d+ s\nThe answers differ by at most \de-0[6-9]$", printed, re.M
    )
    [translated] = re.findall(r"It prints `(.*?)`", README)
    assert translated in printed.splitlines()
    assert {path.name for path in (clone / "runs").iterdir()} == {"bert", "served"}
    assert (clone / "runs/served/model.pt2").exists()


def test_readme_installs_what_the_environments_of_the_tests_have():
    [[*_, installed]] = commands(README, "pip")
    assert README.count("pip install -e") == 2
    extras = {*re.findall(r"\w+", installed)}
    environments = re.findall(r"--editable '\.\[([^]]+)\]'", (ROOT / "Makefile").read_text())
    assert environments
    assert all(extras <= {*names.split(",")} for names in environments)


def test_readme_is_short():
    assert len(README.splitlines()) <= 140


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=[" ".join([page, *words[1:3]]) for page, words in COMMANDS])
def test_commands_are_understood(page, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    check_command(words, monkeypatch)


def test_every_part_of_a_paper_has_a_run_or_a_reason():
    for name, rows in PARTS.items():
        assert all(row["measured"] and (row["measured"].startswith("not run") or row["outcome"]) for row in rows), name
        assert f"results/papers/{name}.csv" in PAGES[f"docs/papers/{name}.md"]


def test_the_first_model_of_the_quick_start_is_small_and_leaves_no_checkpoints():
    [words] = [words for page, words in COMMANDS if page == "docs/quick_start.md" and words[1] == "pretrain"]
    run, model_flags, corpus, args = pretrain.parse(words[2:])
    assert not corpus.train_file
    with torch.device("meta"):
        config = pretrain.make_config(run, model_flags | {"vocab_size": run.vocab_size})
        model = AutoModelForMaskedLM.from_config(config)
    assert model.num_parameters() < 2_000_000
    assert args.save_strategy == "no"


def test_make_targets_exist():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    called = [words[1] for text in PAGES.values() for words in commands(text, "make")]
    assert called
    assert {*called} <= {*targets}


def test_the_table_has_every_family_with_its_default_orders():
    rows = [line for line in README.splitlines() if line.startswith("| `")]
    for config_class in sublayers.AUTO_CLASSES:
        name = config_class.__name__.removesuffix("Config")
        [row] = [row for row in rows if row.startswith(f"| `{name}`")]
        assert f"model_cards/{config_class.model_type}.md" in row
        orders = [order for _, order in named_orders(config_class())]
        assert len(orders) > 2 or all(f"`{order}`" in row for order in orders)


def test_files_that_readme_links_exist():
    targets = re.findall(r"\]\((?!http)([^)#]+)", README)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


@pytest.mark.full
def test_the_site_is_built_without_a_warning_and_has_every_name_and_command(tmp_path):
    pytest.importorskip("sphinx")
    python("-m", "sphinx", "-q", "-W", "--keep-going", "-c", ROOT / "docs", ROOT, tmp_path)
    api, command_line, orders = (
        (tmp_path / f"docs/{page}.html").read_text() for page in ("api", "command_line", "orders")
    )
    assert [name for name in sublayers.__all__ if f'id="sublayers.{name}"' not in api] == []
    assert "# a feed-forward sublayer computes act(gate(x)) * fc1(x) instead of act(fc1(x))" in api
    assert [name for name in cli.COMMANDS if f"usage: sublayers {name} " not in command_line] == []
    # somebody who opens the folder lands on the home page, which names what most people come for
    assert "url=docs/index.html" in (tmp_path / "index.html").read_text()
    assert "optimize" in (tmp_path / "docs/index.html").read_text()
    assert 'aria-label="interleaved(6) = (sf)6, sandwich(6,2) = s2(sf)4f2, ' in orders


@pytest.mark.full
def test_the_ways_into_the_hub_work_as_they_stand_here(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_model("mine", head=AutoModelForSequenceClassification)
    push.main(["mine", "ann/par-bert"])

    for number, block in enumerate(blocks("python", ON_THE_HUB)):
        # who does not import the package does not have it, and everybody starts with an empty cache
        script = block if "import sublayers" in block else f"import sys\nsys.modules['sublayers'] = None\n{block}"
        printed = python("-c", script, **hub.environment(tmp_path / f"home{number}"))
        # nobody is asked whether to run code
        assert "[y/N]" not in printed
        if "classify" in block:
            assert "LABEL_" in printed

    for name in ("train.jsonl", "dev.jsonl"):
        write(Path(name), make_rows("sst2", 4, 0))
    for _, *command in commands(ON_THE_HUB, "sublayers"):
        settings = (
            ["--max_length", "16", "--report_to", "none", "--num_train_epochs", "1"] if command[0] == "glue" else []
        )
        # what training has published is there already
        cli.main([*command, *settings, *(["--overwrite"] if command[0] == "push" else [])])
    files = hub.repositories["ann/par-bert-sst2"].files()
    assert {"model.safetensors", "tokenizer.json", "modeling_par_bert.py", "LICENSE", "README.md"} <= files.keys()
    assert "sublayers glue --task_name sst2" in files["README.md"].content.decode()
    assert not any(ANN.encode() in file.content for file in files.values())
