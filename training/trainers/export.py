"""A model's folder as one that works without this package."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig

from sublayers import AUTO_CLASSES
from sublayers.hub.folder import write_folder
from sublayers.hub.loading import MODULES, load
from sublayers.hub.model_card import CARD, MEASURED, RUN, describe_model, is_draft, read_run
from sublayers.hub.sources import check_model
from sublayers.modeling.modeling_sublayers import SublayersPreTrainedModel
from sublayers.training.folders import refuse_to_overwrite, whole_folder

# by the names that safetensors gives them
IN_16_BITS = {"BF16": torch.bfloat16, "F16": torch.float16}


def export(
    source: Path,
    destination: Path,
    model_id: str | None = None,
    weights: str | None = None,
    beside: Sequence[Path] = (),
) -> None:
    """Write a model into a new folder: weights, configuration, tokenizer, code, licence, card, and nothing else.

    A sentence encoder keeps its pooling, prompts and other settings.

    Args:
        source: folder of a trained model.
        destination: a new folder.
        model_id: what the card calls the model, by default the new folder's name.
        weights: the type in which they are stored, such as bfloat16, by default as in the source; the model is opened
            in its own type all the same.
        beside: folders of models that were trained and measured alike, whose costs and scores the card shows, too.

    Raises:
        FileExistsError: the destination holds files.
        ValueError: a model beside it has no score that this one has.
        OSError, ValueError: see also `read_model`.
    """
    refuse_to_overwrite(destination)
    model = read_model(source)
    dtype = getattr(torch, weights) if weights else stored_type(source)
    saving: dict[str, Any] = {"state_dict": rounded(model, dtype)} if dtype else {}
    others = comparable(source, beside)
    with whole_folder(destination) as folder:
        finish, model_id = partial(record, beside=others), model_id or destination.resolve().name
        write_folder(folder, model, source=source, finish=finish, model_id=model_id, **saving)


def comparable(source: Path, others: Sequence[Path]) -> list[dict[str, Any]]:
    """Describe models for the card of another. Raises a ValueError where they have no score in common."""

    def measured(run: dict[str, Any]) -> set[tuple[str, ...]]:
        return {tuple(score[name] for name in MEASURED) for score in run.get("results", [])}

    own = measured(read_run(source))
    models = [describe_model(other) for other in others]
    if len({model["name"] for model in models}) < len(models):
        # `sublayers glue` calls each model like its task, in a folder of its own
        models = [model | {"name": other.resolve().parent.name} for other, model in zip(others, models, strict=True)]
    for other, model in zip(others, models, strict=True):
        if not own & measured(model):
            raise ValueError(f"{other} was not measured on what this model was; measure both alike, or leave it out")
    return models


def record(folder: Path, beside: list[dict[str, Any]]) -> None:
    """Add to the record of a run what its card compares with."""
    if beside:
        run = json.loads((folder / RUN).read_text(encoding="utf-8")) | {"beside": beside}
        (folder / RUN).write_text(json.dumps(run, indent=2) + "\n", encoding="utf-8")


def stored_type(folder: Path) -> torch.dtype | None:
    """Find the type of 16 bits in which all weights of a folder are stored, if they are."""
    types = set()
    for file in folder.glob("model*.safetensors"):
        with safe_open(file, "pt") as weights:
            types |= {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
    numbers = [name for name in types if name.startswith(("F", "BF"))]
    return IN_16_BITS.get(numbers[0]) if len(numbers) == 1 else None


def rounded(model: nn.Module, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Round a model's weights to a type; those that are tied stay so, and what is not a weight stays as it is."""
    found = {weight.data_ptr(): weight.detach().to(dtype) for weight in model.parameters()}
    return {name: found.get(tensor.data_ptr(), tensor) for name, tensor in model.state_dict().items()}


def read_model(source: Path) -> SublayersPreTrainedModel:
    """Read the model of a folder with all of its weights, where also card and record can be read.

    Args:
        source: folder of a trained model.

    Raises:
        OSError: the source has no configuration, or no safetensors.
        ValueError: the source is no model of this package, lacks some of its weights, is refused by `load`, or has a
            card or a record that cannot be read.
    """
    check_model(source)
    config = load(AutoConfig, source)
    # a damaged file is reported with its name in the source, not in the copy
    read_run(source)
    if (source / CARD).exists():
        is_draft(source / CARD)
    heads = {head.__name__: head for head in AUTO_CLASSES.get(type(config), {}).values()}
    named = config.architectures
    architecture = str(named[0]) if isinstance(named, list) and named else ""
    if architecture not in heads:
        raise ValueError(
            f"{source} holds {architecture or 'no architecture'} of type {config.model_type!r}, no model of this "
            "package; `sublayers convert` makes one of some others"
        )
    model: Any
    model, loaded = load(heads[architecture], source, use_safetensors=True, output_loading_info=True)
    missing = {*loaded["missing_keys"]}
    if (source / MODULES).exists() and (unread := {name for name in missing if name.startswith("pooler.")}):
        # a SentenceTransformer pools itself
        model.pooler = None
        missing -= unread
    if lacking := sorted(missing):
        raise ValueError(f"{source} has no weights for {', '.join(lacking[:5])}; train the model and save it first")
    return model
