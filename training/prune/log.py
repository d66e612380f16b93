"""The log of what a search for sublayers has measured, which goes on where it was killed."""

import json
import os
from pathlib import Path
from typing import Any

from sublayers.training.folders import LOCK, check_settings

LOG = "log.jsonl"


class Log:
    """What was measured, an event in each line of `log.jsonl`: its `kind`, and what there is to say.

    A killed process leaves whole lines behind, except perhaps the last one, which is not read.

    Args:
        folder: of the search.
    """

    def __init__(self, folder: Path):
        self.file = folder / LOG

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Read all events of a kind, the earliest first."""
        lines = self.file.read_bytes().splitlines(keepends=True) if self.file.exists() else []
        events = [json.loads(line) for line in lines if line.endswith(b"\n")]
        return [event for event in events if event["kind"] == kind]

    def append(self, kind: str, **event: Any) -> None:
        """Write an event, which is on the disk when this returns."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("ab+") as file:
            file.seek(0)
            written = file.read()
            # a process that was killed may have left half a line
            file.truncate(written.rfind(b"\n") + 1)
            file.write(json.dumps({"kind": kind, **event}).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def open_log(folder: Path, kind: str, settings: dict[str, Any]) -> Log:
    """Open the log of a new search, or of one that goes on with the same settings.

    Args:
        folder: of the search.
        kind: of the search.
        settings: what all is measured with.

    Raises:
        FileExistsError: the folder holds something else, or has other settings.
    """
    log = Log(folder)
    # the values as JSON reads them back
    settings = json.loads(json.dumps(settings))
    if begun := log.events(kind):
        before = {name: value for name, value in begun[0].items() if name != "kind"}
        check_settings(f"{folder} is a {kind}", before, settings)
        return log
    if folder.exists() and any(path.name not in (LOG, LOCK) for path in folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty and holds no {kind}; choose another --output_dir")
    log.append(kind, **settings)
    return log
