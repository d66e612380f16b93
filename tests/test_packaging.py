"""What an installation brings, as setup.cfg tells, and by what version it is cited."""

import ast
import os
import re
import subprocess
import sys
from configparser import ConfigParser
from fnmatch import fnmatch
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from setuptools import find_packages

import sublayers

ROOT = Path(__file__).resolve().parents[1]
SETUP = ConfigParser()
SETUP.read(ROOT / "setup.cfg")
SOURCE = ROOT / SETUP["options.packages.find"]["where"]
PACKAGES = find_packages(str(SOURCE))
DATA = {package: patterns.replace(",", " ").split() for package, patterns in SETUP["options.package_data"].items()}
# the folders of the package as `import sublayers` sees them, behind its symlinks
FILES = [
    Path(folder, name).relative_to(SOURCE)
    for folder, _, names in os.walk(SOURCE / "sublayers", followlinks=True)
    for name in names
    if not folder.endswith("__pycache__")
]


def is_installed(file):
    parents = {".".join(parent.parts): file.relative_to(parent).as_posix() for parent in file.parents[:-1]}
    if file.suffix == ".py":
        return next(iter(parents)) in PACKAGES
    package = next(parent for parent in parents if parent in PACKAGES)
    return any(fnmatch(parents[package], pattern) for pattern in DATA.get(package, []))


def test_every_file_of_the_package_is_installed():
    assert len({file.parts[1] for file in FILES}) > 8
    assert [str(file) for file in FILES if not is_installed(file)] == []


@pytest.mark.full
def test_every_package_that_is_imported_is_declared():
    options = SETUP["options"]["install_requires"].split() + "\n".join(SETUP["options.extras_require"].values()).split()
    declared = {re.split("[<>=]", option)[0].replace("-", "_") for option in options}
    imported = set()
    for file in FILES:
        for node in ast.walk(ast.parse((SOURCE / file).read_text())) if file.suffix == ".py" else ():
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).split(".")[0])
    owners = packages_distributions()
    # contenders of benches, where somebody has installed them: one of them needs an older huggingface_hub
    contenders = {"fastembed", "llama_cpp"}
    others = imported - {"sublayers", *sys.stdlib_module_names, *contenders}
    assert len(others) > 20
    assert [name for name in others if not declared & {each.lower().replace("-", "_") for each in owners[name]}] == []


def test_the_package_is_found_beside_a_clone_of_the_same_name(tmp_path):
    # as in the folder where `git clone` was called: the clone is no package, and must not be taken for one
    (tmp_path / "sublayers").symlink_to(ROOT)
    for call in (["-c", "from sublayers import sandwich"], ["-m", "sublayers", "order", "sf"]):
        done = subprocess.run([sys.executable, *call], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == sublayers.__version__
    assert citation["license"] == SETUP["metadata"]["license_expression"]
    assert f"## {sublayers.__version__} (" in (ROOT / "CHANGELOG.md").read_text()
