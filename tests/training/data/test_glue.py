import gzip
import json
import math
from pathlib import Path

import datasets
import pytest
from glue_rows import GOOD, make_rows, write

from sublayers.training.data import glue as glue_data
from sublayers.training.data.glue import GLUE_TASKS, GlueDataArguments, load_task

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "json", "jsonl.gz", "shards"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path, kind):
    rows = make_rows("mrpc", 20, 0)
    # what a table may take for a missing value or for the end of a cell
    rows[0] |= {"sentence1": "None", "sentence2": 'a "quoted"\tNA, and\nmore'}
    expected = {column: [row[column] for row in rows] for column in ("sentence1", "sentence2", "label")}
    folder = tmp_path / "mrpc"
    folder.mkdir()
    table = datasets.Dataset.from_list(rows)
    for split in ("train", "validation"):
        path = str(folder / f"{split}.{kind}")
        if kind == "parquet":
            table.to_parquet(path)
        elif kind in ("csv", "tsv"):
            table.to_csv(path, sep="\t" if kind == "tsv" else ",")
        elif kind == "shards":
            write(folder / f"{split}-00000-of-00002.jsonl", rows[:12])
            write(folder / f"{split}-00001-of-00002.jsonl", rows[12:])
        else:
            text = "".join(json.dumps(row) + "\n" for row in rows).encode()
            (folder / f"{split}.{kind}").write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
    splits = load_task("mrpc", GlueDataArguments(data_dir=str(tmp_path)))
    assert {split: rows.to_dict() for split, rows in splits.items()} == {"train": expected, "validation": expected}
    assert load_task("mrpc", GlueDataArguments(data_dir=str(tmp_path)), train=False).keys() == {"validation"}


def test_the_hub_gives_what_no_files_do(monkeypatch):
    rows = {"train": make_rows("rte", 9, 0), "validation": make_rows("rte", 8, 1), "test": make_rows("rte", 7, 2)}
    rows["test"] = [row | {"label": -1} for row in rows["test"]]
    kind = datasets.ClassLabel(names=["entailment", "not_entailment"])
    hub = {split: datasets.Dataset.from_list(rows[split]).cast_column("label", kind) for split in rows}
    asked = []

    def load_dataset(*names):
        asked.append(names)
        return hub

    monkeypatch.setattr(glue_data, "load_dataset", load_dataset)
    splits = load_task("rte", GlueDataArguments())
    load_task("rte", GlueDataArguments(dataset_name="mine/glue"))
    assert asked == [("nyu-mll/glue", "rte"), ("mine/glue", "rte")]
    assert splits["train"]["label"][:] == [row["label"] for row in rows["train"]]
    assert splits["validation"].features["label"] == datasets.Value("int64")
    assert list(splits["test"]) == [
        {column: row[column] for column in GLUE_TASKS["rte"].columns} for row in rows["test"]
    ]


def test_the_diagnostic_data_come_with_those_of_mnli(monkeypatch):
    parts = [f"{split}_{part}" for split in ("validation", "test") for part in ("matched", "mismatched")]
    mnli = {split: datasets.Dataset.from_list(make_rows("mnli", 5, 0)) for split in ("train", *parts)}
    ax = datasets.Dataset.from_list([row | {"label": -1} for row in make_rows("mnli", 7, 1)])
    monkeypatch.setattr(glue_data, "load_dataset", lambda _, name: {"mnli": mnli, "ax": {"test": ax}}[name])
    splits = load_task("mnli", GlueDataArguments())
    assert splits["test_ax"]["hypothesis"][:] == ax["hypothesis"][:]
    assert splits["test_ax"].column_names == ["premise", "hypothesis"]
    # others may not have them
    assert load_task("mnli", GlueDataArguments(dataset_name="mine/glue")).keys() == mnli.keys()


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize(
    ("task", "bad", "message"),
    [
        ("mrpc", {"label": 2}, "label 2, not a number from 0 to 1"),
        ("mrpc", {"label": -1}, "label -1, not"),
        ("mrpc", {"label": None}, "label None, not"),
        ("mrpc", {"label": 0.5}, "label 0.5, not"),
        ("mrpc", {"sentence2": None}, "None in column 'sentence2', not text"),
        *(("stsb", {"label": label}, f"label {label}, not a number from 0 to 5") for label in (5.1, -0.1, math.nan)),
    ],
)
def test_a_bad_row_is_named(task, bad, message, split, tmp_path):
    # 4.5 is a similarity
    good = GOOD | ({"label": 4.5} if task == "stsb" else {})
    rows = {"train": [good, good, good], "validation": [good, good, good]}
    rows[split][2] = good | bad
    files = {f"{name}_file": write(tmp_path / f"{name}.jsonl", rows[name]) for name in rows}
    with pytest.raises(ValueError, match=f"^row 3 of the {split} data of {task} has {message}"):
        load_task(task, GlueDataArguments(**files))
    # what is not used may be anything
    load_task(task, GlueDataArguments(**files, max_train_samples=2, max_eval_samples=2))


@pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not there")
@pytest.mark.slow
@pytest.mark.full
def test_reads_the_real_data():
    rows = {"cola": (8551, 1043), "sst2": (67349, 872), "mrpc": (3668, 408), "stsb": (5749, 1500), "wnli": (635, 71)}
    for name, numbers in rows.items():
        splits = load_task(name, GlueDataArguments(data_dir=str(DATA)))
        assert (len(splits["train"]), len(splits["validation"])) == numbers
    splits = load_task("mnli", GlueDataArguments(data_dir=str(DATA)))
    assert {len(splits[f"validation{part}"]) for part in GLUE_TASKS["mnli"].files} == {9815, 1000}


def test_where_the_hub_is_out_of_reach_files_are_asked_for(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    said = (
        r"the data of mrpc cannot be read from the Hub \(.*\); give --data_dir, or --train_file and --validation_file"
    )
    with pytest.raises(FileNotFoundError, match=said):
        load_task("mrpc", GlueDataArguments())
