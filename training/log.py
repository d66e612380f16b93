"""The log of many trainings, such as a search, which goes on where it was killed."""

import json
import os
from pathlib import Path
from typing import Any

from sublayers.training.folders import LOCK

LOG = "log.jsonl"


class Log:
    """What happened in trainings, an event in each line of `log.jsonl`: its `kind`, and what there is to say.

    A killed process leaves whole lines behind, except perhaps the last one, which is not read.

    Args:
        folder: of the trainings.
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
    """Open the log of new trainings, or of some that go on with the same settings.

    Args:
        folder: of the trainings.
        kind: what they are, such as a search.
        settings: what they have in common.

    Raises:
        FileExistsError: the folder holds something else, or has other settings.
    """
    log = Log(folder)
    # the values as JSON reads them back
    settings = json.loads(json.dumps(settings))
    if begun := log.events(kind):
        before = {name: value for name, value in begun[0].items() if name != "kind"}
        for name in before | settings:
            # a flag that only one of two versions has may be None in the other
            if before.get(name) != settings.get(name):
                raise FileExistsError(
                    f"{folder} is a {kind} with {name} {before.get(name)!r}, not {settings.get(name)!r}; "
                    "choose another --output_dir, or go on with the same flags"
                )
        return log
    if folder.exists() and any(path.name not in (LOG, LOCK) for path in folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty and holds no {kind}; choose another --output_dir")
    log.append(kind, **settings)
    return log


def read_log(folder: Path) -> Log:
    """Find the log of a search.

    Raises:
        FileNotFoundError: there is none.
    """
    log = Log(folder)
    if not log.events("search"):
        raise FileNotFoundError(f"{folder} holds no search; give the --output_dir of one")
    return log
