import pandas as pd
import pytest

from sublayers.training.lab.studies.frontier_report import compare, difference, report
from sublayers.training.results import provenance, read


def runs(*scores):
    return pd.Series(scores, index=range(len(scores)))


@pytest.mark.parametrize(
    ("scores", "others", "written"),
    [
        # mean 0.2, deviation 0.2, so 0.2 -+ 4.303 * 0.2 / sqrt(3)
        ((80.0, 80.2, 80.4), (80.0, 80.0, 80.0), "+0.2 [-0.3, +0.7], as good"),
        ((82.0, 82.1, 82.2), (80.0, 80.0, 80.0), "+2.1 [+1.9, +2.3], better"),
        ((78.0, 78.1, 78.2), (80.0, 80.0, 80.0), "-1.9 [-2.1, -1.7], worse"),
        ((78.0, 80.0, 82.0), (80.0, 80.0, 80.0), "+0.0 [-5.0, +5.0], undecided"),
        ((78.0,), (80.0,), ""),
    ],
)
def test_a_difference_is_as_sure_as_its_interval(scores, others, written):
    assert difference(runs(*scores), runs(*others)) == written


def test_runs_are_paired_by_seed():
    scores = pd.Series([1.0, 5.0, 9.0], index=[0, 1, 2])
    others = pd.Series([9.0, 1.0, 5.0, 70.0], index=[2, 0, 1, 7]) - 2
    others[1] -= 0.1
    assert difference(scores, others).startswith("+2.0 [+1.9, +2.2]")


def results():
    rows = [("teacher", "teacher", 82, 1.0), ("s6f6", "re-ordered", 78, 0.31), ("s6f6", "re-ordered", 76, 0.31)]
    plain = (("(sf)2", 75, 0.2), ("(sf)3", 79, 0.4), ("(sf)4", 76, 0.6))
    rows += [(order, "layers dropped", score, time) for order, score, time in plain]
    frame = pd.DataFrame(rows, columns=["name", "kind", "sts", "sts_time_32"])
    return frame.assign(seed=[0, 0, 1, 0, 0, 0], order="sf", sts_ms_32=frame["sts_time_32"] * 10)


def test_a_student_is_compared_with_the_one_of_fewer_layers_nearest_in_time():
    scores = {"teacher": (90, 90), "s6f6": (75, 77), "(sf)2": (70, 71), "(sf)3": (76, 79), "(sf)4": (75, 75)}
    glue = pd.DataFrame([(name, "mrpc", seed, pair[seed]) for name, pair in scores.items() for seed in (0, 1)])
    glue.columns = ["name", "task", "seed", "score"]
    rows = compare(glue, results(), "sts_time_32")
    # 0.31 is 0.78 of 0.4 and 1.55 times 0.2; the mean difference is -1.5, and 12.7 times 0.5 on both sides of it
    assert rows[3] == {
        "model": "s6f6",
        "compared with": "(sf)3",
        "mrpc": "76.0",
        "mrpc ±": "1.4",
        "difference in mrpc": "-1.5 [-7.9, +4.9], undecided",
    }
    assert [row["model"] for row in rows] == ["teacher", "(sf)4", "(sf)3", "s6f6", "(sf)2"]
    assert [row["compared with"] for row in rows] == ["", "", "", "(sf)3", ""]


def test_leaves_numbers_a_picture_and_a_card(tmp_path):
    glue = pd.DataFrame([("s6f6", "sst2 (accuracy)", 0, 81.0)], columns=["name", "task", "seed", "score"])
    about = provenance(["study", "frontier", "my teacher"], ["train.txt", "GLUE sst2"])
    report(results(), glue, tmp_path, about)
    row = next(row for row in read(tmp_path / "results.csv") if row["model"] == "s6f6")
    assert (row["seeds"], row["data"]) == ("0, 1", "train.txt, GLUE sst2")
    assert [row[f"STS correlation{more}"] for more in ("", " ±", " ratio (%)")] == ["77.0", "1.4", "93.9"]
    assert row["sst2 (accuracy)"] == "81.0"
    card = (tmp_path / "README.md").read_text()
    assert "| s6f6 | `sf` | re-ordered | 77.0 ± 1.4 (93.9) | 3.10 (0.31) | STS correlation |" in card
    assert "| (sf)4 | `sf` | layers dropped | 76.0 (92.7) | 6.00 (0.60) |  |" in card
    assert "| s6f6 |  | 81.0 |  |" in card
    assert "sublayers study frontier 'my teacher'" in card
    picture = (tmp_path / "frontier.svg").read_text()
    assert "layers dropped" in picture
    assert "far below" not in picture
