"""The rules of the house that a machine can check."""

import ast
import inspect
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from launched import python

import sublayers
from sublayers.families import stub

ROOT = Path(__file__).resolve().parents[1]
PACKAGE_ROOT = ROOT / "src" / "sublayers"
PACKAGE = {path.stem for path in PACKAGE_ROOT.iterdir()} - {"training"}
MAY_IMPORT = {
    "configuration": {"configuration"},
    "modeling": {"configuration", "modeling"},
    "sublayers": {"", *PACKAGE},
    "training": {"", "training", *PACKAGE},
}
# what a person runs to measure, compare and try
LAB = ("lab", "bench", "studies", "search", "demo")
SOURCES = {
    folder: sorted((PACKAGE_ROOT if folder == "sublayers" else ROOT / folder).rglob("*.py")) for folder in MAY_IMPORT
}


def own_imports(path: Path, top: bool = False) -> list[str]:
    """The modules of ours that a module imports, anywhere or at its top, and those that it imports by a string."""
    tree = ast.parse(path.read_text())
    modules = []
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for node in [*tree.body, *calls] if top else ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            # a name is a module or stands in one
            modules += [name if is_module(name) else node.module or "" for name in names]
        elif isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            modules += [name.value for name in node.args if isinstance(name, ast.Constant)]
    return [module for module in modules if module.split(".")[0] == "sublayers"]


def is_module(name: str) -> bool:
    return (PACKAGE_ROOT / name.removeprefix("sublayers.").replace(".", "/")).with_suffix(".py").exists()


def test_the_rooms_are_found():
    rooms = {path.parent.name for path in SOURCES["training"]}
    assert {"training", "data", "metrics", "trainers", "distill", "serve", "prune", "commands", *LAB} == rooms
    assert {"sublayers", "convert", "graphs", "hub", "tasks"} == {path.parent.name for path in SOURCES["sublayers"]}


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_go_one_way(folder):
    for path in SOURCES[folder]:
        for module in own_imports(path):
            # the command line is what python -m runs
            if (path.name, module) == ("__main__.py", "sublayers.training.cli"):
                continue
            room = module.removeprefix("sublayers").strip(".").split(".")[0]
            assert room in MAY_IMPORT[folder], f"{path} must not import {module}"


def test_nobody_imports_what_a_person_runs():
    for path in SOURCES["training"]:
        for module in own_imports(path):
            room, own = module.split(".")[2:3], path.relative_to(ROOT / "training").parts[0]
            # what a person runs is known to nobody but the table of commands and the laboratory
            assert room not in (["lab"], ["commands"]) or own in (*room, "lab"), f"{path} must not import {module}"


def test_no_module_needs_itself():
    graph = {}
    for paths in SOURCES.values():
        for path in paths:
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("src.")
            name = name if name.startswith("sublayers") else f"sublayers.{name}"
            graph[name.removesuffix(".__init__")] = {*own_imports(path, top=True)}
    # raises an error that shows the circle
    TopologicalSorter(graph).prepare()


FLATTENED = [*SOURCES["configuration"], *SOURCES["modeling"], *sorted((PACKAGE_ROOT / "tasks").glob("*.py"))]


def test_what_the_hub_flattens_imports_from_modules():
    for path in FLATTENED:
        for module in own_imports(path):
            assert is_module(module), f"{path.name}: write `from sublayers.folder.module import name`"


def test_the_names_of_what_is_flattened_for_the_hub_are_unique():
    # the copy of a file in a room within a folder begins with the name of the room
    places = [path.relative_to(ROOT / path.relative_to(ROOT).parts[0]) for path in FLATTENED if path.stem != "__init__"]
    names = ["_".join(place.parts) for place in places]
    assert len(names) == len(set(names))


def test_files_stay_short():
    for path in [path for paths in SOURCES.values() for path in paths] + sorted((ROOT / "tests").rglob("*.py")):
        # so that a family is one file
        limit = 600 if path.parent.name == "modeling" else 400
        assert len(path.read_text().splitlines()) <= limit, path


def test_public_names_are_documented():
    for name in sublayers.__all__:
        assert inspect.getdoc(getattr(sublayers, name)), name


def test_the_type_stub_is_that_of_the_families():
    assert Path(sublayers.__file__).with_suffix(".pyi").read_text() == stub(), "run make stub"


def loaded_after(code: str) -> set[str]:
    """The modules that are loaded when the code has run in a process of its own."""
    code += "\nimport sys\nprint(*sys.modules)"
    return {*python("-c", code).split()}


@pytest.mark.slow
def test_the_package_waits_with_all_imports_until_somebody_needs_them():
    assert not {"torch", "transformers"} & loaded_after("import sublayers\nsublayers.sandwich(6, 2)")
    loaded = loaded_after("import sublayers\nsublayers.PARBertModel")
    assert "sublayers.modeling.stack" in loaded
    assert (
        not {f"sublayers.{name}" for name in ("training", "hub.upload", "pipelines", "tasks.text2text_generation")}
        & loaded
    )
    assert not {"transformers.trainer", "transformers.pipelines", "datasets", "matplotlib"} & loaded


@pytest.mark.slow
def test_the_command_line_waits_for_torch_until_a_command_needs_it():
    for argv in (["--help"], ["study"], ["order", "s6f6"]):
        loaded = loaded_after(f"from sublayers.training import cli\ncli.main({argv})")
        assert "sublayers.training.cli" in loaded
        assert not {"torch", "transformers"} & loaded


# each command in a process of its own; what they share of other people's is imported once
HELP = """
import os, sys
from sublayers.training import cli
from transformers import Seq2SeqTrainingArguments

for command in cli.COMMANDS:
    if not (child := os.fork()):
        try:
            cli.main([*command.split(), "--help"])
        except SystemExit as end:
            assert not end.code
        # other people's tools, where they are installed, import those of transformers
        assert "sublayers.modeling.stack" not in sys.modules, command
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, command
"""


@pytest.mark.slow
@pytest.mark.full
def test_help_does_not_wait_for_the_models():
    python("-c", HELP)


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
@pytest.mark.slow
@pytest.mark.representatives(1)
def test_auto_classes_know_the_models_of_whoever_imports_the_package(code):
    code += "; from transformers import AutoModel, MODEL_MAPPING; print(MODEL_MAPPING[type(c)])"
    assert "PARBertModel" in python("-c", code)
