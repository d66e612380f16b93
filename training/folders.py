"""Output folders: new ones, whole ones, and the errors of files in them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

# with which a run holds its folder; one that was killed leaves the file, but not the lock on it
LOCK = ".lock"


def refuse_to_overwrite(folder: str | Path, remedy: str = "") -> None:
    """Check that a folder is new or empty.

    Raises:
        FileExistsError: it holds files.
    """
    if Path(folder).exists() and any(path.name != LOCK for path in Path(folder).iterdir()):
        raise FileExistsError(f"{folder} is not empty; choose another folder{remedy}")


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Give a place in which to make a folder; the folder has all of it in the end or, after an error, is not made."""
    parent = folder.resolve().parent
    parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=parent) as place:
        yield Path(place)
        folder.mkdir(exist_ok=True)
        for file in Path(place).iterdir():
            file.rename(folder / file.name)


def is_of_a_file(error: Exception) -> bool:
    """Find out whether an error is what safetensors or tokenizers raise for a damaged file or a full disk."""
    from safetensors import SafetensorError

    # tokenizers raise nothing more special
    return type(error) in (SafetensorError, Exception)
