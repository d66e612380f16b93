"""An untested transformers is refused in a sentence: beside the package, and by folders with code."""

import importlib
import json
import os
import re
from configparser import ConfigParser
from pathlib import Path

import pytest
import transformers
from launched import python
from packaging.requirements import Requirement
from tiny_models import save_model

import sublayers
from sublayers.configuration import versions

ROOT = Path(__file__).resolve().parents[2]
SETUP = ConfigParser()
SETUP.read(ROOT / "setup.cfg")
# `make` puts a transformers there that is older than the range
OLDER = ROOT / "build" / "transformers-older"
# run where the package cannot be imported: what each way of opening each folder says
OPEN = """
import json, sys
sys.modules["sublayers"] = None
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, pipeline

def run(folder, **options):
    return pipeline("text-generation", model=folder, **options)

ways = [AutoConfig.from_pretrained, AutoTokenizer.from_pretrained, AutoModelForCausalLM.from_pretrained, run]
answers = {}
for folder in sys.argv[1:]:
    answers[folder] = []
    for way in ways:
        try:
            way(folder, trust_remote_code=True)
            answers[folder].append("opened")
        except Exception as error:
            answers[folder].append(f"{type(error).__name__}: {error}")
print(json.dumps(answers))
"""


def requirements(section, name):
    return {each.name: each for each in map(Requirement, SETUP[section][name].split("\n")[1:])}


def said(version, admitted=versions.TRANSFORMERS):
    return (
        f"ImportError: this code was tested with transformers{admitted}, not {version}, where it might silently give "
        f"other answers; pip install 'transformers{admitted}'"
    )


def process(code, *arguments, path=(), home=None):
    """Run code in a process that finds what is in `path` before what is installed."""
    # the package stands in the tree of these tests
    found = os.pathsep.join(map(str, (*path, ROOT / "src")))
    return python("-c", code, *arguments, home=home, check=False, PYTHONPATH=found)


@pytest.fixture
def older():
    if not (OLDER / "transformers").exists():
        pytest.skip("there is no older transformers; make build/transformers-older/.installed")
    return next(path.name.split("-")[1].removesuffix(".dist") for path in OLDER.glob("transformers-*"))


def test_code_and_setup_cfg_admit_the_same_versions():
    assert (
        requirements("options", "install_requires")["transformers"].specifier
        == Requirement(f"transformers{versions.TRANSFORMERS}").specifier
    )


@pytest.mark.parametrize("name", ["README.md", "src/sublayers/hub/model_card_template.md"])
def test_documents_name_the_versions_that_setup_cfg_admits(name):
    # what was measured says with which versions, and that does not change
    text = "\n".join(line for line in (ROOT / name).read_text().splitlines() if not line.startswith("How: "))
    floors = {
        "transformers": versions.TRANSFORMERS,
        "sentence-transformers": requirements("options.extras_require", "train")["sentence-transformers"].specifier,
    }
    named = re.findall(r"\b((?:sentence-)?transformers)(?:\]\(\S+\))?[- ](\d+(?:\.\d+)*)", text)
    assert "transformers" in dict(named)
    assert [(package, version) for package, version in named if f">={version}," not in f"{floors[package]},"] == []


@pytest.mark.parametrize("version", ["4.57.0", "5.23.9", "5.24.0rc1", "5.25.0.dev0", "5.25.0", "6.0.0"])
def test_versions_that_were_not_tested_are_refused_and_patches_are_not(monkeypatch, version):
    monkeypatch.setattr("transformers.__version__", version)
    with pytest.raises(ImportError) as caught:
        importlib.reload(versions)
    assert f"ImportError: {caught.value}" == said(version)
    monkeypatch.setattr("transformers.__version__", "5.24.7")
    importlib.reload(versions)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder with code for the versions of today, and the same as if it had been written for those before."""
    today, before = (tmp_path_factory.mktemp("folders") / name for name in ("today", "before"))
    for folder in (today, before):
        save_model(folder, "sandwich_lm", words=40)[0].save_pretrained(folder, self_contained=True)
    code = before / "versions.py"
    assert versions.TRANSFORMERS in code.read_text()
    code.write_text(code.read_text().replace(versions.TRANSFORMERS, ">=5.23,<5.24"))
    return today, before


def test_every_file_that_transformers_opens_asks_for_the_version_first(folders):
    config = json.loads((folders[0] / "config.json").read_text())
    entries = {reference.split(".")[0] for reference in config["auto_map"].values()}
    assert len(entries) == 2
    for entry in entries:
        assert (folders[0] / f"{entry}.py").read_text().startswith("from .versions import ")


def opened(folders, home, *path):
    done = process(OPEN, *folders, path=path, home=home)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_folder_for_older_versions_is_refused_however_it_is_opened(folders, tmp_path):
    today, before = opened(folders, tmp_path).values()
    assert today == ["opened"] * 4
    assert before == [said(transformers.__version__, ">=5.23,<5.24")] * 4


@pytest.mark.slow
def test_an_older_transformers_refuses_our_folder_however_it_is_opened(folders, tmp_path, older):
    today, before = opened(folders, tmp_path, OLDER).values()
    assert today == [said(older)] * 4
    # the versions alone are why
    assert before == ["opened"] * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import sublayers; import transformers",
        "import transformers; import sublayers",
        "from sublayers import PARBertConfig",
        "from sublayers import optimize",
        "import sublayers.pipelines",
    ],
)
@pytest.mark.representatives(2)
def test_the_package_is_refused_beside_an_older_transformers(older, code):
    done = process(code, path=[OLDER])
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == said(older)


@pytest.mark.slow
def test_orders_need_no_transformers_and_so_no_version_of_it(older):
    done = process("import sublayers; print(sublayers.sandwich(6, 2))", path=[OLDER])
    assert done.stdout == f"{sublayers.sandwich(6, 2)}\n", done.stderr
