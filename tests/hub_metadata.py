"""The Hub's rules for the metadata of a model card, as far as they are published.

The fields, and which of them `model-index` requires: modelcard.md of huggingface/hub-docs. Licences: the table of
docs/hub/repositories-licenses.md there. Pipeline tags and libraries: PIPELINE_DATA and MODEL_LIBRARIES_UI_ELEMENTS of
the npm package @huggingface/tasks 0.21.54. Of these lists, only what concerns text and licences of code is kept here.
The Hub takes an unknown pipeline tag or library with a warning; here it is an error, since it is a misspelling.
"""

import math
import re
from typing import Any

import yaml

LICENSES = {"afl-3.0", "agpl-3.0", "apache-2.0", "artistic-2.0", "bsd", "bsd-2-clause", "bsd-3-clause", "cc0-1.0"}
LICENSES |= {"cc-by-4.0", "cc-by-nc-4.0", "cc-by-sa-4.0", "cc-by-nc-sa-4.0", "gpl-3.0", "isc", "lgpl-3.0", "mit"}
LICENSES |= {"mpl-2.0", "openrail", "unlicense", "unknown", "other"}
LIBRARIES = {"adapter-transformers", "fairseq", "peft", "sentence-transformers", "setfit", "transformers"}
PIPELINE_TAGS = {"feature-extraction", "fill-mask", "multiple-choice", "question-answering", "sentence-similarity"}
PIPELINE_TAGS |= {"summarization", "text-classification", "text-generation", "text-ranking", "token-classification"}
PIPELINE_TAGS |= {"translation", "zero-shot-classification"}
# an id of a repository or metric: one name, or a namespace and a name
ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
LANGUAGE = re.compile(r"[a-z]{2,3}|code|multilingual")


def front_matter(card: str) -> dict[str, Any]:
    """Read the metadata between the first two lines of dashes, or nothing where there are none."""
    found = re.match(r"---\r?\n(.*?)^---\s*$", card, re.DOTALL | re.MULTILINE)
    return (found and yaml.safe_load(found[1])) or {}


def metadata_errors(card: str) -> tuple[list[str], list[str]]:
    """Check a card. Returns the errors, for which the Hub refuses it, and the warnings."""
    try:
        data = front_matter(card)
    except yaml.YAMLError as error:
        return [f"the metadata is no YAML: {error}"], []
    if not isinstance(data, dict):
        return ["the metadata must be a mapping"], []
    if not data:
        return [], ["empty or missing yaml metadata in repo card"]
    errors = [
        *_strings(data, "license", lambda license: license in LICENSES),
        *_strings(data, "language", LANGUAGE.fullmatch),
        *_strings(data, "library_name", lambda library: library in LIBRARIES, several=False),
        *_strings(data, "pipeline_tag", lambda tag: tag in PIPELINE_TAGS, several=False),
        *_strings(data, "tags", str.strip),
        *_strings(data, "datasets", ID.fullmatch),
        *_strings(data, "metrics", ID.fullmatch),
        *_strings(data, "base_model", ID.fullmatch),
    ]
    if data.get("license") == "other" and not isinstance(data.get("license_name"), str):
        errors.append('"license_name" is required with license: other')
    for number, model in enumerate(data.get("model-index", [])):
        errors += _model_errors(model, f"model-index[{number}]")
    return errors, []


def _strings(data: dict[str, Any], name: str, is_valid: Any, several: bool = True) -> list[str]:
    if name not in data:
        return []
    values = data[name] if isinstance(data[name], list) and several else [data[name]]
    if wrong := [value for value in values if not isinstance(value, str)]:
        return [f'"{name}" must be a string, not {wrong[0]!r}']
    return [f'"{name}" with value {value!r} is not valid' for value in values if not is_valid(value)]


def _model_errors(model: dict[str, Any], where: str) -> list[str]:
    errors = _required(model, where, name=str, results=list)
    for number, result in enumerate([] if errors else model["results"]):
        inside = f"{where}.results[{number}]"
        wrong = _required(result, inside, task=dict, dataset=dict, metrics=list)
        if not wrong:
            wrong += _required(result["task"], f"{inside}.task", type=str)
            wrong += _required(result["dataset"], f"{inside}.dataset", name=str, type=str)
            wrong += _strings(result["dataset"], "type", ID.fullmatch, several=False)
            for optional in ("config", "split", "revision"):
                wrong += _strings(result["dataset"], optional, str.strip, several=False)
            for index, metric in enumerate(result["metrics"]):
                wrong += _required(metric, f"{inside}.metrics[{index}]", type=str, value=(int, float, str, dict, list))
                if isinstance(metric.get("value"), float) and not math.isfinite(metric["value"]):
                    wrong.append(f'"{inside}.metrics[{index}].value" is no number of JSON')
        errors += wrong
    return errors


def _required(mapping: Any, where: str, **types: Any) -> list[str]:
    if not isinstance(mapping, dict):
        return [f'"{where}" must be a mapping']
    return [f'"{where}.{name}" is required' for name, kind in types.items() if not isinstance(mapping.get(name), kind)]
