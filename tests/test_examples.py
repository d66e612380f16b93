"""The scripts of examples/ run as a user runs them, in a folder of their own."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from glue_rows import WORDS, make_rows, write
from hub_repository import ANN
from launched import python
from tiny_models import save_model
from transformers import AutoModelForSequenceClassification

pytestmark = pytest.mark.slow
pytest_plugins = ["hub_server"]

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# words behind the name of each, and what it prints and leaves
SHOWN = {
    "custom_mixer": ([], "torch.Size([1, 4, 64])\n", ""),
    "custom_order": (["s2wf3"], "sswfff: ", ""),
    "trainer_glue": (["bert", "a.jsonl", "b.jsonl"], "'eval_accuracy': ", "runs/trainer/best/model.safetensors"),
    "accelerate_loop": ([], "epoch", "runs/loop/config.json"),
    "peft_lora": ([], "step", "runs/adapters/adapter_model.safetensors"),
    "sentence_encoder": (["bert"], "tensor", "runs/encoder/modules.json"),
    "hub_round_trip": (["ann/mine"], "LABEL_", ""),
    "int8_encoder": (["bert", "pairs.jsonl", "questions.jsonl"], "onnx int8 Spearman ", ""),
    "what_an_order_saves": ([], "s12f12 ", ""),
}


def test_all_are_short_and_run_here():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == {*SHOWN}
    assert len(names) <= 10
    assert all(len(path.read_text().splitlines()) <= 30 for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.full
def test_an_example_prints_and_leaves_what_it_is_for(name, hub, tmp_path):
    if name == "peft_lora" and not find_spec("peft"):
        pytest.skip("without PEFT")
    save_model(tmp_path / "bert", head=AutoModelForSequenceClassification, texts=[" ".join(WORDS)])
    for seed, file in enumerate(("a.jsonl", "b.jsonl")):
        write(tmp_path / file, make_rows("sst2", 16, seed))
    write(tmp_path / "pairs.jsonl", pairs := make_rows("stsb", 24, 0))
    asked = [{"question": row["sentence1"], "context": f"{row['sentence2']} {row['sentence1']}"} for row in pairs]
    write(tmp_path / "questions.jsonl", asked)
    words, printed, left = SHOWN[name]
    launcher = ["-m", "accelerate.commands.launch", "--cpu"] * (name == "accelerate_loop")
    environment = hub.environment(tmp_path / "home", token=ANN)
    said = python(*launcher, EXAMPLES / f"{name}.py", *words, home=tmp_path, **environment)
    assert printed in said
    assert (tmp_path / left).exists()
    if name in ("accelerate_loop", "peft_lora"):
        losses = [float(line.split()[2]) for line in said.splitlines() if line.startswith(printed)]
        assert losses[-1] < losses[0]
    if name == "hub_round_trip":
        assert "modeling_par_bert.py" in hub.repositories["ann/mine"].files()
