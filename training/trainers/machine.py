"""The machine and the software of a run."""

import argparse
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch

from sublayers.modeling.graph_sessions import processor

PACKAGES = ("torch", "transformers", "x-transformers")


def machine(device: torch.device) -> dict[str, Any]:
    """Describe the machine, the software and the date of a measurement."""
    return {
        "processor": processor().get("model name") or platform.processor() or platform.machine(),
        **({"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}),
        "threads": torch.get_num_threads(),
        **{name: version(name) for name in PACKAGES if find_spec(name.replace("-", "_"))},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def device(text: str) -> torch.device:
    """Read the name of a device of this machine, as the `type` of an argparse option.

    Raises:
        ArgumentTypeError: there is none.
    """
    try:
        return torch.empty(0, device=text).device
    except (AssertionError, RuntimeError) as error:
        # what follows the first sentence is about torch's own programs
        said = str(error).splitlines()[0].split(". ")[0]
        raise argparse.ArgumentTypeError(f"this machine has no device {text!r} ({said}); give cpu") from error
