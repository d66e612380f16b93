"""The mean of several checkpoints' weights, which is often better than each of them."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from tqdm.auto import tqdm
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME


def average_checkpoints(folders: Sequence[str | Path], progress: bool = False) -> dict[str, torch.Tensor]:
    """Average the weights of checkpoints of one model, computed in float64, a tensor at a time.

    Args:
        folders: each with `model.safetensors` or the shards of `model.safetensors.index.json`, in order of training.
        progress: whether to show a progress bar.

    Returns:
        Means in the type of the last checkpoint; what is no floating-point number is as in the last one.

    Raises:
        FileNotFoundError: a folder without weights.
        ValueError: weights of different names or shapes.
    """
    average = {}
    with ExitStack() as stack:
        checkpoints = [_open(Path(folder), stack) for folder in folders]
        for name in tqdm(sorted(set().union(*checkpoints)), "averaging checkpoints", disable=not progress):
            if len({name in found and tuple(found[name].get_slice(name).get_shape()) for found in checkpoints}) > 1:
                raise ValueError(f"{name} differs in shape among {', '.join(map(str, folders))}; average one model's")
            average[name] = last = checkpoints[-1][name].get_tensor(name)
            if last.is_floating_point():
                # torch adds no numbers of 8 bits to others
                total = sum(found[name].get_tensor(name).double() for found in checkpoints)
                average[name] = (total / len(folders)).to(last.dtype)
    return average


def _open(folder: Path, stack: ExitStack) -> dict[str, Any]:
    # the open file of each tensor, of which nothing is read yet
    names = [SAFE_WEIGHTS_NAME]
    if not (folder / SAFE_WEIGHTS_NAME).is_file():
        names = sorted({*json.loads((folder / SAFE_WEIGHTS_INDEX_NAME).read_text())["weight_map"].values()})
    files = [stack.enter_context(safe_open(folder / name, "pt")) for name in names]
    return {name: file for file in files for name in file.keys()}  # noqa: SIM118
