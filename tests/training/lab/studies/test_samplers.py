import csv
import random
from types import SimpleNamespace

import pytest

from sublayers import compact
from sublayers.training import cli
from sublayers.training.lab.studies.samplers import Landscape, main
from sublayers.training.results import read

pytestmark = pytest.mark.slow


def loss_of(letters):
    return 6 - 0.1 * len(letters) - 0.2 * (letters[0] == "s") - 0.05 * letters.count("sf")


def price_of(letters):
    return 3 * letters.count("s") + 4 * letters.count("f")


@pytest.fixture
def measured(tmp_path):
    draw = random.Random(0)
    orders = ["".join(draw.choice("sf") for _ in range(draw.randint(1, 10))) for _ in range(80)]
    rows = [
        {"order": compact(order), "loss (nats)": loss_of(order), "GFLOP of reading all": price_of(order)}
        for order in orders
    ]
    with (tmp_path / "measured.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return tmp_path / "measured.csv"


def test_the_landscape_has_losses_and_prices_of_orders_that_were_not_measured(measured):
    landscape = Landscape(read(measured))
    assert landscape.rank > 0.99
    for order in ("ssfsfsff", "ffffssss", "sfsfsfsf"):
        assert landscape.loss(compact(order)) == pytest.approx(loss_of(order), abs=0.05)
        assert landscape.price(compact(order)) == pytest.approx(price_of(order) / 40)


def test_the_hypervolume_is_the_area_that_true_losses_dominate(measured):
    landscape = Landscape(read(measured))
    orders = ["s", "sf", "f3", "(sf)3", "f6", "(sf)5"]
    # what a search sees of the last one is much too good
    seen = [(landscape.loss(order) - (order == "(sf)5"), landscape.price(order)) for order in orders]
    named = [{"order": order} for order in orders]
    trials = [SimpleNamespace(values=each, user_attrs=about) for each, about in zip(seen, named, strict=True)]
    front = [(landscape.price(order), landscape.loss(order)) for order in orders]
    steps = 400
    points = ((a + 0.5) / steps for a in range(steps))
    areas = [
        max([landscape.worst - loss for price, loss in front if price <= point and loss < landscape.worst], default=0)
        for point in points
    ]
    assert landscape.hypervolume(trials) == pytest.approx(sum(areas) / steps, abs=0.01)
    assert landscape.hypervolume(trials[:2]) < landscape.hypervolume(trials)


@pytest.mark.full
def test_samplers_are_compared_at_equal_numbers_of_trials(measured, tmp_path, capsys):
    rows = main([str(measured), "--number=40", "--seeds", "0", "1", f"--output_dir={tmp_path / 'out'}"])
    assert [row["model"] for row in rows] == ["nsga2", "tpe", "random"]
    for row in read(tmp_path / "out" / "results.csv"):
        volumes = [float(row[f"hypervolume after {number}"]) for number in (10, 20, 40)]
        assert volumes == sorted(volumes)
        assert float(row["time of a trial (ms)"]) > 0
    assert "<svg" in (tmp_path / "out" / "hypervolume.svg").read_text()
    assert "landscape: rank correlation of 1.00 with measured orders" in capsys.readouterr().out


def test_a_file_without_figures_is_refused(tmp_path, capsys):
    (tmp_path / "other.csv").write_text("model,order\nbert,sf\n")
    with pytest.raises(SystemExit):
        cli.main(["study", "samplers", str(tmp_path / "other.csv"), f"--output_dir={tmp_path / 'out'}"])
    assert "has not 20 orders with loss and GFLOP of reading all; give the" in capsys.readouterr().err
