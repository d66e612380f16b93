"""Output folders: new ones, held ones, whole ones, and the errors of files in them."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from lzma import LZMAError
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# a run locks this file in its folder; a run that was killed leaves the file, but not the lock
LOCK = ".lock"


def refuse_to_overwrite(folder: str | Path, remedy: str = "") -> None:
    """Check that a folder is new or empty.

    Raises:
        FileExistsError: it holds files.
    """
    if Path(folder).exists() and any(path.name != LOCK for path in Path(folder).iterdir()):
        raise FileExistsError(f"{folder} is not empty; choose another folder{remedy}")


def check_settings(begun: str, before: dict[str, Any], settings: dict[str, Any]) -> None:
    """Check that what goes on in a folder was begun with the same settings.

    Args:
        begun: says what there is, such as "FOLDER is a search".
        before: the settings that it was begun with.
        settings: those of now.

    Raises:
        FileExistsError: one differs.
    """
    for name in before | settings:
        # a flag that only one of two versions has may be None in the other
        if before.get(name) != settings.get(name):
            raise FileExistsError(
                f"{begun} with {name} {before.get(name)!r}, not {settings.get(name)!r}; choose another --output_dir, "
                "or go on with the same flags"
            )


def refuse_to_replace(*files: Path | None) -> None:
    """Check that no file that is to be written exists yet; those that are None are not written.

    Raises:
        FileExistsError: one is.
    """
    for file in filter(None, files):
        if file.exists():
            raise FileExistsError(f"{file} exists; choose another file")


@contextmanager
def claim(folder: str | Path, process_index: int = 0) -> Iterator[None]:
    """Hold the output folder of a run for as long as the run takes, so that no other one writes into it.

    The first process of a run holds it for all of them.

    Raises:
        FileExistsError: another run holds it.
        OSError: it cannot be written to.
    """
    # this import takes as long as all others here
    from filelock import FileLock, Timeout

    if process_index > 0:
        yield
        return
    folder = Path(folder)
    is_new = not folder.exists()
    # the system takes the lock from a process that ends, however it ends
    lock = FileLock(folder / LOCK, blocking=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise FileExistsError(
            f"another run is writing into {folder}; wait until it ends or choose another folder"
        ) from None
    except OSError as error:
        raise OSError(f"{folder} cannot be written to ({error.strerror}); choose another folder") from error
    try:
        yield
    finally:
        with suppress(OSError):
            (folder / LOCK).unlink()
        lock.release()
        if is_new:
            # rmdir removes the folder only if it is empty
            with suppress(OSError):
                folder.rmdir()


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Give a temporary place for a folder's files; they move into the folder at the end, or after an error never do."""
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as place:
        # the TemporaryDirectory itself can be read by its owner alone
        whole = Path(place, folder.name)
        whole.mkdir()
        yield whole
        if folder.exists():
            for file in whole.iterdir():
                file.rename(folder / file.name)
        else:
            # the folder is renamed in one step, so that a command that is killed never leaves half of it
            whole.rename(folder)


def is_of_a_file(error: Exception) -> bool:
    """Find out whether an error is what libraries raise for a damaged file or a full disk."""
    from safetensors import SafetensorError

    # tokenizers raise nothing more special; the others are of a compressed file that is read while training
    return type(error) in (SafetensorError, Exception, EOFError, LZMAError, zlib.error)
