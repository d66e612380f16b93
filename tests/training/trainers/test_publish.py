import json
import shlex
from datetime import date, timedelta
from types import SimpleNamespace

import pytest
from hub_repository import ANN
from transformers import AutoModelForCausalLM, BertConfig, BertForMaskedLM

from sublayers.training.commands.pretrain import main as pretrain
from sublayers.training.data.files import Used
from sublayers.training.trainers.arguments import TrainerArguments
from sublayers.training.trainers.publish import (
    all_arguments,
    card_settings,
    command_line,
    describe_data,
    describe_used,
    result,
    training_settings,
)
from sublayers.training.trainers.resumable_trainer import ResumableTrainer

pytest_plugins = ["hub_server"]
HUB = {"name": "GLUE sst2", "id": "nyu-mll/glue"}


@pytest.mark.parametrize(
    "given",
    [
        "--hub_token hf_x",
        "--hub_token=hf_x",
        "--hub-token hf_x",
        "--push_to_hub_token 'hf_x'",
        "--token=hf_x",
        "--storage postgresql://ann:secret@host/db",
    ],
)
def test_a_command_is_told_without_tokens_and_passwords(given):
    words = ["sublayers", "glue", *shlex.split(given), "--max_tokens", "5", "--sublayer_order", "s(sf)2f"]
    assert command_line(words) == "sublayers glue --max_tokens 5 --sublayer_order 's(sf)2f'"


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("/home/ann/her texts/a.txt", "a.txt"),
        ("--train_file=/home/ann/a.txt", "--train_file=a.txt"),
        ("../ann/a.txt", "a.txt"),
        ("runs/../../ann/a.txt", "a.txt"),
        ("~/ann/a.txt", "a.txt"),
        ("C:\\Users\\ann\\a.txt", "a.txt"),
        ('{"file": "/home/ann/a.txt"}', '{"file": "a.txt"}'),
        *((word, word) for word in ("runs/bert", "ann/bert", "https://host/a/b", "s/f", "1/2")),
    ],
)
def test_a_command_is_told_without_the_folders_of_whoever_ran_it(word, told):
    assert shlex.split(command_line([word])) == [told]


def test_all_arguments_are_told_but_for_secrets_and_places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("text")
    args = TrainerArguments(output_dir=str(tmp_path / "run"), report_to="none", use_cpu=True, weight_decay=0.1)
    own = SimpleNamespace(
        train_file=[str(tmp_path / "texts.txt"), "/gone/a.txt"], seeds=[], storage="ann@host", layers=0
    )
    told = all_arguments(
        args, own, {"model": "ann/bert", "rope": {"theta": 1.5}, "hub_token": "hf_x", "streaming": False}
    )
    assert json.loads(json.dumps(told)) == told
    assert told["train_file"] == ["texts.txt", "a.txt"]
    assert (told["output_dir"], told["model"], told["learning_rate"]) == ("run", "ann/bert", 5e-5)
    assert {*told} & {"storage", "hub_token", "push_to_hub_token"} == set()
    assert str(tmp_path) not in json.dumps(told)
    shown = {"train_file": "texts.txt a.txt", "layers": 0, "model": "ann/bert", "rope": "{'theta': 1.5}"}
    assert card_settings(told) == {"use_cpu": "True"} | shown
    assert training_settings(args)["weight decay"] == 0.1


def test_data_are_named_by_file_folder_link_or_id(tmp_path):
    def flags(dataset_name=None, **files):
        return SimpleNamespace(dataset_name=dataset_name, **files)

    for named, config, described in (
        (None, None, HUB),
        (None, "sst2", HUB | {"config": "sst2"}),
        ("ann/texts", "de", {"name": "ann/texts de", "id": "ann/texts", "config": "de"}),
        ("ann/texts", None, {"name": "ann/texts", "id": "ann/texts"}),
        (str(tmp_path), None, {"name": tmp_path.name, "own": True}),
    ):
        assert describe_data(flags(dataset_name=named), HUB, config) == [{"role": "data", **described}]
    own = SimpleNamespace(dataset_name=None, data_dir=str(tmp_path))
    assert describe_data(own, HUB, "sst2") == [{"role": "data", "name": f"{tmp_path.name} sst2", "own": True}]
    (tmp_path / "reviews").symlink_to(tmp_path)
    own.data_dir = str(tmp_path / "reviews")
    assert describe_data(own, HUB, "sst2") == [{"role": "data", "name": "reviews sst2", "own": True}]
    files = describe_data(flags(train_file=["a/train.de", "a/train.en"], validation_file="b/dev.jsonl"), HUB)
    roles = {"trained on": "train.de, train.en", "evaluated on": "dev.jsonl"}
    assert files == [{"role": role, "name": name, "own": True} for role, name in roles.items()]


def test_a_folder_that_is_called_like_a_data_set_of_the_hub_is_not_it(tmp_path, monkeypatch):
    (tmp_path / HUB["id"]).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for name in (None, HUB["id"]):
        described = describe_data(SimpleNamespace(dataset_name=name), HUB, "sst2")
        assert described == [{"role": "data", "name": "glue sst2", "own": True}]


def test_only_a_score_on_all_rows_of_a_split_of_the_hub_is_one_of_its_data_set():
    def dataset(data, **read):
        found = result(describe_used(data, {"validation": Used(**read)}), "validation", "f1", 1.0, 0)
        return found["dataset"], found.get("id"), found.get("config")

    hub, files = [{"role": "data", **HUB, "config": "sst2"}], [{"role": "trained on", "name": "a.txt", "own": True}]
    assert dataset(hub, rows=1872, whole=True) == ("GLUE sst2", "nyu-mll/glue", "sst2")
    assert dataset(hub, rows=None, whole=True) == ("GLUE sst2", "nyu-mll/glue", "sst2")
    assert dataset(hub, rows=1500, whole=False) == ("GLUE sst2, 1,500 of its rows", None, None)
    assert dataset(hub, rows=None, whole=False) == ("GLUE sst2, a part of it", None, None)
    assert dataset(files, rows=9, whole=True) == ("own data: a.txt, 9 rows", None, None)


def test_a_run_publishes_model_scores_and_card_at_its_end(hub, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("HF_TOKEN", "")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"line {n} of a tiny corpus\n" for n in range(60)))
    sizes = "--sublayer_order sfsff --hidden_size 16 --intermediate_size 32 --num_attention_heads 2 --block_size 16"
    steps = "--max_steps 4 --save_steps 2 --tokenizer_model byte --use_cpu --disable_tqdm true --report_to none"
    where = ["--train_file", str(corpus), "--output_dir", str(tmp_path / "run")]
    publishing = ["--push_to_hub", "--hub_model_id", "ann/lm", "--hub_private_repo", "true", "--hub_token", ANN]
    metrics = pretrain([*sizes.split(), *steps.split(), *where, *publishing])

    repository = hub.repositories["ann/lm"]
    assert repository.private
    # the first is the Hub's own
    assert len(repository.history("main")) == 2
    card = repository.files()["README.md"].content.decode()
    assert f"| perplexity | {metrics['eval_perplexity']:.4g} | 42 |" in card
    assert "--sublayer_order sfsff" in card
    assert "![Loss" in card
    assert {"loss_curve.png", "modeling_sandwich_lm.py"} <= repository.files().keys()
    assert not any(name.endswith(".bin") for name in repository.files())
    published = [file.content for file in repository.files().values()]
    written = published + [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any(ANN.encode() in content for content in written)
    assert ANN not in "".join(capfd.readouterr())
    AutoModelForCausalLM.from_pretrained("ann/lm", cache_dir=tmp_path / "empty", token=ANN)

    run = json.loads((tmp_path / "run" / "run.json").read_text())
    found = {(score["metric"], score["seed"]): score["value"] for score in run["results"]}
    assert found["perplexity", 42] == metrics["eval_perplexity"]
    assert run["seeds"] == [42]
    assert abs(date.today() - date.fromisoformat(run["date"])) <= timedelta(days=1)
    own = {"name": "corpus.txt", "own": True, "whole": False}
    roles = {"train": ("trained on", 57), "validation": ("evaluated on", 3)}
    assert run["data"] == [{**own, "role": role, "split": split, "rows": rows} for split, (role, rows) in roles.items()]
    assert "date" not in run["machine"]
    assert card.count(run["date"]) == 1
    told = {"steps": 4, "learning rate": 5e-4, "batch size": 8, "warmup": "5 % of the steps", "schedule": "cosine"}
    assert told.items() <= run["settings"].items()
    assert all(f"| {name} | {value} |" in card for name, value in told.items())
    assert "| evaluated on | own data: corpus.txt, 3 of its rows |" in card
    assert not any(str(tmp_path).encode() in content for content in published)
    assert "base_model" not in run


def test_models_of_others_are_published_as_ever(tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr("transformers.Trainer.push_to_hub", lambda *args, **kwargs: called.append(args))
    arguments = TrainerArguments(output_dir=str(tmp_path), report_to="none", use_cpu=True)
    bert = BertForMaskedLM(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8))
    ResumableTrainer(model=bert, args=arguments).push_to_hub()
    assert called
