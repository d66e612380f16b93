"""The one way to write the folder of a model: weights, code, tokenizers, the record of its run, and its card."""

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from sublayers.hub.model_card import CARD, LOSS_CURVE, RUN, write_card
from sublayers.hub.self_contained import copy_modules
from sublayers.hub.tokenizers import save_tokenizers


def write_folder(
    folder: Path,
    model: Any = None,
    tokenizers: Sequence[PreTrainedTokenizerBase] = (),
    run: dict[str, Any] | None = None,
    source: Path | None = None,
    finish: Callable[[Path], None] | None = None,
    model_id: str | None = None,
    tags: Iterable[str] = (),
    **saving: Any,
) -> None:
    """Write what a model's folder lacks, and its card anew.

    Args:
        folder: it is made if it is missing.
        model: of this package, saved with its code; None where the folder has its weights and code.
        tokenizers: one, or those of sources and targets; by default those that the model was loaded with.
        run: record of the run, for `run.json`.
        source: folder that the model is from, where a SentenceTransformer or CrossEncoder may say what it does with its
            outputs. Without a new `run`, record, loss curve and card are those of the source, too.
        finish: writes what else the folder has, before the card.
        model_id: what the card calls the model, by default the folder's name.
        tags: for the Hub, beside our own.
        saving: arguments of `save_pretrained`.

    Raises:
        ValueError: what `copy_modules` and `write_card` refuse.
    """
    if source and run is None:
        copy_record(source, folder, CARD)
    if model is not None:
        save_tokenizers(tokenizers, folder, model.config)
    if run is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RUN).write_text(json.dumps(run, indent=2) + "\n", encoding="utf-8")
    if model is not None:
        model.save_pretrained(folder, self_contained=True, **saving)
    if source:
        copy_modules(source, folder)
    if finish:
        finish(folder)
    write_card(folder, model_id, tags)


def copy_record(source: Path, folder: Path, *others: str) -> None:
    """Copy the record of a run and its loss curve into another folder, and `others`, as far as the source has them."""
    for name in (RUN, LOSS_CURVE, *others):
        if (source / name).exists():
            shutil.copyfile(source / name, folder / name)
