"""The log of many trainings, such as a search, which goes on where it was killed."""

import json
import os
from collections.abc import Iterator
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
        return [event for event in self._lines() if event["kind"] == kind]

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

    def _lines(self) -> Iterator[dict[str, Any]]:
        if self.file.exists():
            for line in self.file.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    yield json.loads(line)


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
        # a flag that only one of two versions has may be None in the other
        if names := [name for name in {**before, **settings} if before.get(name) != settings.get(name)]:
            name = names[0]
            raise FileExistsError(
                f"{folder} is a {kind} with {name} {before.get(name)!r}, not {settings.get(name)!r}; choose another "
                "--output_dir, or go on with the same flags"
            )
    else:
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
