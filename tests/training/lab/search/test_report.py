import math

import pytest

from sublayers import PARTransformerXLConfig, SandwichLMConfig
from sublayers.configuration.sublayer_cost import flops
from sublayers.training.lab.search.price import log_costs
from sublayers.training.lab.search.report import report
from sublayers.training.log import open_log
from sublayers.training.metrics.pictures import pareto_front
from sublayers.training.results import read

CONFIG = SandwichLMConfig(hidden_size=16, intermediate_size=64, num_attention_heads=2)
# the more attention in the bottom half, the better; the second seed agrees with the first
LOSSES = {"s3f3": (1.0, 1.1), "ssfsff": (2.0, 2.1), "(sf)3": (3.0, 3.2), "f3s3": (4.0, 4.5)}


@pytest.fixture
def log(tmp_path):
    log = open_log(tmp_path / "search", "search", {"letters": "sf"})
    for number, (order, losses) in enumerate(LOSSES.items()):
        log.append("order", order=order, name=f"random {number}", draw_seed=number)
        for seed, loss in enumerate(losses):
            log.append("run", order=order, seed=seed, parameters=1000, metrics={"eval_loss": loss, "train_loss": 9.0})
    log.append("order", order="s3f3", name="sandwich", draw_seed=None)
    return log


def test_rows_figures_and_pictures_say_all_that_is_known_of_runs(log):
    for day, machine in enumerate(("a slow one", "mine"), 1):
        log.append(
            "begun", date=f"2026-01-0{day}", machine=machine, data="words", commit="abc", command="sublayers search"
        )
    curve = [{"step": step, "probabilities": [[0.2, 0.5, 0.3]] * 6} for step in (1, 2, 3)]
    log.append("supernet", seed=3, order="f6", curve=curve, metrics={})
    log_costs(log, CONFIG, 40)
    rows = report(log)
    row = rows[(rows["order"] == "s3f3") & (rows["seed"] == 1)].iloc[0]
    assert row["names"] == "random 0, sandwich"
    assert row["draw_seed"] == 0
    # 9 units are cut into sssf|ff
    assert (row["bottom_s"], row["bottom_f"], row["top_s"], row["top_f"]) == (3, 1, 0, 2)
    assert row["perplexity"] == pytest.approx(math.exp(1.1))
    assert row["train_loss"] == 9.0
    for kind, positions in (("all", 40), ("masked", 6), ("one", 1)):
        assert row[f"flops_{kind}"] == flops("s3f3", 16, 64, 40, positions, num_attention_heads=2)
        assert row[f"milliseconds_{kind}"] > 0
    assert row["cache_all"] == 2 * 16 * 2 * 3 * 40
    figures = read(log.file.parent / "results.csv")
    # from the best to the worst
    assert [row["order"] for row in figures] == [*LOSSES]
    last = figures[-1]
    assert (last["model"], last["parameters"], last["seeds"]) == ("random 3", "1000", "0, 1")
    assert (last["loss (nats)"], last["loss (nats) ±"]) == ("4.2500", "0.3536")
    assert last["GFLOP of reading one"] == f"{flops('f3s3', 16, 64, 40, 1, num_attention_heads=2) / 1e9:.4g}"
    assert float(last["reading one (ms)"]) > 0
    # ff|fsss
    assert (last["bottom half s"], last["top half s"]) == ("0", "3")
    assert (last["date"], last["machine"], last["command"]) == ("2026-01-02", "mine", "sublayers search")
    for name in ("supernet-3", "mixtures", "orders", "bottom_half", "cost"):
        assert "<svg" in (log.file.parent / f"{name}.svg").read_text()


def test_remarks_say_what_the_better_half_shares_and_how_much_is_chance(log, capsys):
    report(log)
    shown = capsys.readouterr().out
    # 9 units are cut into sssf|ff and ssfs|ff
    assert "mean of the better 2 orders: bottom s 3.0, bottom f 1.0, top s 0.0, top f 2.0" in shown
    # sfs|fsf and ff|fsss
    assert "mean of the worse 2 orders: bottom s 1.0, bottom f 1.5, top s 2.0, top f 1.5" in shown
    assert "rank correlation of the loss with the self-attentions in the bottom half: -" in shown
    assert "rank correlation of 4 orders between two seeds, mean of all pairs: 1.00" in shown
    assert "| `s3f3` | random 0, sandwich | 1,000 | 1.0500 ± 0.0707 | 0, 1 |" in shown


def test_costs_are_counted_again_for_new_orders_only(log):
    log_costs(log, CONFIG, 40)
    log_costs(log, CONFIG, 40)
    assert len(log.events("costs")) == 1
    log.append("order", order="f", name="given", draw_seed=None)
    log_costs(log, CONFIG, 40)
    assert log.events("costs")[-1]["costs"].keys() == {*LOSSES, "f"}
    log_costs(log, CONFIG, 80)
    assert log.events("costs")[-1]["length"] == 80


def test_models_with_memory_have_no_milliseconds(log):
    log_costs(log, PARTransformerXLConfig(hidden_size=16, intermediate_size=64, num_attention_heads=2), 40)
    rows = report(log)
    assert "flops_all" in rows
    assert "milliseconds_all" not in rows


def test_the_front_has_what_nothing_beats():
    points = [(3.0, 1.0), (1.0, 5.0), (2.0, 5.0), (2.0, 2.0), (4.0, 1.0), (1.0, 6.0)]
    assert pareto_front(points) == [(1.0, 5.0), (2.0, 2.0), (3.0, 1.0)]
