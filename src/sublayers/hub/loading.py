"""Loading from sources that need not be trusted: no code of theirs runs, and no file outside of them is read."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    StrictDataclassError,
)
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from sublayers.configuration.configuration_sublayers import SublayersConfig
from sublayers.hub.sources import check_source

# tokenizer files; names of files in them are looked up in the working directory, too
TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")
# modules.json of a SentenceTransformer names folders, from which files are read
MODULES = "modules.json"
# the endings of files whose values may be names of other files
SETTINGS = ("config.json", ".index.json", *TOKENIZER_SETTINGS, MODULES)
# the files of a repository with settings and tokenizers
TEXTS = ("*.json", "*.jinja", "*.model", "*.txt")


def load(auto_class: Any, source: str | Path, **options: Any) -> Any:
    """Load a model, configuration or tokenizer from a source that need not be trusted: none of its code runs.

    References to code in the source's folder are dropped, since the folder where this is saved next lacks that code.

    Args:
        auto_class: class with the method `from_pretrained`.
        source: a folder, or a repository on the Hub.
        options: for `from_pretrained`.

    Returns:
        What `from_pretrained` returns.

    Raises:
        OSError: there is no such folder or repository, or it lacks a file.
        ValueError: the source is damaged, needs code of its own, leads out of its folder, is an adapter, or has values
            that its class refuses.
    """
    folder = folder_of(source)
    try:
        refuse_ways_out(folder)
        if auto_class is not AutoTokenizer and (folder / "adapter_config.json").exists():
            raise ValueError(f"{source} holds an adapter; merge it into its model and save that first")
        if auto_class is not AutoTokenizer and not (folder / "config.json").exists():
            raise FileNotFoundError(f"{source} has no config.json; give the folder of a trained model")
        loaded = auto_class.from_pretrained(source, trust_remote_code=False, **options)
        if isinstance(loaded, PreTrainedTokenizerBase):
            _check_types(loaded)
    except (json.JSONDecodeError, UnicodeError) as error:
        raise damaged(source, error) from error
    except (ImportError, OSError, StrictDataclassError, ValueError) as error:
        # transformers' message has several paragraphs
        said = " ".join(str(error).split())
        if "trust_remote_code" in said:
            said = f"{source} needs code of its own, which is not run; give a model that transformers knows"
        if "instantiate the backend tokenizer" in said:
            said = f"{source} has no tokenizer that can be read; give a folder that has one"
        if said.startswith("Unrecognized configuration class"):
            # a list of all models that have one follows
            model, _, _ = said.removeprefix("Unrecognized configuration class ").partition(" for this kind")
            said = (
                f"{source} cannot be opened as {auto_class.__name__}, which {model} does not have; give another model"
            )
        raise (OSError if isinstance(error, OSError) else ValueError)(said) from error
    except Exception as error:
        raise damaged(source, error) from error
    _forget_code(loaded[0] if isinstance(loaded, tuple) else loaded)
    return loaded


def folder_of(source: str | Path, *files: str) -> Path:
    """Give the folder itself, or one with these files of a repository, by default its settings, which are downloaded.

    Raises:
        FileNotFoundError: there is neither such a folder nor such a repository.
    """
    # the Hub is not asked for what can only be a folder, which takes long
    check_source(source)
    if Path(source).exists():
        return Path(source)
    try:
        return Path(snapshot_download(str(source), allow_patterns=[*files] or ["*.json"]))
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, RepositoryNotFoundError) as error:
        raise FileNotFoundError(
            f"there is no folder {source}, and a repository of that name is not on the Hub, or cannot be reached or "
            "read; give another, or log in with `hf auth login`"
        ) from error


def download(source: str | Path) -> Path:
    """Give the folder or file itself, or a folder with a repository's model: weights in one form, and what reads them.

    Raises:
        FileNotFoundError: there is neither.
    """
    folder = folder_of(source, *TEXTS, "*.safetensors")
    # older repositories have no others
    return folder if any(folder.glob("*.safetensors")) else folder_of(source, *TEXTS, "*pytorch_model*.bin")


def refuse_ways_out(source: Path) -> None:
    """Check that nothing in a downloaded folder and all folders below links to or names a file outside of it.

    The Hub's cache, whose files are links to its own blobs, is one folder.

    Raises:
        ValueError: a link or the name of a file leads out, or something is neither a file nor a folder.
    """
    refuse_links_out(source)
    homes = _homes(source)
    for path in source.rglob("*.json"):
        if not path.name.endswith(SETTINGS):
            continue
        try:
            with never_running_code(path):
                names = sorted({*_strings(json.loads(path.read_text(encoding="utf-8")))})
        except ValueError:
            if path.parent == source:
                raise
            # the file may be half written, as in an unfinished checkpoint; it then names no other file
            continue
        places = [source, path.parent, *([Path()] if path.name in TOKENIZER_SETTINGS else [])]
        for name in names:
            for found in (place / name for place in places):
                is_read = os.path.exists(found) and (path.name == MODULES or not os.path.isdir(found))
                if is_read and _leads_out(found, homes):
                    raise ValueError(
                        f"{path} names {name!r}, which is outside of the folder; put a copy into the folder, or take "
                        "the name away"
                    )


def refuse_links_out(source: Path) -> None:
    """Check that a folder has no links to what is not in it, and no pipes, sockets or devices.

    Raises:
        ValueError: it has.
    """
    homes = _homes(source)
    for path in (source, *source.rglob("*")):
        if _leads_out(path, homes):
            raise ValueError(f"{path} leads out of the folder, to {os.path.realpath(path)}; put a copy in its place")
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ValueError(f"{path} is neither a file nor a folder, and is not read; take it away")


@contextmanager
def never_running_code(source: Path) -> Iterator[None]:
    """Turn whatever error a foreign file causes in its reader into one sentence; an OSError has its own.

    Raises:
        ValueError: the file is damaged or would run code.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise damaged(source, error) from error


def damaged(source: str | Path, error: Exception) -> ValueError:
    """Say in one sentence that a foreign file cannot be read."""
    return ValueError(
        f"{source} is damaged, or holds more than weights and would run code to load it; it is not read "
        f"({type(error).__name__})"
    )


def _homes(source: Path) -> list[Path]:
    home = Path(os.path.realpath(source))
    # snapshots in the Hub's cache are links to blobs beside them
    return [home, *(path.parents[1] / "blobs" for path in (home, *home.parents) if path.parent.name == "snapshots")]


def _leads_out(path: Path, homes: list[Path]) -> bool:
    return not any(Path(os.path.realpath(path)).is_relative_to(home) for home in homes)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _check_types(tokenizer: PreTrainedTokenizerBase) -> None:
    # transformers does not check these values
    if not isinstance(tokenizer.model_max_length, int | float) or "input_ids" not in [*tokenizer.model_input_names]:
        raise TypeError


def _forget_code(loaded: Any) -> None:
    if isinstance(loaded, PreTrainedTokenizerBase):
        loaded.init_kwargs.pop("auto_map", None)
        return
    config = getattr(loaded, "config", loaded)
    for name in ("auto_map", "custom_pipelines"):
        vars(config).pop(name, None)
    if isinstance(config, SublayersConfig):
        # auto_map is a field of our configurations
        config.auto_map = {}
