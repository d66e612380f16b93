"""The metrics of GLUE (Wang et al., 2019), and the files of a submission."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import evaluate
import numpy as np
from datasets import Features, Value
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from sublayers.training.data.glue import GLUE_TASKS, MAX_SIMILARITY, Task


def _correlation(function: Callable[..., Any]) -> Callable[..., float]:
    def correlate(references: list[float], predictions: list[float]) -> float:
        # scipy warns of constant values and answers nan; a run that has diverged should not be nan in a median either
        varies = all(0 < np.ptp(values) < math.inf for values in (references, predictions))
        return function(references, predictions).statistic if varies else 0.0

    return correlate


SCORERS: dict[str, Callable[..., float]] = {
    "accuracy": accuracy_score,
    "f1": lambda references, predictions: f1_score(references, predictions, zero_division=0),
    "matthews_correlation": matthews_corrcoef,
    "pearson": _correlation(pearsonr),
    "spearmanr": _correlation(spearmanr),
}


class GlueMetric(evaluate.Metric):
    """The metrics of one task, computed by scikit-learn and scipy, so that nothing is downloaded.

    Called like the metric "glue" of `evaluate`: `GlueMetric("mrpc").compute(predictions=..., references=...)` with ids
    or scores, (number of rows,), gives a dict with the same names and values. Values that do not vary correlate with 0.
    """

    def _info(self) -> evaluate.MetricInfo:
        kind = Value("float64" if GLUE_TASKS[self.config_name].scored else "int64")
        return evaluate.MetricInfo(
            description=str(self.__doc__),
            citation="",
            features=Features({"predictions": kind, "references": kind}),
        )

    def _compute(self, predictions: list, references: list) -> dict[str, float]:  # type: ignore[override]
        return {name: float(SCORERS[name](references, predictions)) for name in GLUE_TASKS[self.config_name].metrics}


def write_submission(task: Task, predictions: np.ndarray, path: Path) -> None:
    """Write the predictions for a test split as gluebenchmark.com reads them.

    Args:
        task: where the predictions are from.
        predictions: ids or scores, (number of rows,).
        path: a new .tsv file, in a folder that is made where there is none.
    """
    if task.scored:
        answers = [f"{score:.3f}" for score in predictions.clip(0, MAX_SIMILARITY)]
    else:
        answers = [task.labels[label] if task.names else str(label) for label in predictions]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write("index\tprediction\n")
        file.writelines(f"{index}\t{answer}\n" for index, answer in enumerate(answers))


def zip_submission(folder: Path) -> list[str]:
    """Put the predictions in a folder into one file beside it, as gluebenchmark.com takes them.

    Args:
        folder: where `write_submission` wrote.

    Returns:
        Names of the files that the benchmark also asks for.
    """
    wanted = [f"{name}.tsv" for task in GLUE_TASKS.values() for name in task.submitted.values()]
    found = [name for name in wanted if (folder / name).exists()]
    with ZipFile(folder.with_suffix(".zip"), "w", ZIP_DEFLATED) as archive:
        for name in found:
            archive.write(folder / name, name)
    return [name for name in wanted if name not in found]
