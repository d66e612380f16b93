"""Files of rows: which kinds there are, and what is said of those that cannot be read."""

import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from gzip import BadGzipFile
from lzma import LZMAError
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from accelerate import PartialState
from datasets import Dataset, IterableDataset, load_dataset
from datasets.exceptions import DatasetNotFoundError, DatasetsError
from pyarrow import ArrowException

Rows: TypeAlias = Dataset | IterableDataset

SPLITS = ("train", "validation", "test")
# the builder of `datasets` for each ending
BUILDERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".csv": "csv"}
COMPRESSIONS = (".gz", ".xz", ".bz2")
# what readers of files raise; a stream passes on what a data set wraps, and every compression has errors of its own
DAMAGED = (ArrowException, DatasetsError, EOFError, LZMAError, OSError, ValueError, zlib.error)


class Used(NamedTuple):
    """What a run reads of a split.

    Attributes:
        rows: how many; None in a stream.
        whole: whether they are all rows of the split, as they are.
    """

    rows: int | None
    whole: bool


def used(rows: Dataset, limit: int | None) -> Used:
    """Say what a run reads of a split of which it takes no more rows than the limit, if any."""
    return Used(len(rows), limit is None or len(rows) < limit)


def named_files(args: Any) -> dict[str, Any]:
    """Find the files that flags name, by split. Raises a ValueError where the flags also name a data set."""
    files = {split: found for split in SPLITS if (found := getattr(args, f"{split}_file", None))}
    if files and args.dataset_name:
        raise ValueError("--dataset_name and files exclude each other; give one of them")
    return files


def load_splits(args: Any, wanted: Collection[str], **options: Any) -> dict[str, Rows]:
    """Load those of the wanted splits that a data set has. Raises what `reading` raises; a ValueError without any."""
    with reading(source := f"data set {args.dataset_name!r}"):
        found = load_dataset(args.dataset_name, args.dataset_config_name, **options)
    if not (splits := {split: found[split] for split in wanted if split in found}):
        raise ValueError(f"{source} has no split {' or '.join(wanted)}, only {', '.join(found)}")
    return splits


def first_rows(rows: Dataset, number: int | None, what: str) -> Dataset:
    """Take the first rows, or all where there are fewer; None takes all. Raises a ValueError for less than one."""
    if number is not None and number < 1:
        raise ValueError(f"no {what} is left of the first {number}; use at least one")
    return rows if number is None else rows.take(min(number, len(rows)))


def tell_unread(source: str, columns: Iterable[str], read: Collection[str]) -> None:
    """Say which columns of a source are read where it has others, of which one may be misspelt."""
    if unread := [column for column in columns if column not in read]:
        PartialState().print(f"{source}: what is read is {', '.join(read)}, and not {', '.join(unread)}")


def ending(path: str | Path) -> str:
    """Return the ending of a file's name that tells its kind, without that of a compression."""
    file = Path(path)
    return Path(file.stem).suffix if file.suffix in COMPRESSIONS else file.suffix


def check_file(path: str | Path, endings: Collection[str]) -> str:
    """Check that a file is there and of a known kind, and return its ending.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it has another ending.
    """
    if ending(path) not in endings:
        raise ValueError(f"{path} has none of the known endings {', '.join(endings)} (compressed or not)")
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}")
    return ending(path)


@contextmanager
def reading(source: str, remedy: str = "name a folder or files") -> Iterator[None]:
    """Say in one sentence that a source cannot be read, why and, if it is not on the Hub, what to do.

    Raises:
        FileNotFoundError: it is neither here nor on the Hub, which may be out of reach.
        ValueError: it cannot be read.
    """
    try:
        yield
    except (ConnectionError, DatasetNotFoundError) as error:
        said = " ".join(str(error).split()).rstrip(".")
        raise FileNotFoundError(f"{source} cannot be read from the Hub ({said}); {remedy}") from error
    except DAMAGED as error:
        # a missing file has a message of its own
        if isinstance(error, OSError) and type(error) not in (BadGzipFile, OSError):
            raise
        cause = error.__cause__ if isinstance(error, DatasetsError) else None
        said = " ".join(str(cause or error).split())
        # our own messages name the file already
        raise ValueError(said if source in said else f"{source} cannot be read: {said}") from error
    except StopIteration as error:
        # the builders do not expect an empty file
        raise ValueError(f"{source} is empty") from error


def read_rows(paths: list[str], streaming: bool = False, **options: Any) -> Rows:
    """Read files of one kind, checked before, as one data set; options are those of its builder.

    Raises:
        ValueError: they cannot be read, or are empty.
    """
    with reading(" and ".join(paths)):
        builder = BUILDERS.get(ending(paths[0]), "csv")
        return load_dataset(builder, data_files=paths, split="train", streaming=streaming, **options)
