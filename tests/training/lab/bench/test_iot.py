import json
from argparse import Namespace
from collections import Counter

import torch

from sublayers.training.lab.bench import command as bench, iot as bench_iot

SIZES = {"layers": 1, "hidden_size": 16, "heads": 2, "vocab_size": 50, "new_tokens": 3}


def test_compares_every_task_with_the_transformer(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "250")
    path = tmp_path / "bench.json"
    flags = [f"--{name}={value}" for name, value in SIZES.items()]
    orders = ["interleaved(1):s c f,fcs", "sf,fs:interleaved(1,decoder=True)"]
    bench.main(["iot", *flags, "--orders", *orders, "--shapes", "4x6", "--repeats=1", f"--json={path}"])
    everything = json.loads(path.read_text())
    assert list(everything["tasks"]) == [
        "training step 4x6",
        "encoder 4x6",
        "greedy 4x6, 3 tokens",
        "beam 5 4x6, 3 tokens",
    ]
    for task in everything["tasks"].values():
        ratios = {name: list(result["ratios"]) for name, result in task["models"].items()}
        assert ratios == {"Transformer": [], "sf:scf,fcs": ["Transformer"], "sf,fs:scf": ["Transformer"]}
    parameters = everything["totals"]["parameters"]
    assert {name: number - parameters["Transformer"] for name, number in parameters.items()} == {
        "Transformer": 0,
        "sf:scf,fcs": 2 * 16,
        "sf,fs:scf": 2 * 16,
    }
    assert "beam 5 4x6, 3 tokens, ms" in capsys.readouterr().out


def test_spreads_the_sentences_evenly_over_all_orders():
    args = Namespace(**SIZES, orders=["sf,fs:scf,csf,fcs"], device="cpu", dtype="float32", shapes=["6x4"])
    fixed, chooser = bench_iot.build(args).values()
    batch = {"input_ids": torch.ones(6, 4, dtype=torch.long)}
    forced = {name: Counter(order.tolist()) for name, order in bench_iot.spread_orders(chooser, batch).items()}
    assert bench_iot.spread_orders(fixed, batch) == {}
    assert forced == {"forced_encoder_order": {0: 3, 1: 3}, "forced_decoder_order": {0: 2, 1: 2, 2: 2}}
