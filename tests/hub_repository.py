"""What the server of `hub_server.py` keeps: repositories of commits of files, in memory."""

import fnmatch
import hashlib
import secrets
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from hub_metadata import front_matter

# whom the server knows; each may write under the own name
TOKENS = {"hf_thisIsTheSecretOfAnn": "ann", "hf_thisIsTheSecretOfBob": "bob"}
ANN, BOB = TOKENS
# the Hub stores these files with LFS, and all that are larger than this number of bytes
IN_LFS = ("*.safetensors", "*.bin", "*.pt", "*.model")
LARGEST_REGULAR_FILE = 10_000_000
DATE = "2024-01-01T00:00:00.000Z"


class Refusal(Exception):  # noqa: N818 - the Hub's answer, not a mistake
    """An answer with an error status, and with the code by which the client knows what is meant."""

    def __init__(self, status: int, message: str, code: str = "", **details: Any):
        super().__init__(message)
        self.status, self.message, self.code, self.details = status, message, code, details


@dataclass(frozen=True)
class File:
    content: bytes
    lfs: bool = False

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def oid(self) -> str:
        """What git calls it; the Hub names large files by their SHA-256."""
        return hashlib.sha1(b"blob %d\0%b" % (len(self.content), self.content)).hexdigest()

    def lfs_info(self) -> dict[str, Any]:
        if not self.lfs:
            return {}
        return {"lfs": {"oid": self.sha256, "sha256": self.sha256, "size": len(self.content), "pointerSize": 134}}


@dataclass
class Commit:
    title: str
    message: str
    files: dict[str, File]
    parent: str | None = None
    oid: str = field(default_factory=lambda: secrets.token_hex(20))


class Repository:
    """Commits by their ids, and the full names of branches and pull requests with the ids they stand for."""

    def __init__(self, name: str, private: bool):
        self.name, self.private, self.owner = name, private, name.split("/")[0]
        attributes = "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in IN_LFS)
        first = Commit("initial commit", "", {".gitattributes": File(attributes.encode())})
        self.commits = {first.oid: first}
        self.refs = {"refs/heads/main": first.oid}

    def commit(self, revision: str = "main") -> Commit:
        for name in (f"refs/heads/{revision}", revision):
            if name in self.refs:
                return self.commits[self.refs[name]]
        if revision not in self.commits:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.commits[revision]

    def files(self, revision: str = "main") -> dict[str, File]:
        """Files by their paths; a test may add some that no client would push."""
        return self.commit(revision).files

    def preupload(self, path: str, size: int, revision: str) -> dict[str, Any]:
        in_lfs = size > LARGEST_REGULAR_FILE or any(fnmatch.fnmatch(path, pattern) for pattern in IN_LFS)
        old = self.files(revision).get(path)
        oid = old and (old.sha256 if old.lfs else old.oid)
        return {"path": path, "uploadMode": "lfs" if in_lfs else "regular", "shouldIgnore": False, "oid": oid}

    def history(self, revision: str) -> list[dict[str, Any]]:
        commit, rows = self.commit(revision), []
        while True:
            about = {"id": commit.oid, "title": commit.title, "message": commit.message}
            rows.append({**about, "date": DATE, "authors": [{"user": self.owner}]})
            if commit.parent is None:
                return rows
            commit = self.commits[commit.parent]

    def entries(self, revision: str) -> dict[str, dict[str, Any]]:
        """Folders and files by their paths, sorted, as the Hub describes them."""
        files = self.files(revision)
        folders = {str(parent) for path in files for parent in list(PurePosixPath(path).parents)[:-1]}
        entries = {path: {"type": "directory", "oid": "0" * 40, "size": 0, "path": path} for path in folders}
        for path, file in files.items():
            about = {"type": "file", "oid": file.oid, "size": len(file.content), "path": path}
            entries[path] = {**about, **file.lfs_info()}
        return dict(sorted(entries.items()))

    def info(self, revision: str) -> dict[str, Any]:
        commit = self.commit(revision)
        card = front_matter(commit.files["README.md"].content.decode()) if "README.md" in commit.files else {}
        return {
            "id": self.name,
            "sha": commit.oid,
            "private": self.private,
            "tags": card.get("tags", []),
            "pipeline_tag": card.get("pipeline_tag"),
            "library_name": card.get("library_name"),
            "cardData": card,
            "siblings": [{"rfilename": path} for path in commit.files],
        }
