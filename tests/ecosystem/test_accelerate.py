import json
import os
import subprocess
import sys

import datasets
import pytest
from common import assert_same
from safetensors.torch import load_file

from sublayers.training.commands.pretrain import main as pretrain

pytestmark = pytest.mark.slow


@pytest.mark.full
def test_two_launched_processes_have_the_loss_curve_of_one(tmp_path, monkeypatch):
    cache = str(tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"line {n} of a tiny corpus\n" for n in range(60)))
    settings = {"sublayer_order": "sfsff", "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    settings |= dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    settings |= {"block_size": 16, "tokenizer_model": "byte", "train_file": str(corpus), "learning_rate": 0.01}
    settings |= {"max_steps": 4, "logging_steps": 1, "eval_steps": 2, "use_cpu": True, "disable_tqdm": True}
    (tmp_path / "settings.yaml").write_text(json.dumps(settings))
    flags = [str(tmp_path / "settings.yaml"), "--per_device_train_batch_size"]
    pretrain([*flags, "4", "--output_dir", str(tmp_path / "one")])

    # --cpu would start a single process without MPI; these find each other by gloo, since --use_cpu is among the flags
    launcher = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0"]
    command = ["-m", "sublayers", "pretrain", *flags, "2", "--output_dir", str(tmp_path / "two")]
    # nor does a file with somebody's defaults count
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_DATASETS_CACHE": cache, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, *launcher, *command], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]

    names = ("step", "epoch", "learning_rate", "loss", "grad_norm", "eval_loss")
    curves = []
    for folder in ("one", "two"):
        state = json.loads((tmp_path / folder / "checkpoint-4" / "trainer_state.json").read_text())
        curves.append([{name: entry[name] for name in names if name in entry} for entry in state["log_history"]])
    one, two = curves
    assert [entry["step"] for entry in one if "loss" in entry] == [1, 2, 3, 4]
    assert len(one) == len(two)
    for expected, actual in zip(one, two, strict=True):
        assert actual == pytest.approx(expected, rel=1e-5)
    weights = [load_file(tmp_path / folder / "model.safetensors") for folder in ("two", "one")]
    assert_same(*weights, atol=1e-5, rtol=1e-4)
