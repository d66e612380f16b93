import gc
import json
import shutil
import warnings
import weakref
from zipfile import ZipFile

import datasets
import pytest
import torch
import yaml
from glue_rows import WORDS, make_rows, write
from tiny_models import save_model
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    Trainer,
    pipeline,
)

from sublayers.training.commands.glue import main as glue
from sublayers.training.data import glue as glue_data
from sublayers.training.data.glue import GLUE_TASKS
from sublayers.training.data.tokenizers import train_tokenizer

pytestmark = pytest.mark.slow

PARTS = {"m": "matched", "mm": "mismatched"}
FAST = ["--use_cpu", "--disable_tqdm=true", "--max_length=24", "--learning_rate=1e-2"]


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


@pytest.fixture
def files(tmp_path):
    numbers = {"train": 120, "validation": 40, "test": 30}
    rows = {split: make_rows("sst2", number, seed) for seed, (split, number) in enumerate(numbers.items())}
    flags = [f"--{split}_file={write(tmp_path / f'{split}.jsonl', rows[split])}" for split in rows]
    return rows, ["--task_name", "sst2", *flags]


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
    left = {"journal.log", "results.json", "sst2", "submission", "submission.zip"}
    assert {path.name for path in out.iterdir()} == left

    config = AutoConfig.from_pretrained(out / "sst2")
    assert config.problem_type == "single_label_classification"
    classify = pipeline("text-classification", str(out / "sst2"))
    answers = [config.label2id[classify(row["sentence"])[0]["label"]] for row in rows["validation"]]
    right = [row["label"] == answer for row, answer in zip(rows["validation"], answers, strict=True)]
    assert sum(right) / len(right) == best["median"]
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
        (1e-3, 8): {1: 0.99, 2: 0.25},
        (1e-3, 16): {1: 0.8, 2: 0.55},
        (2e-3, 8): {1: 0.4, 2: 0.9},
        (2e-3, 16): {1: 0.1, 2: 0.1},
    }
    out, models, kept = tmp_path / "out", [], {}

    def evaluate(trainer, rows, metric_key_prefix):
        # all but the newest model are gone
        gc.collect()
        assert all(model() is None for model in models)
        models.append(weakref.ref(trainer.model))
        assert len(list(out.glob("sst2*"))) <= 2 + 1
        args = trainer.args
        kept[args.learning_rate, args.per_device_train_batch_size, args.seed] = weights(args.output_dir)
        return {"validation_accuracy": scores[args.learning_rate, args.per_device_train_batch_size][args.seed]}

    def weights(folder):
        return (out / folder / "model.safetensors").read_bytes()

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    settings = tmp_path / "settings.yaml"
    settings.write_text("learning_rates: [1e-3, 2e-3]\nbatch_sizes: [8, 16]\nseeds: [1, 2]\nmax_steps: 1\n")
    flags = ["--model_name_or_path", bert, "--output_dir", str(out), "--warmup_steps", "0"]
    results = glue([str(settings), *files[1], *FAST, *flags])["sst2"]
    points = {(point["learning_rate"], point["batch_size"]): point for point in results["points"]}
    for point, by_seed in scores.items():
        assert {run["seed"]: run["validation"]["accuracy"] for run in points[point]["runs"]} == by_seed
        assert points[point]["median"] == pytest.approx(sum(by_seed.values()) / 2)
    assert results["best"] == points[1e-3, 16]
    assert results["best"]["seed"] == 2
    assert len(set(kept.values())) == 8
    assert weights("sst2") == kept[1e-3, 16, 2]
    assert not [path.name for path in out.iterdir() if path.name.startswith("sst2-")]


def test_the_best_run_of_all_is_selected_over_epochs(tmp_path, files, bert, monkeypatch):
    out = tmp_path / "out"
    scores = {1.0: {1: 0.6, 2: 0.7, 3: 0.6}, 2.0: {1: 0.1, 2: 0.2, 3: 0.9}}
    monkeypatch.setattr(
        Trainer,
        "evaluate",
        lambda trainer, *_, **__: {"validation_accuracy": scores[trainer.args.num_train_epochs][trainer.args.seed]},
    )
    words = [*files[1], *FAST, *["--max_train_samples=2", "--seeds", "1", "2", "3", "--epochs", "1", "2"]]
    words += ["--model_name_or_path", bert, "--warmup_steps", "0", "--output_dir", str(out), "--select"]
    best = glue([*words, "best"])["sst2"]["best"]
    assert (best["epochs"], best["seed"], best["best"]) == (2.0, 3, 0.9)
    shutil.rmtree(out)
    best = glue([*words, "median"])["sst2"]["best"]
    assert (best["epochs"], best["median"], best["seed"]) == (1.0, 0.6, 1)
    with pytest.raises(ValueError, match="--max_steps 3 leaves --epochs without effect"):
        glue([*words, "best", "--max_steps", "3"])


def test_runs_all_tasks_of_a_folder_and_both_parts_of_mnli(tmp_path, bert, capsys):
    data, out = tmp_path / "data", tmp_path / "out"
    for name, folder in {"mnli": "glue_mnli", "stsb": "stsb", "rte": "rte"}.items():
        parts = GLUE_TASKS[name].files
        splits = ["train", *(split + part for split in ("validation", "test") for part in parts)]
        for seed, split in enumerate(splits):
            rows = make_rows(name, 40 + seed, seed)
            # labels of test data are not read
            unlabelled = [row | {"label": -1} for row in rows]
            write(data / folder / f"{split}_some.jsonl", unlabelled if "test" in split else rows)
    write(data / "glue_ax" / "test.jsonl", make_rows("mnli", 30, 9))
    flags = ["--task_name", "all", "--data_dir", str(data), "--model_name_or_path", bert, "--max_steps", "60"]
    results = glue([*flags, *FAST, "--output_dir", str(out), "--max_eval_samples", "7"])
    assert list(results) == ["stsb", "mnli", "rte"]
    said = "".join(capsys.readouterr().out.splitlines())
    assert "no data for cola, sst2, mrpc, qqp, qnli, wnli in" in said
    missing = "CoLA.tsv, SST-2.tsv, MRPC.tsv, QQP.tsv, QNLI.tsv, WNLI.tsv"
    assert f"the benchmark also asks for {missing}".replace(" ", "") in said.replace(" ", "")
    assert results["mnli"]["split"] == "validation_matched"
    assert {"validation_matched", "validation_mismatched"} < results["mnli"]["best"]["runs"][0].keys()
    names = {path.name for path in (out / "submission").iterdir()}
    assert names == {"MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv", "STS-B.tsv", "RTE.tsv"}
    with ZipFile(out / "submission.zip") as archive:
        assert {*archive.namelist()} == names
        assert archive.read("AX.tsv") == (out / "submission" / "AX.tsv").read_bytes()
    tests = {f"MNLI-{part}": data / "glue_mnli" / f"test_{name}_some.jsonl" for part, name in PARTS.items()}
    for file, path in {**tests, "AX": data / "glue_ax" / "test.jsonl"}.items():
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        classify = pipeline("text-classification", str(out / "mnli"))
        expected = [classify({"text": row["premise"], "text_pair": row["hypothesis"]})["label"] for row in rows]
        lines = (out / "submission" / f"{file}.tsv").read_text().splitlines()
        assert [line.split("\t")[1] for line in lines[1:]] == expected
        assert len(set(expected)) > 1
    config = AutoConfig.from_pretrained(out / "stsb")
    assert (config.problem_type, config.num_labels) == ("regression", 1)


def test_a_score_is_one_of_the_benchmark_only_on_all_rows_of_its_split(tmp_path, monkeypatch):
    save_model(tmp_path / "model", head=AutoModelForSequenceClassification, texts=[" ".join(WORDS)])
    rows = {"train": make_rows("mrpc", 20, 0), "validation": make_rows("mrpc", 8, 1)}
    hub = {split: datasets.Dataset.from_list(rows[split]) for split in rows}
    monkeypatch.setattr(glue_data, "load_dataset", lambda *names: hub)
    for split in rows:
        write(tmp_path / "mine" / "mrpc" / f"{split}.jsonl", rows[split])

    def published(name, *flags):
        out = tmp_path / name
        model = ["--model_name_or_path", str(tmp_path / "model"), "--output_dir", str(out), "--max_steps", "1"]
        glue(["--task_name", "mrpc", *flags, *model, *FAST])
        file = out / "mrpc" / ".eval_results" / "sublayers.yaml"
        entries = yaml.safe_load(file.read_text()) if file.exists() else []
        return (out / "mrpc" / "README.md").read_text(), [entry["dataset"] for entry in entries]

    card, datasets_of = published("whole")
    assert datasets_of == [{"id": "nyu-mll/glue", "task_id": "mrpc"}] * 2
    assert "| GLUE mrpc | validation | f1 |" in card
    assert "| evaluated on | GLUE mrpc, 8 rows |" in card
    assert "| learning rate | 0.01 |" in card
    card, datasets_of = published("part", "--max_eval_samples", "5", "--batch_sizes", "4", "--learning_rates", "0.02")
    assert datasets_of == []
    assert "| GLUE mrpc, 5 of its rows | validation | f1 |" in card
    assert "| trained on | GLUE mrpc, 20 rows |" in card
    # the settings are those of the best run
    assert "| learning rate | 0.02 |" in card
    assert "| batch size | 4 |" in card
    card, datasets_of = published("own", "--data_dir", str(tmp_path / "mine"))
    assert datasets_of == []
    assert "| own data: mine mrpc, 8 rows | validation | f1 |" in card
    assert "nyu-mll" not in card
    assert str(tmp_path) not in card


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
    [answer] = pipeline("text-classification", str(tmp_path / "out" / "sst2"))("good film")
    assert answer["label"] in GLUE_TASKS["sst2"].labels
