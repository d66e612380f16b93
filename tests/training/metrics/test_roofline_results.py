"""What is estimated, beside the times that others have published and that this project has measured."""

import json
import math
import shlex
from pathlib import Path

import pytest
from scipy.stats import spearmanr

from sublayers.configuration.alphabet import Sizes
from sublayers.training import cli
from sublayers.training.metrics.roofline import Device, estimates
from sublayers.training.results import Row, read

RESULTS = Path(__file__).resolve().parents[3] / "results"
PUBLISHED = read(RESULTS / "roofline.csv")
# one of the calibrations in results/roofline_here.csv
MACHINE = Device("measured", {"fp32": 234e9}, 62e9, math.inf, 13.7e-6, False, 1.0, 0.41, 0.37)
BERT = Sizes(768, 3072, num_attention_heads=12)
BIASES = dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias"), False)
SMALL_LM = Sizes(
    128, 344, num_attention_heads=4, folds_attention=False, gated_feed_forward=True, norm_vectors=1, **BIASES
)
# what is estimated, by what a file calls it
DECIDED = {
    "one position of 128": "one",
    "15 % of the positions of 128": "15 %",
    "every position of 128": "every",
    "the next token of 128": "next token",
}
BENCHED = {
    "classification": "one",
    "question answering": "every",
    "fine-tuning step": "training, one",
    "MLM training step": "training, 15 %",
}
SHAPES = {"1x128": (1, 128), "1x384": (1, 384), "8x128": (8, 128)}
# file, column, what is estimated, sizes, rows, length
MEASURED = [
    *(("decide.csv", task, name, BERT, 1, 128) for task, name in DECIDED.items()),
    *(
        ("bench_bert.csv", f"{task} {shape}", BENCHED[task], BERT, *SHAPES[shape])
        for task in BENCHED
        for shape in SHAPES
    ),
    *(("bench_tails.csv", f"classification {shape}", "one", BERT, *SHAPES[shape]) for shape in SHAPES),
    ("lm_tails.csv", "time to first token", "prompt", SMALL_LM, 1, 1024),
]


def ranks() -> list[Row]:
    """How far the orders of a file come out as they were measured there, by Spearman's correlation."""
    found = []
    for file, task, name, sizes, rows, length in MEASURED:
        # models of other packages have other code
        models = [row for row in read(RESULTS / file) if row["model"].startswith(("`", "sublayers"))]
        times = [float(row[f"{task} (ms)"]) for row in models]
        estimated = [estimates(row["order"], sizes, MACHINE, "fp32", rows, length)[name].ms for row in models]
        # sums of the same sublayers differ in their last digits
        correlation = spearmanr(times, [round(each, 3) for each in estimated]).statistic
        row = {"model": f"`{file}`", "task": task, "compared": str(len(models)), "correlation": f"{correlation:.2f}"}
        found.append(row | {"slowest to fastest": f"{max(times) / min(times):.2f}"})
    return found


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row['model']} {row['device']} {row['task']}")
def test_published_figures_stand_beside_what_is_estimated(row, capsys):
    _, *argv = shlex.split(row["command"])
    cli.main(argv)
    cost = json.loads(capsys.readouterr().out)[row["order"]]
    (found,) = cost["milliseconds"].values()
    assert found[row["estimate"]] == {
        "ms": pytest.approx(float(row["predicted (ms)"]), abs=0.051),
        "bound": row["bound"],
    }
    assert float(row["ratio"]) == pytest.approx(found[row["estimate"]]["ms"] / float(row["known (ms)"]), abs=0.011)
    assert argv[argv.index("--device") + 1] == row["device"]


def test_orders_come_out_in_the_order_of_the_papers_times():
    by_setting: dict[str, list[tuple[float, float]]] = {}
    for row in PUBLISHED:
        if "PAR paper" in row["source"]:
            setting = f"{row['task']} {'BERT' in row['model']}"
            by_setting.setdefault(setting, []).append((float(row["known (ms)"]), float(row["predicted (ms)"])))
    assert sorted(map(len, by_setting.values())) == [3, 3, 3, 3]
    for pairs in by_setting.values():
        theirs, estimated = zip(*pairs, strict=True)
        assert spearmanr(theirs, estimated).statistic == pytest.approx(1)


def test_orders_come_out_as_they_were_measured_here():
    kept = read(RESULTS / "roofline_ranks.csv")
    found = ranks()
    assert [{name: row[name] for name in found[0]} for row in kept] == found
    # the next token takes about as long in all orders of equal length
    assert [row["task"] for row in found if float(row["correlation"]) < 0.7] == ["the next token of 128"]


def test_most_times_of_this_machine_are_within_a_quarter():
    rows = read(RESULTS / "roofline_here.csv")
    missed = [row["task"] for row in rows if abs(float(row["ratio"]) - 1) > 0.25]
    assert len(missed) / len(rows) < 0.05
    assert {*missed} == {"next token, 8x128"}
