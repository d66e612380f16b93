"""Flags that several benches have."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from sublayers.training.flags import flag, number
from sublayers.training.trainers.machine import device

# what sizes mean
SIZES = {
    "layers": "blocks of an attention and a feed-forward sublayer; of encoder and decoder each, where there are both",
    "hidden_size": "width; feed-forward sublayers are four times as wide, those of iot twice",
    "heads": "attention heads",
    "vocab_size": "tokens in the vocabulary",
    "batch_size": "texts that are read at once",
    "length": "tokens of these texts, or of a segment of them after a full memory",
    "prompt_length": "tokens before decoding",
    "new_tokens": "tokens that are decoded",
    "repeats": "rounds, after one to warm up",
}


def size(name: str, value: int) -> Any:
    """Declare one of `SIZES` with its default."""
    return number(SIZES[name], value)


@dataclass(kw_only=True)
class ModelFlags:
    """Flags of every bench."""

    orders: list[str] = flag("default: see above", [])
    no_onednn: bool = flag("run our linear maps in torch's default library", False)
    release_memory: bool = flag("let glibc give freed memory back to the system, as it does by default", False)


@dataclass(kw_only=True)
class BenchFlags(ModelFlags):
    """Flags of a bench that runs in one process."""

    device: Any = flag("where models run", "cuda" if torch.cuda.is_available() else "cpu", type=device)
    dtype: Literal["float32", "bfloat16"] = flag("of weights and states", "float32")
    threads: int | None = number("default: torch's choice")
    processor_time: bool = flag("print user and system time and page faults of a call, as the files have them", False)
    json: Path | None = flag("a new file for all numbers, with every single measurement")
    csv: Path | None = flag("a new file with a row for each model, for tables in documents")
