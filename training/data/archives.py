"""Data as they are distributed: folders, zip and tar archives, and single files, read without being unpacked."""

import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple
from zipfile import BadZipFile, ZipFile, ZipInfo

from fsspec.compression import compr
from fsspec.utils import infer_compression
from tqdm.auto import tqdm

from sublayers.training.data.files import COMPRESSIONS, reading

TAR = (".tar", ".tgz", ".tbz2", ".txz", *(f".tar{compression}" for compression in COMPRESSIONS))
# what zipfile and tarfile raise for damaged, encrypted or unknown archives
DAMAGED = (BadZipFile, tarfile.TarError, RuntimeError, NotImplementedError)


class Member(NamedTuple):
    """A file of a source: its path there without the ending of a compression, the source, and what opens it."""

    name: str
    source: Path
    open: Callable[[], Any]


class Sources:
    """The files of folders and archives, by patterns of their names.

    Args:
        paths: folders, archives and files, compressed or not.

    Raises:
        FileNotFoundError: one is not there.
        ValueError: an archive that cannot be read.
    """

    def __init__(self, paths: Sequence[Path]):
        for path in paths:
            if not path.exists():
                raise FileNotFoundError(f"there is no file or folder {path}")
        self.paths = paths
        # a Mac may leave a hidden file beside each
        self.members = [
            member for path in paths for member in _members(path) if not Path(member.name).name.startswith("._")
        ]

    def find_all(self, pattern: str) -> list[Member]:
        """Find the files whose name, or the end of whose path, matches a pattern, in the order of their paths."""
        found = [member for member in self.members if fnmatch(f"/{member.name}", f"*/{pattern}")]
        return sorted(found, key=lambda member: (self.paths.index(member.source), member.name))

    def find(self, *patterns: str) -> Member:
        """Find the one file that matches the first of several patterns that any matches.

        Raises:
            ValueError: none matches, or several do.
        """
        found = next((members for pattern in patterns if (members := self.find_all(pattern))), [])
        where = " and ".join(map(str, self.paths))
        if not found:
            raise ValueError(f"there is no {' or '.join(patterns)} in {where}; give what is distributed, whole")
        if len(found) > 1:
            names = " and ".join(member.name for member in found)
            raise ValueError(f"{where} hold {names}, of which one is wanted; give fewer sources")
        return found[0]

    def read(self, *patterns: str) -> bytes:
        """Read a file whole. Raises what `find` raises, and a ValueError if it cannot be read."""
        member = self.find(*patterns)
        with _reading(member.source), member.open() as file:
            return file.read()

    def lines(self, *patterns: str) -> Iterator[str]:
        """Iterate over the lines of a file without their ends, under a progress bar. Raises what `read` raises."""
        return read_lines(self.find(*patterns))


def read_lines(member: Member) -> Iterator[str]:
    """Iterate over a file's lines without their ends, under a progress bar. Raises a ValueError if it is damaged."""
    with _reading(member.source), member.open() as file:
        # other characters that may end a line can stand inside a text
        for line in tqdm(file, f"reading {member.name}", unit=" lines", delay=2):
            yield line.decode("utf-8").rstrip("\r\n")


def _members(path: Path) -> list[Member]:
    files: dict[str, Callable[[], Any]]
    if path.is_dir():
        inside = (file for file in path.rglob("*") if file.is_file())
        files = {file.relative_to(path).as_posix(): partial(file.open, "rb") for file in inside}
    elif path.name.endswith(".zip"):
        with _reading(path), ZipFile(path) as archive:
            files = {info.filename: partial(_open_zipped, path, info) for info in archive.infolist()}
    elif path.name.endswith(TAR):
        size = path.stat().st_size
        with (
            _reading(path),
            path.open("rb") as file,
            tqdm.wrapattr(file, "read", size, desc=f"looking through {path.name}", delay=2) as bar,
            tarfile.open(fileobj=bar) as archive,
        ):
            # a link may lead to any place
            files = {info.name: partial(_open_tarred, path, info) for info in archive if info.isfile()}
    else:
        files = {path.name: partial(path.open, "rb")}
    return [
        Member(_without_compression(name), path, partial(_decompress, name, opened)) for name, opened in files.items()
    ]


def _without_compression(name: str) -> str:
    return name.removesuffix(Path(name).suffix) if Path(name).suffix in COMPRESSIONS else name


@contextmanager
def _decompress(name: str, opened: Callable[[], Any]) -> Iterator[IO[bytes]]:
    with opened() as file:
        yield compr[infer_compression(name)](file, mode="rb") if name != _without_compression(name) else file


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    with reading(str(path)):
        try:
            yield
        except DAMAGED as error:
            raise ValueError(f"{str(error).splitlines()[0].rstrip(':')}; is it whole?") from error


@contextmanager
def _open_zipped(path: Path, info: ZipInfo) -> Iterator[IO[bytes]]:
    with ZipFile(path) as archive, archive.open(info) as file:
        yield file


@contextmanager
def _open_tarred(path: Path, info: tarfile.TarInfo) -> Iterator[IO[bytes] | None]:
    with tarfile.open(path) as archive:
        yield archive.extractfile(info)
