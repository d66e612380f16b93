import json
from argparse import Namespace

import pytest
import torch

from sublayers.training.lab.bench import command as bench, spans

SIZES = {"hidden_size": 16, "heads": 2, "batch_size": 2, "length": 24}
TINY = ["spans", *(f"--{name}={value}" for name, value in SIZES.items()), "--device=cpu"]


def test_compares_every_span_with_the_longest(tmp_path, capsys):
    path = tmp_path / "bench.json"
    bench.main([*TINY, "--orders", "s", "sf", "--spans", "64", "128", "256", "--repeats=1", f"--json={path}"])
    everything = json.loads(path.read_text())
    assert list(everything["tasks"]) == ["train step", "forward"]
    names = [f"{order} {span}" for order in ("s", "sf") for span in (64, 128, 256)]
    for task in everything["tasks"].values():
        assert list(task["models"]) == names
        for name, result in task["models"].items():
            order, span = name.split()
            assert list(result["ratios"]) == ([] if span == "256" else [f"{order} 256"])
            assert min(result["median_ms"], result["rate"], result["peak_bytes"]) > 0
    # rows, width and bytes of a number; of a span that may grow, a step more is kept
    tokens = {"64": 128, "128": 192, "256": 256}
    (remembered,) = everything["totals"].values()
    assert remembered == {name: 2 * 16 * 4 * tokens[name.split()[1]] for name in names}
    assert "forward, ms" in capsys.readouterr().out


def test_heads_have_learned_the_span_and_nothing_else_differs():
    args = Namespace(**SIZES, orders=["s"], spans=[64, 256], device="cpu", dtype="float32")
    short, long = spans.character_models(args).values()
    assert [model.span_attentions()[0].read_length for model in (short, long)] == [64, 256]
    weights = [{name: w for name, w in model.state_dict().items() if "span" not in name} for model in (short, long)]
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())
    work = [spans.gigaflops("s", span, args) for span in args.spans]
    assert work[0] < work[1]


def test_refuses_a_span_within_the_ramp():
    with pytest.raises(ValueError, match="--spans 31 is shorter than the ramp at its end; give 32 or more"):
        bench.main([*TINY, "--spans", "31"])
