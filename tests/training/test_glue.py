import gc
import gzip
import json
import math
import random
import statistics
import warnings
import weakref

import datasets
import numpy as np
import pytest
import torch
from common import REFERENCE
from transformers import AutoConfig, BertConfig, BertModel, GPT2Config, GPT2Model, Trainer, pipeline

from sublayers.training import cli, glue_metrics
from sublayers.training.glue import glue
from sublayers.training.glue_metrics import TASKS, GlueDataArguments, GlueMetric, load_task, write_submission
from sublayers.training.tokenizer import train_tokenizer

DATA = REFERENCE.with_name("data")
WORDS = ["good", "fine", "great", "bad", "poor", "awful", "film", "plot", "cast", "song"]
FAST = ["--use_cpu", "--disable_tqdm=true", "--max_length=24", "--learning_rate=1e-2"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    tokenizer = train_tokenizer([" ".join(WORDS)] * 3, "wordpiece", 200)
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=32, **sizes, **ids)).save_pretrained(folder)
    return str(folder)


def make_rows(name, number, seed):
    """Rows whose labels depend on the share of good words in the last text."""
    draw, task, rows = random.Random(seed), TASKS[name], []
    for idx in range(number):
        texts = [" ".join(draw.choices(WORDS, k=draw.randint(3, 8))) for _ in task.columns]
        good = sum(word in WORDS[:3] for word in texts[-1].split()) / len(texts[-1].split())
        label = round(5 * good, 2) if len(task.labels) == 1 else min(int(good * 4), len(task.labels) - 1)
        rows.append(dict(zip(task.columns, texts, strict=True)) | {"label": label, "idx": idx})
    return rows


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def files(tmp_path):
    numbers = {"train": 120, "validation": 40, "test": 30}
    rows = {split: make_rows("sst2", number, seed) for seed, (split, number) in enumerate(numbers.items())}
    flags = [f"--{split}_file={write(tmp_path / f'{split}.jsonl', rows[split])}" for split in rows]
    return rows, ["--task_name", "sst2", *flags]


def naive(name, references, predictions):
    n = len(references)
    pairs = list(zip(references, predictions, strict=True))
    if name == "accuracy":
        return sum(r == p for r, p in pairs) / n
    if name in ("f1", "matthews_correlation"):
        tp, fp, fn, tn = (pairs.count(pair) for pair in ((1, 1), (0, 1), (1, 0), (0, 0)))
        if name == "f1":
            return 2 * tp / (2 * tp + fp + fn)
        return (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    if name == "spearmanr":
        # the rank of a value is the mean of the places that its equals take
        both = ([sum(o < v for o in vs) + sum(o == v for o in vs) / 2 for v in vs] for vs in (references, predictions))
        references, predictions = both
    return statistics.correlation(references, predictions)


@pytest.mark.parametrize("name", TASKS)
def test_metrics_equal_their_definitions(name):
    draw, task = random.Random(0), TASKS[name]
    classes = len(task.labels)
    references, predictions = (
        [draw.randint(0, 20) / 4 if classes == 1 else draw.randrange(classes) for _ in range(50)] for _ in range(2)
    )
    found = GlueMetric(name, keep_in_memory=True).compute(references=references, predictions=predictions)
    assert found == pytest.approx({metric: naive(metric, references, predictions) for metric in task.metrics})


@pytest.mark.parametrize("name", ["cola", "mrpc", "stsb"])
def test_values_that_do_not_vary_score_zero_without_a_warning(name):
    metric = GlueMetric(name, keep_in_memory=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = metric.compute(references=[1, 0, 1], predictions=[0, 0, 0])
        assert found.pop("accuracy", 1 / 3) == pytest.approx(1 / 3)
        assert set(found.values()) == {0}
        if name == "mrpc":
            assert metric.compute(references=[0, 0], predictions=[0, 0]) == {"f1": 0, "accuracy": 1}
        if name == "stsb":
            nothing = metric.compute(references=[1, 0, 1], predictions=[0, math.nan, 2])
            assert set(nothing.values()) == {0}
            # float32 as models give it
            almost = metric.compute(references=[1, 2, 3], predictions=np.array([3, 3, 3.0000002], np.float32))
            assert almost["pearson"] == pytest.approx(math.sqrt(0.75))


def test_the_chosen_model_answers_and_its_predictions_are_submitted(tmp_path, bert, files, capsys):
    rows, flags = files
    out = tmp_path / "out"
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        flags = [*flags, *FAST, "--model_name_or_path", bert, "--num_train_epochs", "8", "--batch_sizes", "8"]
        results = glue([*flags, "--output_dir", str(out), "--seeds", "3", "4", "5"])
    assert results == json.loads((out / "results.json").read_text())
    best = results["sst2"]["best"]
    assert [run["seed"] for run in best["runs"]] == [3, 4, 5]
    scores = {run["seed"]: run["validation"]["accuracy"] for run in best["runs"]}
    assert best["median"] == sorted(scores.values())[1] == scores[best["seed"]] > 0.7
    assert {path.name for path in out.iterdir()} == {"results.json", "sst2", "submission"}

    config = AutoConfig.from_pretrained(out / "sst2")
    assert config.problem_type == "single_label_classification"
    classify = pipeline("text-classification", str(out / "sst2"))
    answers = [config.label2id[classify(row["sentence"])[0]["label"]] for row in rows["validation"]]
    assert naive("accuracy", [row["label"] for row in rows["validation"]], answers) == best["median"]
    lines = (out / "submission" / "SST-2.tsv").read_text().splitlines()
    answers = [config.label2id[classify(row["sentence"])[0]["label"]] for row in rows["test"]]
    assert lines == ["index\tprediction", *(f"{n}\t{answer}" for n, answer in enumerate(answers))]
    assert set(answers) == {0, 1}
    assert f"{100 * best['median']:.1f}" in capsys.readouterr().out

    # a seed decides on everything, the new head included
    again = tmp_path / "again"
    glue([*flags, "--output_dir", str(again), "--seed", str(best["seed"])])
    assert (again / "sst2" / "model.safetensors").read_bytes() == (out / "sst2" / "model.safetensors").read_bytes()
    # and what was trained can be evaluated without training
    flags = ["--model_name_or_path", str(out / "sst2"), "--do_eval", "--output_dir", str(tmp_path / "evaluated")]
    evaluated = glue([*files[1], *FAST, *flags])
    assert evaluated["sst2"]["best"]["median"] == best["median"]


def test_the_best_point_is_that_of_the_best_median_and_its_lower_median_run_is_kept(tmp_path, bert, files, monkeypatch):
    # the best single run is at another point than the best median
    scores = {
        (1e-3, 8): {1: 0.3, 2: 0.99, 3: 0.2, 4: 0.4},
        (1e-3, 16): {1: 0.6, 2: 0.5, 3: 0.8, 4: 0.55},
        (2e-3, 8): {1: 0.9, 2: 0.4, 3: 0.7, 4: 0.1},
        (2e-3, 16): {1: 0.1, 2: 0.1, 3: 0.1, 4: 0.1},
    }
    out, models, kept = tmp_path / "out", [], {}

    def evaluate(trainer, rows, metric_key_prefix):
        # all but the newest model are gone
        gc.collect()
        assert all(model() is None for model in models)
        models.append(weakref.ref(trainer.model))
        assert len(list(out.glob("sst2*"))) <= 4 + 1
        args = trainer.args
        kept[args.learning_rate, args.per_device_train_batch_size, args.seed] = weights(args.output_dir)
        return {"validation_accuracy": scores[args.learning_rate, args.per_device_train_batch_size][args.seed]}

    def weights(folder):
        return (out / folder / "model.safetensors").read_bytes()

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    settings = tmp_path / "settings.yaml"
    settings.write_text("learning_rates: [1e-3, 2e-3]\nbatch_sizes: [8, 16]\nseeds: [1, 2, 3, 4]\nmax_steps: 1\n")
    flags = ["--model_name_or_path", bert, "--output_dir", str(out), "--warmup_steps", "0"]
    results = glue([str(settings), *files[1], *FAST, *flags])["sst2"]
    points = {(point["learning_rate"], point["batch_size"]): point for point in results["points"]}
    for point, by_seed in scores.items():
        assert {run["seed"]: run["validation"]["accuracy"] for run in points[point]["runs"]} == by_seed
        assert points[point]["median"] == pytest.approx(sum(sorted(by_seed.values())[1:3]) / 2)
    assert results["best"] == points[1e-3, 16]
    assert results["best"]["seed"] == 4
    assert len(set(kept.values())) == 16
    assert weights("sst2") == kept[1e-3, 16, 4]
    assert {path.name for path in out.iterdir()} == {"results.json", "sst2", "submission"}


def test_runs_all_tasks_of_a_folder_and_both_parts_of_mnli(tmp_path, bert, capsys):
    data, out = tmp_path / "data", tmp_path / "out"
    for name, folder in {"mnli": "glue_mnli", "stsb": "stsb", "rte": "rte"}.items():
        parts = TASKS[name].files
        splits = ["train", *(split + part for split in ("validation", "test") for part in parts)]
        for seed, split in enumerate(splits):
            rows = make_rows(name, 40 + seed, seed)
            # labels of test data are not read
            write(
                data / folder / f"{split}_some.jsonl", [row | {"label": -1} if "test" in split else row for row in rows]
            )
    flags = ["--task_name", "all", "--data_dir", str(data), "--model_name_or_path", bert, "--max_steps", "60"]
    results = glue([*flags, *FAST, "--output_dir", str(out), "--max_eval_samples", "7"])
    assert list(results) == ["stsb", "mnli", "rte"]
    assert "no data for cola, sst2, mrpc, qqp, qnli, wnli in" in capsys.readouterr().out
    assert results["mnli"]["split"] == "validation_matched"
    assert {"validation_matched", "validation_mismatched"} < results["mnli"]["best"]["runs"][0].keys()
    assert {path.name for path in (out / "submission").iterdir()} == {
        "MNLI-m.tsv",
        "MNLI-mm.tsv",
        "STS-B.tsv",
        "RTE.tsv",
    }
    for part, file in TASKS["mnli"].files.items():
        rows = [json.loads(line) for line in (data / "glue_mnli" / f"test{part}_some.jsonl").read_text().splitlines()]
        classify = pipeline("text-classification", str(out / "mnli"))
        expected = [classify({"text": row["premise"], "text_pair": row["hypothesis"]})["label"] for row in rows]
        lines = (out / "submission" / f"{file}.tsv").read_text().splitlines()
        assert [line.split("\t")[1] for line in lines[1:]] == expected
        assert len(set(expected)) > 1
    config = AutoConfig.from_pretrained(out / "stsb")
    assert (config.problem_type, config.num_labels) == ("regression", 1)


def test_a_submission_has_the_benchmarks_format(tmp_path):
    write_submission(TASKS["stsb"], np.array([-0.2, 3.14159, 7], np.float32), tmp_path / "new" / "STS-B.tsv")
    assert (tmp_path / "new" / "STS-B.tsv").read_text() == "index\tprediction\n0\t0.000\n1\t3.142\n2\t5.000\n"
    write_submission(TASKS["qnli"], np.array([1, 0]), tmp_path / "QNLI.tsv")
    assert (tmp_path / "QNLI.tsv").read_text() == "index\tprediction\n0\tnot_entailment\n1\tentailment\n"
    write_submission(TASKS["wnli"], np.array([1, 0]), tmp_path / "WNLI.tsv")
    assert (tmp_path / "WNLI.tsv").read_text() == "index\tprediction\n0\t1\n1\t0\n"
    # where these are names for people only
    assert TASKS["wnli"].labels == ("not_entailment", "entailment")
    with pytest.raises(FileExistsError):
        write_submission(TASKS["wnli"], np.array([1, 0]), tmp_path / "WNLI.tsv")


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

    monkeypatch.setattr(glue_metrics, "load_dataset", load_dataset)
    splits = load_task("rte", GlueDataArguments())
    load_task("rte", GlueDataArguments(dataset_name="mine/glue"))
    assert asked == [("nyu-mll/glue", "rte"), ("mine/glue", "rte")]
    assert splits["train"]["label"][:] == [row["label"] for row in rows["train"]]
    assert splits["validation"].features["label"] == datasets.Value("int64")
    assert list(splits["test"]) == [{column: row[column] for column in TASKS["rte"].columns} for row in rows["test"]]


def test_a_head_of_another_task_is_replaced_and_never_evaluated_as_one_of_this(tmp_path, bert, files):
    flags = ["--model_name_or_path", bert, *FAST, "--max_steps", "1"]
    train = write(tmp_path / "stsb.jsonl", make_rows("stsb", 20, 0))
    data = [f"--train_file={train}", f"--validation_file={train}"]
    glue(["--task_name=stsb", *data, *flags, f"--output_dir={tmp_path}/a"])
    flags = [*files[1], *FAST, "--max_steps", "1", "--model_name_or_path", str(tmp_path / "a" / "stsb")]
    message = "stsb has the labels similarity, but sst2 has negative, positive; fine-tune it with --do_train"
    with pytest.raises(ValueError, match=message):
        glue([*flags, "--do_predict", "--output_dir", str(tmp_path / "b")])
    glue([*flags, "--output_dir", str(tmp_path / "b")])
    config = AutoConfig.from_pretrained(tmp_path / "b" / "sst2")
    assert config.id2label == {0: "negative", 1: "positive"}
    assert config.problem_type == "single_label_classification"


def test_a_model_without_a_padding_token_is_fine_tuned(tmp_path, files):
    tokenizer = train_tokenizer([" ".join(WORDS)] * 3, "bpe", 300)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path / "gpt2")
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=16, n_layer=1, n_head=2, **ids)
    GPT2Model(config).save_pretrained(tmp_path / "gpt2")
    flags = ["--model_name_or_path", str(tmp_path / "gpt2"), "--output_dir", str(tmp_path / "out"), "--max_steps", "2"]
    glue([*files[1], *FAST, *flags])
    assert (
        pipeline("text-classification", str(tmp_path / "out" / "sst2"))("good film")[0]["label"] in TASKS["sst2"].labels
    )


GOOD = {"sentence1": "a", "sentence2": "b", "label": 1}
BAD_ROWS = {
    "too large a label": (GOOD | {"label": 2}, "row 3 of the train data of mrpc has label 2, not a number from 0 to 1"),
    "an unknown label": (GOOD | {"label": -1}, "row 3 of the train data of mrpc has label -1, not"),
    "no label": (GOOD | {"label": None}, "row 3 of the train data of mrpc has label None, not"),
    "half a label": (GOOD | {"label": 0.5}, "row 3 of the train data of mrpc has label 0.5, not"),
    "no text": (GOOD | {"sentence2": None}, "row 3 of the train data of mrpc has None in column 'sentence2', not text"),
}


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_is_named(case, split, tmp_path):
    row, message = BAD_ROWS[case]
    paths = {
        s: write(tmp_path / f"{s}.jsonl", [GOOD, GOOD, row if s == split else GOOD]) for s in ("train", "validation")
    }
    files = {f"{split}_file": path for split, path in paths.items()}
    with pytest.raises(ValueError, match="row 3") as raised:
        load_task("mrpc", GlueDataArguments(**files))
    assert message.replace("train", split) in str(raised.value)
    # what is not used may be anything
    load_task("mrpc", GlueDataArguments(**files, max_train_samples=2, max_eval_samples=2))


@pytest.mark.parametrize("label", [5.1, -0.1, math.nan])
def test_a_similarity_is_from_0_to_5(label, tmp_path):
    path = write(tmp_path / "rows.jsonl", [GOOD | {"label": 4.5}, GOOD | {"label": label}])
    with pytest.raises(ValueError, match=r"row 2 of the validation data of stsb has label .* from 0 to 5"):
        load_task("stsb", GlueDataArguments(validation_file=path), train=False)


BAD = {
    "an unknown task": (["--task_name", "sst-2"], "unknown task 'sst-2', did you mean 'sst2'?; choose from cola"),
    "an unknown option": (["--sed", "1"], "unknown option 'sed', did you mean 'seed'?"),
    "a missing column": (["--task_name", "cola"], "the train data of cola have no column 'sentence', only sentence1"),
    "no rows": (["--validation_file", "{empty}"], "empty.jsonl is empty"),
    "no rows wanted": (["--max_eval_samples", "0"], "the validation data of mrpc are empty"),
    "no table": (["--train_file", "{notes}"], "notes.txt has none of the known endings .json"),
    "a broken file": (["--train_file", "{broken}"], "the data of mrpc cannot be read: "),
    "no file": (["--train_file", "nowhere.jsonl"], "there is no file nowhere.jsonl"),
    "no training data": (["--train_file", ""], "there are no train data for mrpc, only validation"),
    "two sources": (["--data_dir", "data"], "--dataset_name, --data_dir and files exclude each other"),
    "files for all": (["--task_name", "all"], "files hold one task; give its --task_name, or for all a --data_dir"),
    "too many tokens": (["--max_length", "33"], "max_length=33 is not between 5 and the model's 32; give another"),
    "too few tokens": (["--max_length", "4"], "max_length=4 is not between 5 and the model's 32; give another"),
    "no batch": (["--batch_sizes", "8", "0"], "batch size 0 is not a positive number"),
    "one seed twice": (["--seeds", "1", "1"], "--seeds 1 1 has a value twice"),
    "a checkpoint": (["--resume_from_checkpoint", "x"], "leave --resume_from_checkpoint out"),
    "nothing trained": (["--do_eval"], "has the labels LABEL_0, LABEL_1, but mrpc has not_equivalent, equivalent"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(case, tmp_path, bert, capsys):
    flags, message = BAD[case]
    good = write(tmp_path / "good.jsonl", [GOOD] * 3)
    paths = {name: tmp_path / f"{name}.jsonl" for name in ("empty", "broken")} | {"notes": tmp_path / "notes.txt"}
    for name, text in {"empty": "", "broken": '{"a": 1', "notes": "a"}.items():
        paths[name].write_text(text)
    usual = [f"--train_file={good}", f"--validation_file={good}", f"--model_name_or_path={bert}", "--task_name=mrpc"]
    flags = [flag.format(**paths) for flag in flags]
    with pytest.raises(SystemExit) as stopped:
        cli.main(["glue", *usual, *FAST, "--output_dir", str(tmp_path / "out"), *flags])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert message in said.splitlines()[-1]
    assert "Traceback" not in said
    # nothing is in the way of the corrected command
    assert not (tmp_path / "out").exists()


def test_folders_without_data_and_full_ones_are_refused(tmp_path, bert):
    flags = ["--model_name_or_path", bert, *FAST, "--data_dir", str(tmp_path), "--output_dir"]
    with pytest.raises(FileNotFoundError, match="there is neither a folder cola nor glue_cola in"):
        glue([*flags, str(tmp_path / "out"), "--task_name", "cola"])
    with pytest.raises(FileNotFoundError, match="there is no folder of any task in"):
        glue([*flags, str(tmp_path / "out"), "--task_name", "all"])
    with pytest.raises(FileExistsError, match="is not empty"):
        glue([*flags, bert, "--task_name", "cola"])


@pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not there")
def test_reads_the_real_data():
    rows = {"cola": (8551, 1043), "sst2": (67349, 872), "mrpc": (3668, 408), "stsb": (5749, 1500), "wnli": (635, 71)}
    for name, numbers in rows.items():
        splits = load_task(name, GlueDataArguments(data_dir=str(DATA)))
        assert (len(splits["train"]), len(splits["validation"])) == numbers
    splits = load_task("mnli", GlueDataArguments(data_dir=str(DATA)))
    assert {len(splits[f"validation{part}"]) for part in TASKS["mnli"].files} == {9815, 1000}
