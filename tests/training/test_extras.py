from importlib.metadata import PackageNotFoundError, requires

import pytest
from launched import python
from packaging.requirements import Requirement

from sublayers.extras import require

# in a process of its own, where some packages are not installed
RUN = """
import importlib.metadata, sys
from types import SimpleNamespace
installed = importlib.metadata.distribution

def distribution(name):
    if name in {missing}:
        raise importlib.metadata.PackageNotFoundError(name)
    if name in {others}:
        return SimpleNamespace(version={others}[name])
    try:
        return installed(name)
    except importlib.metadata.PackageNotFoundError:
        # what else this environment lacks is not asked here
        return SimpleNamespace(version="9999")

importlib.metadata.distribution = distribution
from sublayers.training.cli import main
try:
    main({argv})
finally:
    print({heavy} & sys.modules.keys())
"""
HEAVY = {"torch", "transformers", "datasets", "numpy"}


def run(argv, missing=(), others=None):
    """Run a command where some packages are missing, and others have another version."""
    code = RUN.format(missing=missing, others=others or {}, argv=argv, heavy=HEAVY)
    return python("-c", code, check=False)


MISSING = {
    "distill teacher --sublayer_order sf": (["sentence-transformers"], "sentence-transformers is", "train"),
    "search report folder": (["accelerate", "datasets"], "accelerate, datasets are", "train"),
    "export a b --format onnx": (["onnxscript", "openvino"], "onnxscript is", "onnx"),
    "export a b --format openvino": (["nncf"], "nncf is", "openvino"),
}


@pytest.mark.parametrize("line", MISSING)
def test_missing_packages_are_told_before_anything_slow_is_imported(line):
    missing, packages, extra = MISSING[line]
    done = run(line.split(), missing)
    assert done.returncode == 2
    name = "search report" if line.startswith("search") else line.split()[0]
    assert done.stderr == f"sublayers {name}: {packages} not installed; pip install 'sublayers[{extra}]'\n"
    assert done.stdout == "set()\n"


def test_versions_that_were_not_tested_are_told_before_anything_slow_is_imported():
    needed = {each.name: str(each.specifier) for each in map(Requirement, requires("sublayers"))}
    for line, name in (("order sf", "transformers"), ("search report folder", "optuna")):
        done = run(line.split(), others={name: "0.1"})
        assert done.returncode == 2
        assert f"{name} 0.1 is not {needed[name]}, which is what was tested; pip install" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert done.stdout == "set()\n"


def test_commands_that_need_no_extra_run_without():
    done = run(["order", "sf"], ["accelerate", "matplotlib"])
    assert done.returncode == 0, done.stderr


def test_code_that_is_not_installed_is_run_as_it_is(monkeypatch):
    def unknown(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("sublayers.extras.requires", unknown)
    require("train")
