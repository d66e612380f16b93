"""Grids that are killed or cannot be published, and what the same command does then."""

import json
from itertools import product
from pathlib import Path

import pytest
from glue_rows import WORDS, make_rows, write
from killed import kill
from launched import python
from tiny_models import save_model
from transformers import AutoModel, BertConfig, BertModel, Trainer

from sublayers.training import cli
from sublayers.training.commands.glue import main as glue
from sublayers.training.trainers import publish
from sublayers.training.trials import read_study, results

pytestmark = pytest.mark.slow

FAST = ["--use_cpu", "--disable_tqdm=true", "--report_to=none", "--max_length=24", "--max_steps=2"]
GRID = ["--seeds", "1", "2", "--learning_rates", "1e-3", "1e-2"]


@pytest.fixture
def flags(tmp_path):
    """Flags for two tasks, without the name of any."""
    save_model(tmp_path / "model", head=AutoModel, texts=[" ".join(WORDS)])
    for seed, (name, split) in enumerate(product(("sst2", "rte"), ("train", "validation", "test"))):
        write(tmp_path / "data" / name / f"{split}.jsonl", make_rows(name, 20, seed))
    return [*FAST, "--model_name_or_path", str(tmp_path / "model"), "--data_dir", str(tmp_path / "data")]


PLACES = [
    # the first run is trained, but not scored
    ("sublayers.training.trainers.resumable_trainer:ResumableTrainer", "evaluate", 1),
    # the first two are scored, the worse one is not removed yet
    ("shutil", "rmtree", 1),
    # of the last two, one is scored
    ("sublayers.training.trainers.resumable_trainer:ResumableTrainer", "evaluate", 2),
    # all is tested, but not written; the best one has no name yet; nothing is told of it
    ("sublayers.training.metrics.glue", "write_submission", 1),
    ("pathlib:Path", "rename", 1),
    ("sublayers.training.trainers.glue_runs:TaskRuns", "publish", 1),
]


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def uploads(monkeypatch):
    """What is published, on a Hub that breaks where the name of a repository has `broken` in it."""
    found = {}

    def upload(folder, repository, **kwargs):
        if "broken" in repository:
            raise ConnectionError(f"the connection broke before {repository} was complete")
        found[repository] = files(Path(folder))

    monkeypatch.setattr(publish, "upload", upload)
    return found


@pytest.mark.full
def test_a_grid_that_was_killed_anywhere_ends_as_if_it_had_not_been(flags, tmp_path, monkeypatch, capsys):
    flags = [*flags, "--task_name=sst2", *GRID, "--save_strategy=steps", "--save_steps=1"]
    whole = glue([*flags, f"--output_dir={tmp_path}/whole"])
    killed = [*flags, f"--output_dir={tmp_path}/killed"]
    kill((["glue", *killed], PLACES))
    with pytest.raises(FileExistsError, match=r"has a fine-tuning with weight_decay 0\.01, not 0\.5; choose"):
        glue([*killed, "--weight_decay=0.5"])
    # what is done is not done again
    monkeypatch.setattr(Trainer, "train", None)
    monkeypatch.setattr(Trainer, "predict", None)
    assert glue([*killed, "--resume_from_checkpoint"]) == whole
    left, right = files(tmp_path / "whole"), files(tmp_path / "killed")
    assert left.keys() == right.keys()
    for name in ("results.json", "submission/SST-2.tsv", "sst2/model.safetensors", "sst2/checkpoint-2/optimizer.pt"):
        assert left[name] == right[name], name
    assert len(results(read_study("fine-tuning", tmp_path / "killed"))) == 5


def test_tasks_that_cannot_be_published_do_not_stop_the_others(flags, tmp_path, uploads, monkeypatch, capsys):
    names = {"ann/bert-sst2": "ann/bert-broken"}
    upload = publish.upload
    monkeypatch.setattr(publish, "upload", lambda folder, name, **kwargs: upload(folder, names.get(name, name)))
    # by the Trainer of a run, nothing is published, and no repository made
    monkeypatch.setattr(Trainer, "init_hf_repo", None)
    flags = ["glue", *flags, "--task_name=all", f"--output_dir={tmp_path}/out"]
    publishing = ["--push_to_hub", "--hub_model_id=ann/bert"]
    with pytest.raises(SystemExit):
        cli.main([*flags, *publishing])
    said = capsys.readouterr()
    assert "sst2 (the connection broke before ann/bert-broken was complete); the same command" in said.err
    assert {"sst2", "rte"} < {*said.out.split()}
    assert uploads.keys() == {"ann/bert-rte"}
    assert uploads["ann/bert-rte"]["model.safetensors"]

    names.clear()
    monkeypatch.setattr(Trainer, "train", None)
    uploads.clear()
    cli.main([*flags, *publishing])
    assert uploads.keys() == {"ann/bert-sst2"}


def test_a_model_of_others_is_published_as_the_best_one_only(flags, tmp_path, monkeypatch, capsys):
    published = []

    def push(trainer, *args, **kwargs):
        published.append((trainer.args.hub_model_id, trainer.args.output_dir))
        if len(published) == 1:
            raise RuntimeError("no way")

    monkeypatch.setattr(Trainer, "init_hf_repo", lambda trainer: None)
    monkeypatch.setattr(Trainer, "push_to_hub", push)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 200}
    BertModel(BertConfig(**sizes)).save_pretrained(tmp_path / "model")
    flags = ["glue", *flags, "--task_name=all", "--seeds", "1", "2", f"--output_dir={tmp_path}/out"]
    with pytest.raises(SystemExit):
        cli.main([*flags, "--push_to_hub", "--hub_model_id=ann/bert"])
    assert published == [(f"ann/bert-{name}", str(tmp_path / "out" / name)) for name in ("sst2", "rte")]
    assert "the connection to the Hub broke before ann/bert-sst2 was complete" in capsys.readouterr().err


@pytest.mark.full
def test_a_pool_and_the_processes_of_a_launch_find_what_one_process_finds(flags, tmp_path):
    flags = [*flags, "--task_name=all", *GRID, "--per_device_train_batch_size"]
    one = glue([*flags, "4", f"--output_dir={tmp_path}/one"])
    assert glue([*flags, "4", "--jobs=2", f"--output_dir={tmp_path}/pool"]) == one
    launcher = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0"]
    command = [*launcher, "-m", "sublayers", "glue", *flags, "2", f"--output_dir={tmp_path}/two"]
    python(*command)
    two = json.loads((tmp_path / "two" / "results.json").read_text())
    for name, found in one.items():
        for expected, actual in zip(found["points"], two[name]["points"], strict=True):
            assert actual == expected | {"batch_size": 2}
        assert (tmp_path / "two" / name / "model.safetensors").exists()
    assert files(tmp_path / "two" / "submission") == files(tmp_path / "one" / "submission")
