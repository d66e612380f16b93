"""The data of the tasks of GLUE (Wang et al., 2019)."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from datasets import Dataset, Value, load_dataset

from sublayers.training.data.files import BUILDERS, check_file, ending, named_files, read_rows, reading, tell_unread
from sublayers.training.flags import flag

Splits: TypeAlias = dict[str, Dataset]

MAX_SIMILARITY = 5


@dataclass(frozen=True)
class Task:
    """One task, with the columns and label ids of the data set on the Hub.

    Args:
        columns: what holds the one text or the two.
        labels: names in the order of their ids; a single one names a score from 0 to 5.
        metrics: names as in `evaluate`; the first decides between runs.
        names: whether a submission holds names of labels rather than ids.
        files: file of a submission, without its ending, for each ending of a split's name.
        diagnostics: as `files`, for test data of other sets, which have the ending as their name.
    """

    columns: tuple[str, ...]
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    files: dict[str, str]
    names: bool = False
    diagnostics: dict[str, str] = field(default_factory=dict)

    @property
    def scored(self) -> bool:
        """Whether a label is a score rather than a class."""
        return len(self.labels) == 1

    @property
    def validation(self) -> list[str]:
        """Names of the validation splits; the first decides between runs."""
        return [f"validation{part}" for part in self.files]

    @property
    def submitted(self) -> dict[str, str]:
        """All files of a submission, without their endings, by the ending of a test split's name."""
        return self.files | self.diagnostics


SENTENCES = ("sentence1", "sentence2")
ACCURACY = ("accuracy",)
# as in BERT (Devlin et al., 2019, section 4.1), F1 decides on paraphrases and Spearman's correlation on similarity
PARAPHRASE = ("f1", "accuracy")
ENTAILMENT = ("entailment", "not_entailment")
GLUE_TASKS = {
    "cola": Task(("sentence",), ("unacceptable", "acceptable"), ("matthews_correlation",), {"": "CoLA"}),
    "sst2": Task(("sentence",), ("negative", "positive"), ACCURACY, {"": "SST-2"}),
    "mrpc": Task(SENTENCES, ("not_equivalent", "equivalent"), PARAPHRASE, {"": "MRPC"}),
    "stsb": Task(SENTENCES, ("similarity",), ("spearmanr", "pearson"), {"": "STS-B"}),
    "qqp": Task(("question1", "question2"), ("not_duplicate", "duplicate"), PARAPHRASE, {"": "QQP"}),
    "mnli": Task(
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        ACCURACY,
        {"_matched": "MNLI-m", "_mismatched": "MNLI-mm"},
        names=True,
        diagnostics={"_ax": "AX"},
    ),
    "qnli": Task(("question", "sentence"), ENTAILMENT, ACCURACY, {"": "QNLI"}, names=True),
    "rte": Task(SENTENCES, ENTAILMENT, ACCURACY, {"": "RTE"}, names=True),
    "wnli": Task(SENTENCES, ENTAILMENT[::-1], ACCURACY, {"": "WNLI"}),
}

HUB_NAME = "nyu-mll/glue"
# "None" and "NA" are words here
WORDS: dict[str, Any] = {"keep_default_na": False}
# how files are read, by their endings
READ: dict[str, dict[str, Any]] = {kind: {} for kind in BUILDERS} | {".csv": WORDS, ".tsv": WORDS | {"sep": "\t"}}


@dataclass
class GlueDataArguments:
    """Flags that name the data; without any they are those of the Hub."""

    _argument_group_name: ClassVar[str] = f"data (default: {HUB_NAME} on the Hub)"

    dataset_name: str | None = flag("data set on the Hub that has the tasks as configurations")
    data_dir: str | None = flag(
        "folder that has one for each task (cola or glue_cola), with files that start with the name of "
        f"their split and end in {', '.join(READ)}, also compressed (.gz)"
    )
    train_file: str | None = flag("file of one task, with the columns of the Hub")
    validation_file: str | None = flag("as --train_file")
    test_file: str | None = flag("as --train_file; labels are not read")
    max_train_samples: int | None = flag("use the first rows only")
    max_eval_samples: int | None = flag("as --max_train_samples; not for test data")

    def __post_init__(self):
        if self.data_dir and (self.dataset_name or self.files):
            raise ValueError("--dataset_name, --data_dir and files exclude each other; give one of them")

    @property
    def files(self) -> dict[str, str]:
        """The files that are named one by one."""
        return named_files(self)

    def folder(self, name: str) -> Path | None:
        """The folder of a task in `data_dir`."""
        paths = (Path(str(self.data_dir), prefix + name) for prefix in ("", "glue_"))
        return next((path for path in paths if path.is_dir()), None)


def load_task(name: str, args: GlueDataArguments, train: bool = True) -> Splits:
    """Load the splits of a task that there are, with its columns and, but for test data, `label`.

    Args:
        name: one of `GLUE_TASKS`.
        args: where the data are.
        train: whether there is to be a split `train`; otherwise it is left out.

    Raises:
        FileNotFoundError: there is no such file, folder or data set, or no split to train or to evaluate on.
        ValueError: data that cannot be read, lack a column, or hold a label or text that is none.
    """
    with reading(f"the data of {name}", "give --data_dir, or --train_file and --validation_file"):
        splits = _read(name, args)
    if not train:
        splits.pop("train", None)
    for split in (["train"] if train else []) + GLUE_TASKS[name].validation[:1]:
        if split not in splits:
            raise FileNotFoundError(f"there are no {split} data for {name}, only {', '.join(splits) or 'none at all'}")
    return {split: _check(rows, split, name, args) for split, rows in splits.items()}


def _read(name: str, args: GlueDataArguments) -> Splits:
    parts = GLUE_TASKS[name].files
    if args.files:
        # a file that is given is the first of several parts
        part = next(iter(parts))
        return {split if split == "train" else split + part: _rows([path]) for split, path in args.files.items()}
    wanted = ["train", *(split + part for split in ("validation", "test") for part in parts)]
    if args.data_dir:
        folder = args.folder(name)
        if folder is None:
            raise FileNotFoundError(f"there is neither a folder {name} nor glue_{name} in {args.data_dir}")
        found = {split: sorted(p for p in folder.glob(f"{split}*") if ending(p) in READ) for split in wanted}
        for part in GLUE_TASKS[name].diagnostics:
            if other := args.folder(part.removeprefix("_")):
                found[f"test{part}"] = sorted(p for p in other.glob("test*") if ending(p) in READ)
        return {split: _rows(paths) for split, paths in found.items() if paths}
    loaded = load_dataset(args.dataset_name or HUB_NAME, name)
    splits = {split: loaded[split] for split in wanted if split in loaded}
    if args.dataset_name is None:
        for part in GLUE_TASKS[name].diagnostics:
            splits[f"test{part}"] = load_dataset(HUB_NAME, part.removeprefix("_"))["test"]
    return splits


def _rows(paths: list[Any]) -> Dataset:
    kinds = [check_file(path, READ) for path in paths]
    return read_rows([*map(str, paths)], **READ[kinds[0]])


def _check(rows: Dataset, split: str, name: str, args: GlueDataArguments) -> Dataset:
    task, source = GLUE_TASKS[name], f"the {split} data of {name}"
    # labels of test data are secret, and -1 on the Hub
    labelled = not split.startswith("test")
    limit = args.max_train_samples if split == "train" else args.max_eval_samples
    if labelled and limit is not None:
        rows = rows.take(min(limit, len(rows)))
    if not len(rows):
        raise ValueError(f"{source} are empty")
    columns = [*task.columns, "label"] if labelled else [*task.columns]
    if missing := [column for column in columns if column not in rows.column_names]:
        raise ValueError(f"{source} have no column {missing[0]!r}, only {', '.join(rows.column_names)}")
    # test data have labels, too, and all of them numbers
    tell_unread(source, [name for name in rows.column_names if name not in ("label", "idx")], columns)
    rows = rows.select_columns(columns)
    for column in task.columns:
        for number, text in enumerate(rows[column], 1):
            if not isinstance(text, str):
                raise ValueError(f"row {number} of {source} has {text!r} in column {column!r}, not text")
    if not labelled:
        return rows
    most = MAX_SIMILARITY if task.scored else len(task.labels) - 1
    for number, label in enumerate(rows["label"], 1):
        is_number = isinstance(label, int | float) and 0 <= label <= most
        if not is_number or not (task.scored or label == int(label)):
            raise ValueError(f"row {number} of {source} has label {label!r}, not a number from 0 to {most}")
    return rows.cast_column("label", Value("float32" if task.scored else "int64"))
