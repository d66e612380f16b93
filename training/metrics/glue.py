"""The tasks of GLUE (Wang et al., 2019): their columns, their metrics, and the files of a submission."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import evaluate
import numpy as np
from datasets import Features, Value
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

MAX_SIMILARITY = 5


@dataclass(frozen=True)
class Task:
    """One task, with the columns and label ids of the data set on the Hub.

    Args:
        columns: what holds the one text or the two.
        labels: names in the order of their ids; a single one names a score from 0 to 5.
        metrics: names as in `evaluate`; the first decides between runs.
        names: whether a submission holds names of labels rather than ids.
        files: file of a submission, without its ending, for each ending of a split's name.
    """

    columns: tuple[str, ...]
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    files: dict[str, str]
    names: bool = False

    @property
    def scored(self) -> bool:
        """Whether a label is a score rather than a class."""
        return len(self.labels) == 1

    @property
    def validation(self) -> list[str]:
        """Names of the validation splits; the first decides between runs."""
        return [f"validation{part}" for part in self.files]

    def accepts(self, label: Any) -> bool:
        """Whether a label of the data is one of this task."""
        if self.scored:
            return isinstance(label, int | float) and 0 <= label <= MAX_SIMILARITY
        return label in range(len(self.labels))


SENTENCES = ("sentence1", "sentence2")
ACCURACY = ("accuracy",)
# as in BERT (Devlin et al., 2019, section 4.1), F1 decides on paraphrases and Spearman's correlation on similarity
PARAPHRASE = ("f1", "accuracy")
ENTAILMENT = ("entailment", "not_entailment")
GLUE_TASKS = {
    "cola": Task(("sentence",), ("unacceptable", "acceptable"), ("matthews_correlation",), {"": "CoLA"}),
    "sst2": Task(("sentence",), ("negative", "positive"), ACCURACY, {"": "SST-2"}),
    "mrpc": Task(SENTENCES, ("not_equivalent", "equivalent"), PARAPHRASE, {"": "MRPC"}),
    "stsb": Task(SENTENCES, ("similarity",), ("spearmanr", "pearson"), {"": "STS-B"}),
    "qqp": Task(("question1", "question2"), ("not_duplicate", "duplicate"), PARAPHRASE, {"": "QQP"}),
    "mnli": Task(
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        ACCURACY,
        {"_matched": "MNLI-m", "_mismatched": "MNLI-mm"},
        names=True,
    ),
    "qnli": Task(("question", "sentence"), ENTAILMENT, ACCURACY, {"": "QNLI"}, names=True),
    "rte": Task(SENTENCES, ENTAILMENT, ACCURACY, {"": "RTE"}, names=True),
    "wnli": Task(SENTENCES, ENTAILMENT[::-1], ACCURACY, {"": "WNLI"}),
}


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
