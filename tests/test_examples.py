"""The scripts of examples/ run as a user runs them, in a folder of their own."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from families import small
from glue_rows import make_rows, write
from hub_repository import ANN

from sublayers import PARBertConfig, PARBertForSequenceClassification
from sublayers.training.data.tokenizers import train_tokenizer

pytestmark = pytest.mark.slow
pytest_plugins = ["hub_server"]

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# what these need beside the extra `train`
NEEDS = {"peft_lora": "peft", "sentence_encoder": "sentence_transformers"}


@pytest.fixture
def run(tmp_path):
    def run_example(name, *arguments, launcher=(), environment=None):
        if not find_spec(NEEDS.get(name, "torch")):
            pytest.skip(f"without {NEEDS[name]}")
        command = [sys.executable, *launcher, EXAMPLES / f"{name}.py", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run_example


@pytest.fixture
def bert(tmp_path):
    tokenizer = train_tokenizer(["good fine great bad poor awful film plot cast song"], "wordpiece", 60)
    model = PARBertForSequenceClassification(small(PARBertConfig, vocab_size=len(tokenizer)))
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def test_all_are_short_and_run_here():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert len(names) <= 10
    assert all(len(path.read_text().splitlines()) <= 30 for path in EXAMPLES.glob("*.py"))
    here = Path(__file__).read_text()
    assert [name for name in names if f'run("{name}"' not in here] == []


@pytest.mark.full
def test_custom_order(run):
    assert "sswfff: " in run("custom_order", "s2wf3")


def test_custom_mixer(run):
    assert run("custom_mixer") == "torch.Size([1, 4, 64])\n"


@pytest.mark.full
def test_trainer_glue(run, bert, tmp_path):
    files = [write(tmp_path / f"{name}.jsonl", make_rows("sst2", 16, seed)) for seed, name in enumerate(("a", "b"))]
    assert "'eval_accuracy': " in run("trainer_glue", str(bert), *files)
    assert (tmp_path / "runs/trainer/best/model.safetensors").exists()


@pytest.mark.full
def test_accelerate_loop(run, tmp_path):
    printed = run("accelerate_loop", launcher=("-m", "accelerate.commands.launch", "--cpu"))
    losses = [float(line.split()[2]) for line in printed.splitlines() if line.startswith("epoch")]
    assert losses[2] < losses[0]
    assert (tmp_path / "runs/loop/config.json").exists()


@pytest.mark.full
def test_peft_lora(run, tmp_path):
    losses = [float(line.split()[2]) for line in run("peft_lora").splitlines() if line.startswith("step")]
    assert losses[-1] < losses[0]
    assert (tmp_path / "runs/adapters/adapter_model.safetensors").exists()


@pytest.mark.full
def test_sentence_encoder(run, bert, tmp_path):
    assert "tensor" in run("sentence_encoder", str(bert))
    assert (tmp_path / "runs/encoder/modules.json").exists()


@pytest.mark.full
def test_hub_round_trip(run, hub, tmp_path):
    assert "LABEL_" in run("hub_round_trip", "ann/mine", environment=hub.environment(tmp_path / "home", token=ANN))
    assert "modeling_par_bert.py" in hub.repositories["ann/mine"].files()


@pytest.mark.full
def test_what_an_order_saves(run):
    printed = run("what_an_order_saves")
    assert [line.split()[0] for line in printed.splitlines()] == [
        "BERT",
        "(sf)12",
        "par(24,5)",
        "s12f12",
        "s5f19",
        "(sf)3",
    ]
