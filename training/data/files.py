"""Files of rows: which kinds there are, and what is said of those that cannot be read."""

import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from gzip import BadGzipFile
from lzma import LZMAError
from pathlib import Path
from typing import Any, TypeAlias

from datasets import Dataset, IterableDataset, load_dataset
from datasets.exceptions import DatasetNotFoundError, DatasetsError
from pyarrow import ArrowException

Rows: TypeAlias = Dataset | IterableDataset

# the builder of `datasets` for each ending
BUILDERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".csv": "csv"}
COMPRESSIONS = (".gz", ".xz", ".bz2")
# what readers of files raise; a stream passes on what a data set wraps, and every compression has errors of its own
DAMAGED = (ArrowException, DatasetsError, EOFError, LZMAError, OSError, ValueError, zlib.error)


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
