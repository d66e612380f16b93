import pandas as pd

from sublayers.training.lab.studies.frontier_report import draw, rows_of
from sublayers.training.results import provenance, read, write


def test_leaves_numbers_a_picture_and_a_card(tmp_path):
    runs = [("teacher", "teacher", 82, 1.0), ("s6f6", "re-ordered", 78, 0.31), ("s6f6", "re-ordered", 76, 0.31)]
    plain = (("(sf)2", 75, 0.2), ("(sf)3", 79, 0.4), ("(sf)4", 76, 0.6))
    runs += [(order, "layers dropped", score, time) for order, score, time in plain]
    results = pd.DataFrame(runs, columns=["name", "kind", "sts", "sts_time_32"])
    results = results.assign(seed=[0, 0, 1, 0, 0, 0], order="sf", sts_ms_32=results["sts_time_32"] * 10)
    rows = rows_of(results)
    assert [row["model"] for row in rows] == ["teacher", "(sf)4", "(sf)3", "s6f6", "(sf)2"]
    row = rows[3]
    assert (row["seeds"], row["best of its time"]) == ("0, 1", "STS correlation")
    assert [row[f"STS correlation{more}"] for more in ("", " ±", " ratio (%)")] == ["77.0", "1.4", "93.9"]
    write(rows, tmp_path / "results.csv", provenance(["study", "frontier", "my teacher"], ["train.txt"]))
    draw(results, rows, tmp_path)
    assert [row["model"] for row in read(tmp_path / "results.csv")] == [row["model"] for row in rows]
    card = (tmp_path / "README.md").read_text()
    assert "| s6f6 | `sf` | re-ordered | 77.0 ± 1.4 (93.9) | 3.10 (0.31) | STS correlation |" in card
    assert "| (sf)4 | `sf` | layers dropped | 76.0 (92.7) | 6.00 (0.60) |  |" in card
    assert "with 32 texts at once" in card
    assert "sublayers study frontier 'my teacher'" in card
    picture = (tmp_path / "frontier.svg").read_text()
    assert "layers dropped" in picture
    assert "far below" not in picture
