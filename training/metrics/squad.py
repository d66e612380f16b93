"""Exact match and F1 of SQuAD (Rajpurkar et al., 2016, section 6.1; version 2: Rajpurkar et al., 2018)."""

import re
import string
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

ARTICLES = re.compile(r"\b(a|an|the)\b")
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def squad_metrics(
    predictions: dict[str, str],
    questions: Iterable[dict[str, Any]],
    version_2: bool = False,
    null_odds: dict[str, float] | None = None,
    threshold: float = 0.0,
) -> dict[str, float]:
    """Exact match and F1 as the official scorers compute and name them, in per cent.

    Args:
        predictions: answers by the id of the question; a question without one counts as wrong.
        questions: dicts with `id` and `answers`, which holds a list `text`.
        version_2: whether questions may have no answer, which "" answers; then also scores of the questions with an
            answer and of those without.
        null_odds: by id a number that is greater the less the question seems to have an answer. Above the threshold it
            is left unanswered, and the `best_` scores are those of the thresholds that suit these questions best.
        threshold: for `null_odds`.
    """
    rows = [(question["id"], question["answers"]["text"]) for question in questions]
    scores = np.array([score(predictions.get(name), answers, version_2) for name, answers in rows]).T
    if not version_2:
        return dict(zip(("exact_match", "f1"), (100 * scores.mean(1)).tolist(), strict=True))
    has_answer = np.array([len(answers) > 0 for _, answers in rows])
    metrics: dict[str, float] = {}
    final = scores
    if null_odds:
        odds = np.array([null_odds[name] for name, _ in rows])
        final = np.where(odds > threshold, ~has_answer, scores)
        for name, values in zip(("exact", "f1"), scores, strict=True):
            metrics[f"best_{name}"], metrics[f"best_{name}_thresh"] = _best_threshold(values, odds, has_answer)
    for part, chosen in {"": has_answer | True, "HasAns_": has_answer, "NoAns_": ~has_answer}.items():
        if chosen.any():
            exact, f1 = (100 * final[:, chosen].mean(1)).tolist()
            metrics |= {f"{part}exact": exact, f"{part}f1": f1, f"{part}total": int(chosen.sum())}
    return metrics


def score(prediction: str | None, answers: list[str], version_2: bool = False) -> tuple[float, float]:
    """Exact match and F1, 0 to 1, of a prediction, each with the answer that it agrees with best.

    Args:
        prediction: a text, or None where there is none.
        answers: the texts that are right; none, in version 2, if the question has no answer and "" is right.
        version_2: score what has no words (".", "The") as version 2 does: as no answer, where version 1 finds an exact
            match without a common word.
    """
    if prediction is None:
        return 0.0, 0.0
    if version_2:
        answers = [answer for answer in answers if normalize_answer(answer)] or [""]
    predicted = normalize_answer(prediction)
    exact = max(float(predicted == normalize_answer(answer)) for answer in answers)
    return exact, exact if answers == [""] else max(_f1(predicted, normalize_answer(answer)) for answer in answers)


def normalize_answer(text: str) -> str:
    """Lower-case a text, and leave out ASCII punctuation, articles and all but single spaces, in this order."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(WITHOUT_PUNCTUATION)).split())


def _f1(prediction: str, answer: str) -> float:
    words, right = Counter(prediction.split()), Counter(answer.split())
    # the harmonic mean of precision and recall
    return 2 * (words & right).total() / max(words.total() + right.total(), 1)


def _best_threshold(scores: np.ndarray, odds: np.ndarray, has_answer: np.ndarray) -> tuple[float, float]:
    # from no answers at all on, each greater threshold lets all questions with these odds be answered
    thresholds, index = np.unique(odds, return_inverse=True)
    gains = np.bincount(index, weights=scores - ~has_answer)
    totals = np.cumsum([np.sum(~has_answer), *gains])
    best = int(totals.argmax())
    return 100 * totals[best] / len(scores), float([thresholds[0] - 1, *thresholds][best])
