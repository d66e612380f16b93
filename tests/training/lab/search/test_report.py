import math

import optuna
import pytest

from sublayers import PARTransformerXLConfig, SandwichLMConfig
from sublayers.configuration.sublayer_cost import flops
from sublayers.training.lab.search import price
from sublayers.training.lab.search.price import log_costs
from sublayers.training.lab.search.report import report
from sublayers.training.metrics.pictures import pareto_front
from sublayers.training.results import read
from sublayers.training.trials import open_study

CONFIG = SandwichLMConfig(hidden_size=16, intermediate_size=64, num_attention_heads=2)
# the more attention in the bottom half, the better; the second seed agrees with the first
LOSSES = {"s3f3": (1.0, 1.1), "ssfsff": (2.0, 2.1), "(sf)3": (3.0, 3.2), "f3s3": (4.0, 4.5)}


def train(study, order, *losses, early=()):
    """Add the trial of an order that was trained once for each loss."""
    runs = [
        {"seed": seed, "parameters": 1000, "metrics": {"eval_loss": loss, "train_loss": 9.0, "train_runtime": 2.0}}
        for seed, loss in enumerate(losses)
    ]
    attributes = {"order": order, "runs": runs}
    told = dict(enumerate(early, 1))
    study.add_trial(optuna.trial.create_trial(value=losses[0], user_attrs=attributes, intermediate_values=told))


@pytest.fixture
def study(tmp_path):
    study = open_study("search", tmp_path / "search", {"letters": "sf"})
    candidates = [{"order": order, "name": f"random {n}", "draw_seed": n} for n, order in enumerate(LOSSES)]
    candidates.append({"order": "s3f3", "name": "sandwich", "draw_seed": None})
    study.set_user_attr("candidates", candidates)
    for order, losses in LOSSES.items():
        train(study, order, *losses)
    return study


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "search"


def add_supernets(folder, *orders):
    """Add a super-network for each order that was found."""
    supernets = open_study("super-networks", folder, {})
    curve = [{"step": step, "probabilities": [[0.2, 0.5, 0.3]] * 6} for step in (1, 2, 3)]
    for seed, order in enumerate(orders, 3):
        attributes = {"task": {"seed": seed}, "order": order, "curve": curve, "metrics": {"train_runtime": 3.0}}
        supernets.add_trial(optuna.trial.create_trial(value=1.0, user_attrs=attributes))
    return supernets


def test_rows_figures_and_pictures_say_all_that_is_known_of_runs(study, folder):
    about = {"date": "2026-01-02", "machine": "mine", "data": "words", "commit": "abc", "command": "sublayers search"}
    study.set_user_attr("begun", about)
    log_costs(study, CONFIG, 40)
    rows = report(study, folder, add_supernets(folder, "f6"))
    row = rows[(rows["order"] == "s3f3") & (rows["seed"] == 1)].iloc[0]
    assert row["names"] == "random 0, sandwich"
    assert row["draw_seed"] == 0
    # 9 units are cut into sssf|ff
    assert [row[f"{half}_half_{letter}"] for half in ("bottom", "top") for letter in "sf"] == [3, 1, 0, 2]
    # ss|sf|ff
    assert [row[f"{third}_third_s"] for third in ("first", "middle", "last")] == [2, 1, 0]
    assert [row[f"{third}_third_f"] for third in ("first", "middle", "last")] == [0, 1, 2]
    assert row["perplexity"] == pytest.approx(math.exp(1.1))
    assert row["train_loss"] == 9.0
    for kind, positions in (("all", 40), ("masked", 6), ("one", 1)):
        assert row[f"flops_{kind}"] == flops("s3f3", 16, 64, 40, positions, num_attention_heads=2)
        assert row[f"milliseconds_{kind}"] > 0
    assert row["cache_all"] == 2 * 16 * 2 * 3 * 40
    figures = read(folder / "results.csv")
    # from the best to the worst
    assert [row["order"] for row in figures] == [*LOSSES]
    last = figures[-1]
    assert (last["model"], last["parameters"], last["seeds"]) == ("random 3", "1000", "0, 1")
    assert (last["loss (nats)"], last["loss (nats) ±"]) == ("4.2500", "0.3536")
    assert last["GFLOP of reading one"] == f"{flops('f3s3', 16, 64, 40, 1, num_attention_heads=2) / 1e9:.4g}"
    assert float(last["reading one (ms)"]) > 0
    # ff|fsss
    assert (last["bottom half s"], last["top half s"]) == ("0", "3")
    # ff|fs|ss
    assert (last["first third s"], last["middle third s"], last["last third s"]) == ("0", "1", "2")
    assert (last["date"], last["machine"], last["command"]) == ("2026-01-02", "mine", "sublayers search")
    for name in ("supernet-3", "mixtures", "orders", "bottom_half", "cost"):
        assert "<svg" in (folder / f"{name}.svg").read_text()


def test_remarks_say_what_the_better_half_shares_and_how_much_is_chance(study, folder, capsys):
    report(study, folder)
    shown = capsys.readouterr().out
    # 9 units are cut into sssf|ff and ssfs|ff
    assert "mean of the better 2 orders: bottom half s 3.0, bottom half f 1.0, top half s 0.0, top half f 2.0" in shown
    # sfs|fsf and ff|fsss
    assert "mean of the worse 2 orders: bottom half s 1.0, bottom half f 1.5, top half s 2.0, top half f 1.5" in shown
    # ss|sf|ff and ss|fs|ff
    assert "thirds of the sublayers, mean of the better 2 orders: first third s 2.0, first third f 0.0, middle" in shown
    assert "rank correlation of the loss with the self-attentions in the bottom half: -" in shown
    assert "rank correlation of 4 orders between two seeds, mean of all pairs: 1.00" in shown
    assert "| `s3f3` | random 0, sandwich | 1,000 | 1.0500 ± 0.0707 | 0, 1 |" in shown


def test_orders_are_divided_at_the_loss_of_a_baseline(study, folder, capsys):
    known = study.user_attrs["candidates"]
    worst = [*LOSSES][2]
    study.set_user_attr("candidates", [*known, {"order": worst, "name": "baseline", "draw_seed": None}])
    report(study, folder)
    shown = capsys.readouterr().out
    assert (
        "halves of the parameters, mean of the 2 orders that are better than the baseline: bottom half s 3.0" in shown
    )
    assert "halves of the parameters, mean of the 1 orders that are worse than the baseline: bottom half s 0.0" in shown


def test_remarks_say_where_found_orders_have_attention_and_how_long_their_search_took(study, folder, capsys):
    # s|f|f and ss|s|ff
    report(study, folder, add_supernets(folder, "sff", "s3f2"))
    shown = capsys.readouterr().out
    for third, counts in {"first": "s 1.5, f 0.0", "middle": "s 0.5, f 0.5", "last": "s 0.0, f 1.5"}.items():
        assert f"in the {third} third of what was found, mean of 2 orders: {counts}" in shown
    assert "time of a search to that of a training, means of 2 and 8: 1.50" in shown


def test_early_losses_are_compared_with_the_last_ones(tmp_path, capsys):
    study = open_study("search", tmp_path / "search", {"letters": "sf"})
    # the first evaluation ranks all orders the other way round, the second one only some
    for order, early in {"sf": (3.0, 2.0, 1.0), "fs": (2.0, 2.1, 1.5), "s2f": (1.0, 1.9, 1.6)}.items():
        train(study, order, early[-1], early=early)
    ended = {"state": optuna.trial.TrialState.PRUNED, "intermediate_values": {1: 9.0}}
    study.add_trial(optuna.trial.create_trial(**ended))
    report(study, tmp_path / "search")
    shown = capsys.readouterr().out
    assert "rank correlations of the losses of evaluations 1 to 2 of 3 with the last ones: -1.00 -0.50" in shown
    assert "1 trainings were ended early" in shown


def test_costs_are_counted_again_for_new_orders_only(study, monkeypatch):
    counted = []
    monkeypatch.setattr(price, "milliseconds", lambda config, orders, *_: counted.append({*orders}) or {})
    log_costs(study, CONFIG, 40)
    log_costs(study, CONFIG, 40)
    assert counted == [{*LOSSES}]
    train(study, "f", 5.0)
    log_costs(study, CONFIG, 40)
    # times can be compared where they are measured together
    assert counted[1:] == [{*LOSSES, "f"}]
    log_costs(study, CONFIG, 80)
    assert study.user_attrs["costs of f"]["length"] == 80


def test_models_with_memory_have_no_milliseconds(study, folder):
    log_costs(study, PARTransformerXLConfig(hidden_size=16, intermediate_size=64, num_attention_heads=2), 40)
    rows = report(study, folder)
    assert "flops_all" in rows
    assert "milliseconds_all" not in rows


def test_the_front_has_what_nothing_beats():
    points = [(3.0, 1.0), (1.0, 5.0), (2.0, 5.0), (2.0, 2.0), (4.0, 1.0), (1.0, 6.0)]
    assert pareto_front(points) == [(1.0, 5.0), (2.0, 2.0), (3.0, 1.0)]
