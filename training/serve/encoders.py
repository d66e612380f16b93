"""What sentence-transformers does with a model's outputs: in a graph, and as files beside it."""

import json
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel

from sublayers.convert.graphs.program import Finished
from sublayers.families import head_of
from sublayers.hub.loading import MODULES, load
from sublayers.modeling.modeling_reordered_bert import ReorderedBertModel
from sublayers.training.distill.teacher import (
    OLD_MODES,
    pool,
    read_json,
    read_sentence_encoder,
    read_settings,
    refusing_damage,
)

EMBEDDING, SCORES = "sentence_embedding", "scores"
# activations by the names in a CrossEncoder's folder
ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": nn.Identity(),
    "torch.nn.modules.activation.Sigmoid": nn.Sigmoid(),
    "torch.nn.modules.activation.Tanh": nn.Tanh(),
}
# programs that run a graph look its type up; they know none of this package, and this one reads the same inputs
KNOWN_TYPE = "bert"


class Encoder(NamedTuple):
    """How sentence-transformers opens and uses a folder.

    Attributes:
        opener: the class that opens it.
        modules: the settings of each module, by its name.
        settings: those of all modules, such as `prompts`.
        max_length: tokens of a text or pair, if the folder says so itself; else the tokenizer says it.
    """

    opener: str
    modules: dict[str, dict[str, Any]]
    settings: dict[str, Any]
    max_length: int | None

    @property
    def prompt_name(self) -> str | None:
        """Name the prompt that is used where none is named, else the first that is not empty, if there is one."""
        prompts, default = self.settings.get("prompts", {}), self.settings.get("default_prompt_name")
        return default if default in prompts else next((name for name, text in prompts.items() if text), None)


def finish(model: PreTrainedModel, source: Path) -> tuple[nn.Module, Encoder | None]:
    """Let a model do with its outputs what its folder says that sentence-transformers does, if it says so.

    The body of a SentenceTransformer returns `last_hidden_state` and `sentence_embedding` (batch, hidden). If it pools
    by the first token and need not compute others, `last_hidden_state` is that of this token, (batch, 1, hidden). The
    classifier of a CrossEncoder returns `logits` and `scores` (batch,), or (batch, labels) for several labels.

    Args:
        model: what `read_model` read from the source.
        source: its folder.

    Returns:
        The model, and how it is used.

    Raises:
        ValueError: a module, pooling or activation is not known here, or a file is damaged.
    """
    with refusing_damage(source):
        encoder = _read_cross_encoder(model, source)
        about = read_sentence_encoder(str(source)) if encoder is None else {}
    if encoder:
        activation = ACTIVATIONS[encoder.settings["activation_fn"]]
        return Finished(model, model.forward, partial(_score, activation)), encoder
    if "settings" not in about:
        return model, None
    body: Any = model.base_model
    pooling, normalizes = about["pooling"], about["normalize"]
    computes_first = pooling == "cls" and isinstance(body, ReorderedBertModel)
    run = body.forward_first_token if computes_first else body.forward
    modes = {name: mode == pooling for name, mode in OLD_MODES.items()}
    modules = {"Transformer": {}, "Pooling": {"word_embedding_dimension": body.config.hidden_size} | modes}
    if normalizes:
        modules["Normalize"] = {}
    encoder = Encoder("SentenceTransformer", modules, about["settings"], about["max_seq_length"])
    return Finished(body, run, partial(_embed, "first" if computes_first else pooling, normalizes)), encoder


def write_encoder(folder: Path, encoder: Encoder, max_length: int) -> None:
    """Write what sentence-transformers reads beside a graph, in words that older versions know, too.

    Args:
        folder: of the graph.
        encoder: how it is used.
        max_length: tokens of a text or pair.
    """
    rows: list[dict[str, Any]] = [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": f"sentence_transformers.models.{name}"}
        for i, name in enumerate(encoder.modules)
    ]
    files: dict[str, Any] = {
        MODULES: rows,
        "sentence_bert_config.json": encoder.modules["Transformer"] | {"max_seq_length": max_length},
        "config_sentence_transformers.json": encoder.settings | {"model_type": encoder.opener},
    }
    for row, settings in zip(rows[1:], [*encoder.modules.values()][1:], strict=True):
        (folder / row["path"]).mkdir()
        files[f"{row['path']}/config.json"] = settings
    for name, content in files.items():
        _write(folder / name, content)


def write_tokenizer(source: Path, folder: Path, max_length: int) -> None:
    """Write a tokenizer whose `tokenizer.json` itself cuts texts to a length, and pads them to the longest of a batch.

    Programs without transformers read that file, which otherwise has the settings of its authors' last call.

    Raises:
        OSError, ValueError: see `load`; or it has no token for padding.
    """
    tokenizer = load(AutoTokenizer, source, model_max_length=max_length, max_length=max_length)
    if tokenizer.pad_token is None:
        raise ValueError(f"the tokenizer in {source} pads no texts; set its `pad_token`, and save it there")
    # a call leaves its settings there
    tokenizer([""], padding=True, truncation=True, max_length=max_length)
    tokenizer.save_pretrained(folder)


def name_known_classes(folder: Path, config: PreTrainedConfig, encoder: Encoder | None) -> None:
    """Let configuration and tokenizer of a graph's folder name classes that other programs know, and the labels."""
    # transformers leaves labels out that have the names and number of its defaults
    labels = {"id2label": config.id2label, "label2id": config.label2id}
    described = read_json(folder / "config.json") | {"model_type": KNOWN_TYPE} | labels
    if encoder and (activation := encoder.settings.get("activation_fn")):
        described["sentence_transformers"] = {"activation_fn": activation}
    _write(folder / "config.json", described)
    tokenizer = read_json(folder / "tokenizer_config.json")
    if tokenizer.get("tokenizer_class") == "TokenizersBackend":
        _write(folder / "tokenizer_config.json", tokenizer | {"tokenizer_class": "PreTrainedTokenizerFast"})


def _write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _read_cross_encoder(model: PreTrainedModel, source: Path) -> Encoder | None:
    told, config = read_json(source / "config_sentence_transformers.json"), vars(model.config)
    in_config = config.get("sentence_transformers", {}).get(
        "activation_fn", config.get("sbert_ce_default_activation_function")
    )
    activation = told.get("activation_fn") or in_config
    if activation is None and told.get("model_type") != "CrossEncoder":
        return None
    kinds = [row["type"].split(".")[-1] for row in read_json(source / MODULES) or [{"type": "Transformer"}]]
    architecture = type(model).__name__
    if kinds != ["Transformer"] or head_of(architecture) != "ForSequenceClassification":
        raise ValueError(
            f"{source} is a CrossEncoder of {', '.join(kinds)} around {architecture}; give one of a Transformer alone "
            "around a classifier"
        )
    if activation is None:
        activation = f"torch.nn.modules.{'activation.Sigmoid' if model.config.num_labels == 1 else 'linear.Identity'}"
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"{source} has the activation {activation!r}; give a CrossEncoder with one of {', '.join(ACTIVATIONS)}"
        )
    settings = read_settings(source, str(source)) | {"activation_fn": activation}
    modules = {"Transformer": {"transformer_task": "sequence-classification"}}
    return Encoder("CrossEncoder", modules, settings, settings.pop("max_seq_length", None))


def _embed(pooling: Any, normalizes: bool, outputs: Any, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    states = outputs.last_hidden_state
    embedding = states[:, 0] if pooling == "first" else pool(states, inputs["attention_mask"], pooling)
    embedding = nn.functional.normalize(embedding, dim=-1) if normalizes else embedding
    return {"last_hidden_state": states, EMBEDDING: embedding}


def _score(activation: nn.Module, outputs: Any, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    scores = activation(outputs.logits)
    return {"logits": outputs.logits, SCORES: scores[:, 0] if scores.shape[1] == 1 else scores}
