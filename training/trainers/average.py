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
    """Average the weights of checkpoints, computed in float64, a tensor at a time.

    Args:
        folders: each with `model.safetensors` or the shards of `model.safetensors.index.json`, in order of training.
        progress: whether to show a progress bar.

    Returns:
        Means in the type of the last checkpoint; what is no floating-point number is as in the last one.

    Raises:
        FileNotFoundError: a folder without weights.
        ValueError: no folders, or weights of different names or shapes.
    """
    if not folders:
        raise ValueError("there are no checkpoints to average; give at least one")
    average = {}
    with ExitStack() as stack:
        checkpoints = [_open(Path(folder), stack) for folder in folders]
        last, last_folder = checkpoints[-1], folders[-1]
        for folder, checkpoint in zip(folders, checkpoints, strict=True):
            if different := checkpoint.keys() ^ last.keys():
                raise ValueError(
                    f"{min(different)} is in one of {folder} and {last_folder} only; average checkpoints of one model"
                )
        for name in tqdm(last, "averaging checkpoints", disable=not progress):
            average[name] = tensor = last[name].get_tensor(name)
            if not tensor.is_floating_point():
                continue
            total = torch.zeros_like(tensor, dtype=torch.float64)
            for folder, checkpoint in zip(folders, checkpoints, strict=True):
                other = checkpoint[name].get_tensor(name)
                if other.shape != tensor.shape:
                    raise ValueError(
                        f"{name} is {tuple(other.shape)} in {folder} but {tuple(tensor.shape)} in {last_folder}; "
                        "average checkpoints of one model"
                    )
                # torch adds no numbers of 8 bits to others
                total += other.double()
            average[name] = (total / len(folders)).to(tensor.dtype)
    return average


def _open(folder: Path, stack: ExitStack) -> dict[str, Any]:
    # the open file of each tensor, of which nothing is read yet
    paths = [folder / SAFE_WEIGHTS_NAME]
    if not paths[0].is_file():
        index = folder / SAFE_WEIGHTS_INDEX_NAME
        if not index.is_file():
            raise FileNotFoundError(f"{folder} has no {SAFE_WEIGHTS_NAME}; average folders that save_pretrained wrote")
        paths = sorted({folder / name for name in json.loads(index.read_text())["weight_map"].values()})
    files = [stack.enter_context(safe_open(path, "pt")) for path in paths]
    return {name: file for file in files for name in file.keys()}  # noqa: SIM118
