"""The rules of the house that a machine can check."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import sublayers

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ["", *(path.stem for path in (ROOT / "sublayers").glob("*.py"))]
MAY_IMPORT = {
    "configuration": {"configuration"},
    "modeling": {"configuration", "modeling"},
    "training": {"configuration", "modeling", "training", *PACKAGE},
    "sublayers": {"configuration", "modeling", *PACKAGE},
}
SOURCES = [path for folder in MAY_IMPORT for path in sorted((ROOT / folder).glob("*.py"))]


def own_imports(path: Path) -> list[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    modules = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return [module for module in modules if module.split(".")[0] == "sublayers"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_imports_go_one_way(path):
    # the command line is what python -m runs
    modules = [m for m in own_imports(path) if (path.name, m) != ("__main__.py", "sublayers.training.cli")]
    for module in modules:
        folder = module.removeprefix("sublayers").strip(".").split(".")[0]
        assert folder in MAY_IMPORT[path.parent.name], f"{path.parent.name} must not import {module}"


@pytest.mark.parametrize("folder", ["configuration", "modeling"])
def test_model_code_imports_from_modules_so_that_it_can_be_flattened_for_the_hub(folder):
    for path in sorted((ROOT / folder).glob("*.py")):
        for module in own_imports(path):
            assert module.count(".") == 2, f"{path.name}: write `from sublayers.folder.module import name`"


def test_pipelines_stand_alone_so_that_the_hub_can_take_them():
    for name in ("question_answering", "text2text_generation"):
        assert not own_imports(ROOT / "sublayers" / f"{name}.py")


def test_module_names_are_unique():
    names = [path.name for path in SOURCES if path.name not in ("__init__.py", "__main__.py")]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("path", [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))], ids=lambda path: path.name)
def test_files_stay_short(path):
    assert len(path.read_text().splitlines()) <= 400


def test_the_order_language_needs_no_torch():
    for name in ("sublayer_order.py", "sublayer_cost.py"):
        imported = (ROOT / "configuration" / name).read_text()
        assert "import torch" not in imported
        assert "import transformers" not in imported


def test_public_names_are_documented():
    for name in sublayers.__all__:
        assert inspect.getdoc(getattr(sublayers, name)), name


def loaded_after(code: str) -> set[str]:
    """The modules that are loaded when the code has run in a process of its own."""
    code += "\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {*done.stdout.split()}


def test_the_package_waits_with_all_imports_until_somebody_needs_them():
    assert not {"torch", "transformers"} & loaded_after("import sublayers\nsublayers.sandwich(6, 2)")
    loaded = loaded_after("import sublayers\nsublayers.PARBertModel")
    assert "sublayers.modeling.stack" in loaded
    assert not {f"sublayers.{name}" for name in ("training", "upload", "pipelines", "text2text_generation")} & loaded
    assert not {"transformers.trainer", "transformers.pipelines", "datasets", "matplotlib"} & loaded


@pytest.mark.parametrize(
    "code",
    [
        "import sublayers; from transformers import AutoConfig; c = AutoConfig.for_model('par_bert')",
        "from transformers import AutoConfig; import sublayers; c = AutoConfig.for_model('par_bert')",
        # which asks for an Auto class while it is imported itself
        "import sublayers, transformers.modeling_layers; c = sublayers.PARBertConfig()",
        "from sublayers.configuration.configuration_par_bert import PARBertConfig; c = PARBertConfig()",
    ],
)
def test_auto_classes_know_the_models_of_whoever_imports_the_package(code):
    code += "; from transformers import AutoModel, MODEL_MAPPING; print(MODEL_MAPPING[type(c)])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "PARBertModel" in done.stdout
