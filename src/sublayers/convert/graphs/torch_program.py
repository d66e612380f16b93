"""A program as torch's own file, which runs where this package is not installed; see `program`."""

from pathlib import Path

import numpy as np
import torch
from torch.export import ExportedProgram

from sublayers.convert.graphs.program import quiet
from sublayers.modeling.graph_sessions import Batch, Run

FILE = "model.pt2"


@quiet()
def write(program: ExportedProgram, file: Path) -> None:
    """Write a program with its weights."""
    torch.export.save(program, file)


def load(file: Path, threads: int | None = None) -> Run:
    """Read a program as a function from inputs to outputs, both by name; `threads` are those of all of torch."""
    if threads:
        torch.set_num_threads(threads)
    # among the guards is one against single rows in memory of another layout, which are as good
    program = torch.export.load(file).module(check_guards=False)

    def run(batch: Batch) -> Batch:
        with torch.no_grad():
            outputs = program(**{name: torch.from_numpy(array) for name, array in batch.items()})
        return {name: np.asarray(output) for name, output in outputs.items()}

    return run
