"""Losses of subsets that were measured, kept on disk so that a run that was killed goes on."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sublayers.training.distill.subsets import Subset
from sublayers.training.prune.search import Losses

# subsets that are measured between two writes
CHUNK = 256


class Log:
    """A file with a line for what was asked, and one for each subset and its loss.

    Args:
        file: is made if there is none.
        about: what losses depend on.
        measure: measures what is not in the file.

    Raises:
        FileExistsError: the file is of something else.
    """

    def __init__(self, file: Path, about: dict[str, Any], measure: Losses):
        self.file, self.measure = file, measure
        self.found: dict[Subset, float] = {}
        if not file.exists():
            self._write([about])
            return
        # a killed run may have left half a line
        text = file.read_text(encoding="utf-8")
        first, *lines = text[: text.rfind("\n") + 1].splitlines() or [""]
        if first != json.dumps(about):
            raise FileExistsError(f"{file} is of another model, other texts or flags; choose another --output_dir")
        file.write_text("".join(f"{line}\n" for line in (first, *lines)), encoding="utf-8")
        for line in lines:
            row = json.loads(line)
            self.found[tuple(row["kept"])] = row["loss"]

    def losses(self, subsets: Sequence[Subset]) -> dict[Subset, float]:
        """Find the losses of subsets, measured before or now."""
        # with a common beginning they follow each other
        new = sorted({*subsets} - self.found.keys())
        for start in range(0, len(new), CHUNK):
            measured = self.measure(new[start : start + CHUNK])
            self._write([{"kept": subset, "loss": loss} for subset, loss in measured.items()])
            self.found |= measured
        return {subset: self.found[subset] for subset in subsets}

    def _write(self, rows: list[dict[str, Any]]) -> None:
        with self.file.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
