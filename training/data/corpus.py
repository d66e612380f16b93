"""Where text comes from: the Python standard library, a data set, or files."""

import hashlib
import math
import platform
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from datasets import Dataset, IterableDataset, Value, load_dataset_builder
from datasets.fingerprint import Hasher

from sublayers.training.data.files import (
    BUILDERS,
    Rows,
    Used,
    check_file,
    load_splits,
    named_files,
    read_rows,
    reading,
    tell_unread,
)
from sublayers.training.flags import flag

TEXT = Value("string")
# what a card calls the corpus that is read without flags
STANDARD_LIBRARY = f"the standard library of Python {platform.python_version()}"
# tests are data rather than prose or programs, and installed packages differ from machine to machine
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


@dataclass
class CorpusArguments:
    """Flags that name a corpus; without any it is the standard library of the running Python."""

    _argument_group_name: ClassVar[str] = "corpus (default: the standard library of the running Python)"

    dataset_name: str | None = flag("data set on the Hub, or a local folder")
    dataset_config_name: str | None = flag("configuration of the data set")
    train_file: str | None = flag(".txt (one document), .json, .jsonl, .parquet or .csv, also compressed (.gz)")
    validation_file: str | None = flag("as --train_file")
    text_column: str = flag("column that holds the text", "text")
    streaming: bool = flag("read while training, not before; needs --max_steps", False)
    validation_split_percentage: int = flag(
        "share of the training documents (lines of a .txt) split off from the start where there is no "
        "validation data; of a stream, this many hundred documents",
        5,
    )


@dataclass(frozen=True)
class Text:
    """Rows with one column `text`: each a document, or else each a line, with its end, of one document.

    A stream may have several files, and begin at a row of one of them. A part of a split is not `whole`.
    """

    rows: Rows
    documents: bool = True
    files: IterableDataset | None = None
    first_file: int = 0
    first_row: int = 0
    whole: bool = True

    @property
    def used(self) -> Used:
        """What a run reads of the split, if it reads all of this."""
        return Used(len(self.rows) if isinstance(self.rows, Dataset) else None, self.whole)

    @property
    def num_files(self) -> int:
        """How many files can be read apart from each other."""
        return self.files.num_shards - self.first_file if self.files else 1

    def file(self, index: int) -> "Text":
        """Read one of the files."""
        if not self.files:
            return self
        rows = self.files.shard(self.files.num_shards, self.first_file + index)
        return Text(rows, self.documents).skip(0 if index else self.first_row)

    def pieces(self) -> Iterator[str]:
        """Iterate over the documents, or over runs of lines."""
        for batch in self.rows.iter(batch_size=self.batch_size):
            yield from join_lines(batch["text"], self.documents)

    def tokenized(self, function: Callable[..., Any], settings: dict[str, Any], **options: Any) -> Iterator[Any]:
        """Iterate over Arrow tables of what a function with settings makes of rows; options are those of `map`."""
        options |= {"batch_size": self.batch_size, "remove_columns": ["text"], "fn_kwargs": settings}
        # of lines, a whole batch becomes one row
        yield from self.rows.map(function, batched=True, **options).with_format("arrow").iter(100)

    @property
    def batch_size(self) -> int:
        """How many rows are tokenized at a time."""
        return 100 if self.documents else 1000

    def skip(self, number: int) -> "Text":
        """Leave the first rows out."""
        return Text(self.rows.skip(number), self.documents, whole=False) if number else self

    def take(self, number: int | None) -> "Text":
        """Keep the first rows, or all if the number is None."""
        if number is None:
            return self
        # a data set, unlike a stream, takes no more than it has
        number = min(number, len(self.rows)) if isinstance(self.rows, Dataset) else number
        whole = self.whole and number == self.used.rows
        return Text(self.rows.take(number), self.documents, whole=whole)


def join_lines(texts: list[str | None], documents: bool) -> list[str]:
    """Turn rows that follow each other into texts to tokenize: documents as they are, lines as one; None is empty."""
    filled = [text or "" for text in texts]
    # tokens may span lines, such as an indentation with the line end before it
    return filled if documents else ["".join(filled)]


def load_corpus(args: CorpusArguments) -> dict[str, Text]:
    """Load the texts of the splits `train` and `validation`; with a validation file alone there is no `train`.

    Raises:
        FileNotFoundError: there is no such file or data set.
        ValueError: a source without text, without the column, or that cannot be read or split.
    """
    if not 0 < args.validation_split_percentage < 100:
        raise ValueError(f"--validation_split_percentage={args.validation_split_percentage} is not between 1 and 99")
    if files := named_files(args):
        texts = {split: _read_file(path, args) for split, path in files.items()}
    elif args.dataset_name:
        texts = _read_dataset(args)
    else:
        found = standard_library().items()
        texts = {split: Text(rows.to_iterable_dataset() if args.streaming else rows) for split, rows in found}
    return texts if "validation" in texts else _split_off(texts["train"], args)


def standard_library() -> dict[str, Dataset]:
    """Read the sources, documentation strings included, of the running Python's standard library, a file a document.

    A file's relative path decides on its split, so that no version of it is in both.
    """
    root = Path(sysconfig.get_path("stdlib"))
    texts: dict[str, list[str]] = {"train": [], "validation": []}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if not SKIPPED_FOLDERS.isdisjoint(name.parts):
            continue
        try:
            text = path.read_bytes().decode()
        except (OSError, UnicodeDecodeError):
            continue
        held_out = hashlib.sha256(name.as_posix().encode()).digest()[0] % 10 == 0
        texts["validation" if held_out else "train"].append(text)
    if not texts["train"]:
        raise ValueError(f"this Python has no sources in {root}; name a corpus with --train_file or --dataset_name")
    return {split: Dataset.from_dict({"text": documents}) for split, documents in texts.items()}


def _read_dataset(args: CorpusArguments) -> dict[str, Text]:
    with reading(source := f"data set {args.dataset_name!r}"):
        builder = load_dataset_builder(str(args.dataset_name), args.dataset_config_name).name
        # a folder of text files: the default would lose the line ends
        whole = {"sample_by": "document"} if builder == "text" else {}
        splits = load_splits(args, ("train", "validation"), streaming=args.streaming, **whole)
        found = {split: _text_rows(rows, source, args.text_column) for split, rows in splits.items()}
        # parts of a stream can be read at the same time, those of a data set need not
        return {split: Text(rows, files=rows if args.streaming else None) for split, rows in found.items()}


def _read_file(path: str, args: CorpusArguments) -> Text:
    documents = check_file(path, [".txt", *BUILDERS]) != ".txt"
    with reading(path):
        if documents:
            rows = read_rows([path], args.streaming)
        elif next(_lines(path), None) is None:
            raise ValueError(f"{path} is empty")
        elif args.streaming:
            rows = IterableDataset.from_generator(_lines, gen_kwargs={"path": path})
        else:
            # the name alone would find the cached rows of an older version
            file = Path(path).stat()
            version = Hasher.hash((path, file.st_mtime_ns, file.st_size))
            rows = Dataset.from_generator(_lines, gen_kwargs={"path": path}, fingerprint=version)
        return Text(_text_rows(rows, path, args.text_column if documents else "text"), documents)


def _lines(path: str) -> Iterator[dict[str, str]]:
    # the builder of `datasets` would turn \r\n into \n
    with reading(path), fsspec.open(path, "rt", encoding="utf-8", newline="", compression="infer") as file:
        for line in file:
            yield {"text": line}


def _text_rows(rows: Rows, name: str, column: str) -> Rows:
    first = next(iter(rows), None)
    if first is None:
        raise ValueError(f"{name} is empty")
    if column not in first:
        raise ValueError(f"{name} has no column {column!r}; choose one of {', '.join(first)} with --text_column")
    # a column without values has no type
    if (rows.features or {}).get(column, TEXT) != TEXT:
        for row in rows:
            if not isinstance(row[column], str | None):
                raise ValueError(f"column {column!r} of {name} holds {type(row[column]).__name__}, not text")
    tell_unread(name, first, [column])
    rows = rows.select_columns([column])
    if column != "text":
        rows = rows.rename_column(column, "text")
    if not any(row["text"] and not row["text"].isspace() for row in rows):
        raise ValueError(f"{name} holds no text")
    return rows


def _split_off(text: Text, args: CorpusArguments) -> dict[str, Text]:
    share = args.validation_split_percentage
    number = 100 * share if args.streaming else math.ceil(len(text.rows) * share / 100)
    if sum(1 for _ in text.take(number + 1).rows) <= number:
        raise ValueError(
            f"nothing is left to train on after the first {number} documents (lines of a .txt); "
            "give --validation_file or a smaller --validation_split_percentage"
        )
    if not text.files:
        return {"train": text.skip(number), "validation": text.take(number)}
    # there are more rows than that
    file, row = 0, number
    while (found := sum(1 for _ in text.file(file).take(row + 1).rows)) <= row:
        file, row = file + 1, row - found
    train = Text(text.rows.skip(number), text.documents, text.files, file, row, whole=False)
    return {"train": train, "validation": text.take(number)}
