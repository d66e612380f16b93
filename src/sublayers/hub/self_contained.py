"""Folders that need no installation: the code of a model's family beside its weights.

transformers loads such code from files of one folder that import each other relatively.
"""

import ast
import json
import re
import shutil
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import CommitInfo
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel

from sublayers.auto_models import AUTO_CLASSES
from sublayers.hub.loading import MODULES, load, never_running_code

# models find it here, as the rest of what writes their folders
from sublayers.hub.model_card import write_card as write_card

OWN_IMPORT = re.compile(r"^(\s*)from (sublayers\.[\w.]+) import", re.MULTILINE)
# the files that sentence-transformers reads beside a model
MODULES_AND_SETTINGS = (MODULES, "config_sentence_transformers.json", "sentence_bert_config.json")
# the fields of config.json in which it has the activation of a CrossEncoder
SETTINGS_IN_CONFIG = ("sentence_transformers", "sbert_ce_default_activation_function")
# the module that refuses versions of transformers for which the code was not written
VERSIONS = "sublayers.configuration.versions"
REST_OF_THE_FAMILY = """

# transformers copies the files that a saved module imports; these lines name the whole family
from typing import TYPE_CHECKING

if TYPE_CHECKING:
"""


def write_code(config: PreTrainedConfig, folder: str | Path) -> None:
    """Write the code of a configuration's family into the folder of its config.json, and say there where it is.

    `auto_map` names the configuration and all heads, `custom_pipelines` the pipelines for them that transformers lacks.

    Raises:
        ValueError: a configuration that is not from this package.
    """
    # this import takes a moment, and few users of the package save a model
    from sublayers.tasks.table import PIPELINES

    folder = Path(folder)
    classes = _classes(config)
    tasks = {
        task: (pipeline, auto_class.__name__)
        for task, (pipeline, auto_class) in PIPELINES.items()
        if auto_class.__name__ in classes
    }
    for name, text in _flattened([*classes.values(), *(pipeline for pipeline, _ in tasks.values())]).items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    shutil.copyfile(Path(__file__).with_name("LICENSE"), folder / "LICENSE")
    _add(
        folder / "config.json",
        {
            "auto_map": auto_map(config),
            "custom_pipelines": {
                task: {"impl": _reference(pipeline), "pt": [auto_class], "type": "text"}
                for task, (pipeline, auto_class) in tasks.items()
            },
        },
    )


def auto_map(config: PreTrainedConfig) -> dict[str, str]:
    """Say where each Auto class finds its class in the code of `write_code`. Raises what `write_code` raises."""
    return {auto_class: _reference(cls) for auto_class, cls in _classes(config).items()}


def copy_tokenizers(model: PreTrainedModel, folder: Path) -> None:
    """Save the tokenizer that a model was loaded with, or both of an encoder-decoder, in a folder that has none.

    Raises:
        ValueError: a tokenizer that cannot be loaded without code of its own.
    """
    from sublayers.configuration.configuration_reordered_seq2seq import TARGET_TOKENIZER

    source = model.name_or_path
    if not source or (folder / "tokenizer_config.json").exists():
        return
    for subfolder in ("", TARGET_TOKENIZER) if getattr(model.config, "encoder_vocab_size", None) else ("",):
        if Path(source, subfolder, "tokenizer_config.json").exists():
            copy_tokenizer(source, folder, subfolder)
        elif not Path(source).is_dir():
            # a repository may have none, and a model need not be loaded from anywhere
            with suppress(OSError, ValueError):
                copy_tokenizer(source, folder, subfolder)


def copy_tokenizer(source: str | Path, folder: Path, subfolder: str = "") -> None:
    """Save the tokenizer of a folder or repository, or of a folder in it, without code of its own.

    Raises:
        OSError, ValueError: there is none, or it needs such code.
    """
    load(AutoTokenizer, source, subfolder=subfolder).save_pretrained(folder / subfolder)


def copy_modules(source: Path, folder: Path) -> None:
    """Copy what a SentenceTransformer or CrossEncoder does with a model's outputs, where the source says so.

    Args:
        source: a folder that `refuse_ways_out` has read.
        folder: of a saved model that gives the same outputs.

    Raises:
        ValueError: `config.json` or `modules.json` is damaged.
    """
    found = [source / name for name in MODULES_AND_SETTINGS if (source / name).exists()]
    config = folder / "config.json"
    with never_running_code(source):
        if source / MODULES in found:
            modules = json.loads((source / MODULES).read_text(encoding="utf-8"))
            found += [file for module in modules if module["path"] for file in (source / module["path"]).rglob("*")]
        theirs = json.loads((source / config.name).read_text(encoding="utf-8"))
        settings = {name: theirs[name] for name in SETTINGS_IN_CONFIG if name in theirs}
    for file in found:
        if file.suffix in (".json", ".safetensors") and file.is_file():
            copy = folder / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    if settings:
        _add(config, settings)


def push(
    model: PreTrainedModel,
    repo_id: str,
    max_shard_size: int | str = "50GB",
    tags: list[str] | None = None,
    **kwargs: Any,
) -> CommitInfo:
    """Upload a model's self-contained folder in one commit; other arguments are those of `upload`."""
    # these imports take a moment, too
    from sublayers.hub.folder import write_folder
    from sublayers.hub.upload import upload

    with TemporaryDirectory() as folder:
        tags = [*(model.model_tags or []), *(tags or [])]
        write_folder(Path(folder), model, model_id=repo_id, tags=tags, max_shard_size=max_shard_size)
        return upload(folder, repo_id, **kwargs)


def _add(config: Path, settings: dict[str, Any]) -> None:
    description = json.loads(config.read_text(encoding="utf-8")) | settings
    config.write_text(json.dumps(description, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _classes(config: PreTrainedConfig) -> dict[str, type]:
    for config_class, heads in AUTO_CLASSES.items():
        if type(config) is config_class:
            return {"AutoConfig": config_class} | {auto_class.__name__: head for auto_class, head in heads.items()}
    raise ValueError(f"the code of {type(config).__name__} is not in this package; save it with an empty auto_map")


def _flattened(classes: list[type]) -> dict[str, str]:
    """The text of every module that the classes need, by its name in the copy."""
    texts: dict[str, str] = {}

    def take(module: str) -> None:
        if _flat(module) in texts:
            return
        texts[_flat(module)], imported = _read(module)
        for other in imported:
            take(other)

    for module in (VERSIONS, *(cls.__module__ for cls in classes)):
        take(module)
    entries = {_flat(cls.__module__): cls.__name__ for cls in classes}
    for module in entries:
        others = [f"    from .{other} import {name}\n" for other, name in entries.items() if other != module]
        # the first that is imported: whatever else another transformers lacks, this says why
        texts[module] = f"from .{_flat(VERSIONS)} import TRANSFORMERS  # noqa: F401\n\n" + texts[module]
        texts[module] += REST_OF_THE_FAMILY + "".join(others)
    return texts


# every save of a model reads the same modules
@cache
def _read(module: str) -> tuple[str, list[str]]:
    """The text of a module in the copy, and the modules of this package that it imports."""
    source = Path(find_spec(module).origin).read_text(encoding="utf-8")  # type: ignore[union-attr,arg-type]
    imports = [str(node.module) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    text = OWN_IMPORT.sub(lambda found: f"{found[1]}from .{_flat(found[2])} import", source)
    return text, [name for name in imports if name.startswith("sublayers.")]


def _reference(cls: type) -> str:
    return f"{_flat(cls.__module__)}.{cls.__name__}"


def _flat(module: str) -> str:
    # two rooms may have a file of the same name
    _package, *room, name = module.split(".")
    return "_".join([*room[1:], name])
