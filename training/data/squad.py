"""SQuAD (Rajpurkar et al., 2016; version 2: 2018): reading the questions, and cutting their contexts into windows."""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import fsspec
from datasets import Dataset, Features, List, Value, load_dataset
from transformers import PreTrainedTokenizerBase

from sublayers.tasks.windows import context_windows
from sublayers.training.data.files import check_file, first_rows, named_files, read_rows, reading, tell_unread
from sublayers.training.flags import flag

TEXT = Value("string")
ANSWERS = {"text": List(TEXT), "answer_start": List(Value("int32"))}
COLUMNS = Features({"id": TEXT, "question": TEXT, "context": TEXT, "answers": ANSWERS})
# columns of windows that are not inputs of a model
PLACE = ["example", "context_start", "offsets", "cls_index"]


@dataclass
class SquadDataArguments:
    """Flags for the questions and the windows of their contexts."""

    _argument_group_name: ClassVar[str] = "data and windows"

    dataset_name: str | None = flag(
        "data set on the Hub; default: rajpurkar/squad, or rajpurkar/squad_v2 with --version_2"
    )
    train_file: str | None = flag(
        ".json in SQuAD's nested form, or .jsonl or .parquet in the Hub's; also compressed (.gz)"
    )
    validation_file: str | None = flag("as --train_file")
    version_2: bool = flag("questions may have no answer", False)
    max_seq_length: int = flag("tokens in a window, with its question", 384)
    doc_stride: int = flag("tokens that neighbouring windows share", 128)
    max_train_samples: int | None = flag("use the first questions only")
    max_eval_samples: int | None = flag("as --max_train_samples")


def hub_name(args: SquadDataArguments) -> str:
    """Name the data set on the Hub that is read without other flags."""
    return "rajpurkar/squad_v2" if args.version_2 else "rajpurkar/squad"


def load_questions(split: str, args: SquadDataArguments) -> Dataset:
    """Load the questions of the split `train` or `validation`.

    Returns:
        Columns `id`, `question`, `context` and `answers`, which holds the lists `text` and `answer_start`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: there are no data, they cannot be read, lack a column or have an id twice.
    """
    files = named_files(args)
    if files and split not in files:
        other = {"train": "--do_eval to evaluate", "validation": "--do_train to train"}[split]
        raise ValueError(f"there are no {split} data; give --{split}_file, or {other} only")
    source = files.get(split) or args.dataset_name or hub_name(args)
    with reading(source, "give --train_file and --validation_file"):
        rows = _read_file(source) if files else load_dataset(source, split=split)
        if missing := [name for name in COLUMNS if name not in rows.column_names]:
            raise ValueError(f"{source} has no column {missing[0]!r}, only {', '.join(rows.column_names)}")
        if files:
            tell_unread(source, rows.column_names, list(COLUMNS))
        try:
            rows = rows.select_columns(list(COLUMNS)).cast(COLUMNS)
        except TypeError as error:
            raise ValueError(f"{source} cannot be read: {error}") from error
    if not len(rows):
        raise ValueError(f"{source} holds no questions")
    if len(set(rows["id"])) < len(rows):
        raise ValueError(f"{source} holds several questions with one id; give each its own")
    number = args.max_train_samples if split == "train" else args.max_eval_samples
    return first_rows(rows, number, f"{split} question")


def answer_windows(
    rows: Dataset, tokenizer: PreTrainedTokenizerBase, args: SquadDataArguments, training: bool
) -> Dataset:
    """Cut the contexts of questions into windows that hold the position of the answer.

    Args:
        rows: columns `id`, `question`, `context` and `answers`.
        tokenizer: a fast one.
        args: lengths of windows and version.
        training: whether answers must be right; in evaluation only their texts count.

    Returns:
        A row per window: the model's inputs and the first answer's `start_positions` and `end_positions`, its first
        and last token, or both the position of [CLS] where the window does not hold all of it. In evaluation also
        what `context_windows` says of windows.

    Raises:
        ValueError: an empty question or context, no answer in version 1, in training an answer that is not where
            `answer_start` says, or windows that are too short.
    """

    def cut(batch: dict[str, list], indices: list[int]) -> dict[str, list]:
        for name, question, context, answers in zip(*(batch[column] for column in COLUMNS), strict=True):
            _check(name, question, context, answers, args.version_2, training)
        encoding = context_windows(tokenizer, batch["question"], batch["context"], args.max_seq_length, args.doc_stride)
        windows = {name: encoding.pop(name) for name in PLACE}
        spans = []
        for example, first, offsets, cls_index in zip(*windows.values(), strict=True):
            span = _token_span(offsets, batch["answers"][example])
            spans.append((first + span[0], first + span[1]) if span else (cls_index, cls_index))
        encoding["start_positions"], encoding["end_positions"] = map(list, zip(*spans, strict=True))
        windows["example"] = [indices[example] for example in windows["example"]]
        return encoding.data if training else encoding.data | windows

    options = {"batched": True, "with_indices": True, "remove_columns": rows.column_names}
    return rows.map(cut, desc=f"cutting {'training' if training else 'evaluation'} contexts", **options)


def read_json(path: str) -> Any:
    """Read a .json file, also compressed.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it cannot be read.
    """
    with reading(path), fsspec.open(path, "rt", encoding="utf-8", compression="infer") as file:
        return json.load(file)


def _read_file(path: str) -> Dataset:
    if check_file(path, (".json", ".jsonl", ".parquet")) != ".json":
        return read_rows([path])
    try:
        rows = list(_nested_rows(path))
        return Dataset.from_dict({name: [row[name] for row in rows] for name in COLUMNS}, features=COLUMNS)
    except (LookupError, TypeError) as error:
        raise ValueError(f"{path} is not nested as SQuAD is ({error}); give flat rows as .jsonl or .parquet") from error


def _nested_rows(path: str) -> Iterator[dict[str, Any]]:
    for article in read_json(path)["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                answers = {name: [answer[name] for answer in question["answers"]] for name in ANSWERS}
                row = {"id": question["id"], "question": question["question"]}
                yield {**row, "context": paragraph["context"], "answers": answers}


def _check(name: str, question: str, context: str, answers: Any, version_2: bool, training: bool) -> None:
    for what, text in (("question", question), ("context", context)):
        if not (text and text.strip()):
            raise ValueError(f"question {name!r} has an empty {what}; leave it out")
    texts, starts = ((answers or {}).get(part) for part in ANSWERS)
    if texts is None or starts is None or None in [*texts, *starts] or len(texts) != len(starts):
        raise ValueError(
            f"question {name!r} has the answers {answers}; give each a text and an answer_start, and a question "
            "without any two empty lists"
        )
    if not texts:
        if not version_2:
            raise ValueError(f"question {name!r} has no answer; give --version_2 if some questions have none")
        return
    text, start = texts[0], starts[0]
    if training and (start < 0 or not text or not context.startswith(text, start)):
        place = context.find(text)
        elsewhere = f"but at {place}" if text and place >= 0 else "nor anywhere else in it"
        raise ValueError(
            f"the answer {text!r} of question {name!r} is not at answer_start={start} of its context, {elsewhere}; "
            "correct it or leave the question out"
        )


def _token_span(offsets: list[tuple[int, int]], answers: dict[str, list]) -> tuple[int, int] | None:
    if not (offsets and answers["text"]):
        return None
    text, start = answers["text"][0], answers["answer_start"][0]
    # no token holds white space
    start, end = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
    first = bisect_right(offsets, start, key=lambda token: token[1])
    last = bisect_left(offsets, end, key=lambda token: token[0]) - 1
    return (first, last) if offsets[0][0] <= start and end <= offsets[-1][1] and first <= last else None
