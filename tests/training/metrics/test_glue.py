import math
import random
import statistics
import warnings
from zipfile import ZipFile

import numpy as np
import pytest

from sublayers.training.data.glue import GLUE_TASKS
from sublayers.training.metrics.glue import GlueMetric, write_submission, zip_submission


def naive(name, references, predictions):
    n = len(references)
    pairs = list(zip(references, predictions, strict=True))
    if name == "accuracy":
        return sum(r == p for r, p in pairs) / n
    if name in ("f1", "matthews_correlation"):
        tp, fp, fn, tn = (pairs.count(pair) for pair in ((1, 1), (0, 1), (1, 0), (0, 0)))
        if name == "f1":
            return 2 * tp / (2 * tp + fp + fn)
        return (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    if name == "spearmanr":
        # the rank of a value is the mean of the places that its equals take
        both = ([sum(o < v for o in vs) + sum(o == v for o in vs) / 2 for v in vs] for vs in (references, predictions))
        references, predictions = both
    return statistics.correlation(references, predictions)


@pytest.mark.parametrize("name", GLUE_TASKS)
def test_metrics_equal_their_definitions(name):
    draw, task = random.Random(0), GLUE_TASKS[name]
    classes = len(task.labels)
    references, predictions = (
        [draw.randint(0, 20) / 4 if classes == 1 else draw.randrange(classes) for _ in range(50)] for _ in range(2)
    )
    found = GlueMetric(name, keep_in_memory=True).compute(references=references, predictions=predictions)
    assert found == pytest.approx({metric: naive(metric, references, predictions) for metric in task.metrics})


@pytest.mark.parametrize("name", ["cola", "mrpc", "stsb"])
def test_values_that_do_not_vary_score_zero_without_a_warning(name):
    metric = GlueMetric(name, keep_in_memory=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = metric.compute(references=[1, 0, 1], predictions=[0, 0, 0])
        assert found.pop("accuracy", 1 / 3) == pytest.approx(1 / 3)
        assert set(found.values()) == {0}
        if name == "mrpc":
            assert metric.compute(references=[0, 0], predictions=[0, 0]) == {"f1": 0, "accuracy": 1}
        if name == "stsb":
            nothing = metric.compute(references=[1, 0, 1], predictions=[0, math.nan, 2])
            assert set(nothing.values()) == {0}
            # float32 as models give it
            almost = metric.compute(references=[1, 2, 3], predictions=np.array([3, 3, 3.0000002], np.float32))
            assert almost["pearson"] == pytest.approx(math.sqrt(0.75))


def test_a_submission_has_the_benchmarks_format(tmp_path):
    write_submission(GLUE_TASKS["stsb"], np.array([-0.2, 3.14159, 7], np.float32), tmp_path / "new" / "STS-B.tsv")
    assert (tmp_path / "new" / "STS-B.tsv").read_text() == "index\tprediction\n0\t0.000\n1\t3.142\n2\t5.000\n"
    write_submission(GLUE_TASKS["qnli"], np.array([1, 0]), tmp_path / "QNLI.tsv")
    assert (tmp_path / "QNLI.tsv").read_text() == "index\tprediction\n0\tnot_entailment\n1\tentailment\n"
    write_submission(GLUE_TASKS["wnli"], np.array([1, 0]), tmp_path / "WNLI.tsv")
    assert (tmp_path / "WNLI.tsv").read_text() == "index\tprediction\n0\t1\n1\t0\n"
    # where these are names for people only
    assert GLUE_TASKS["wnli"].labels == ("not_entailment", "entailment")
    with pytest.raises(FileExistsError):
        write_submission(GLUE_TASKS["wnli"], np.array([1, 0]), tmp_path / "WNLI.tsv")


def test_a_submission_has_the_files_that_the_benchmark_asks_for(tmp_path):
    # as its page of questions and answers lists them
    asked = ["AX", "CoLA", "MNLI-m", "MNLI-mm", "MRPC", "QNLI", "QQP", "RTE", "SST-2", "STS-B", "WNLI"]
    (folder := tmp_path / "submission").mkdir()
    assert sorted(zip_submission(folder)) == sorted(f"{name}.tsv" for name in asked)
    for name in asked:
        (folder / f"{name}.tsv").write_text(name)
    (folder / "notes.txt").write_text("mine")
    assert zip_submission(folder) == []
    with ZipFile(tmp_path / "submission.zip") as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {f"{n}.tsv": n.encode() for n in asked}
