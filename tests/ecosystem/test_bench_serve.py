import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from sublayers.training import cli
from sublayers.training.lab.bench import serve

pytestmark = pytest.mark.slow

SIZES = ["--layers=2", "--hidden_size=32", "--heads=2", "--vocab_size=100", "--repeats=4", "--orders", "s2f2"]
MODELS = ["BERT", "DistilBERT", "MiniLM", "s2f2"]
RUNTIMES = ["torch", "onnx", "onnx int8"]


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.full
def test_compares_models_within_each_runtime(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    # a process for each model takes seconds, and there is one below
    monkeypatch.setattr(serve, "_memory", lambda runtime, folder, batch: float(len(runtime)))
    timed = []

    def times(name, calls, repeats, device, seconds, fewest):
        assert (seconds, fewest) == (300, 20)
        timed.append((name, repeats, {key: call() for key, call in calls.items()}))
        return {key: [(i + 1.0) * (j + 1) for i in range(repeats)] for j, key in enumerate(calls)}

    monkeypatch.setattr(serve, "time_in_turn", times)
    flags = ["--shapes", "1x9", "2x5", "--runtimes", *RUNTIMES, "--thread_counts", "1"]
    cli.main(["bench", "serve", *SIZES, *flags, "--output_dir", str(tmp_path / "out")])
    rows = pd.read_csv(tmp_path / "out" / "results.csv", keep_default_na=False)
    assert [*rows["model"]] == MODELS
    assert [*rows["order"]] == ["", "", "", "s2f2"]
    assert [name for name in rows if name.endswith("(ms)") and name[:4] != "95th"] == [
        f"{runtime} {shape} threads 1 (ms)" for runtime in RUNTIMES for shape in ("1x9", "2x5")
    ]
    row = rows.iloc[-1]
    # the fourth of five in turn, whose times are 4, 8, 12 and 16 ms
    of = "onnx int8 2x5 threads 1"
    assert (row[f"{of} (ms)"], row[f"95th percentile of {of} (ms)"], row[f"{of} (ms) ratio to BERT"]) == (10, 15.4, 4)
    assert row["onnx int8 memory (MiB)"] == 9
    assert "onnxruntime" in row["machine"]
    assert row["command"].startswith("sublayers bench serve --layers=2")
    assert (tmp_path / "out" / "serve.svg").exists()
    printed = capsys.readouterr().out
    assert "10.0 / 15.4 (4.00)" in printed
    # all runtimes run the same models on the same tokens
    first, *others = [outputs for name, _, outputs in timed if "1x9" in name]
    for outputs in others:
        for name in MODELS:
            assert np.allclose(outputs[name]["logits"], first[name]["logits"], atol=0.05)
        assert np.allclose(outputs[serve.TORCH, "BERT"]["logits"], first["BERT"]["logits"], atol=1e-6)
    sizes = {name: first[name]["logits"].shape for name in MODELS}
    assert set(sizes.values()) == {(1, 2)}


@pytest.mark.full
def test_memory_is_that_of_a_process_of_its_own(tmp_path):
    from sublayers import PARBertConfig

    config = PARBertConfig(sublayer_order="sf", hidden_size=768, intermediate_size=3072, vocab_size=10_000)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "torch")
    batch = {"input_ids": np.ones((1, 4), dtype=np.int64)}
    # 15 M parameters of 4 bytes
    assert 50 < serve._memory("torch", tmp_path, batch) < 150


def test_a_folder_that_exists_is_refused(tmp_path):
    (tmp_path / "results.csv").write_text("")
    with pytest.raises(FileExistsError):
        serve.run(type("Args", (), {"output_dir": tmp_path}), [], {})
