"""Exact match and F1 of SQuAD (Rajpurkar et al., 2016, section 6.1; version 2: Rajpurkar et al., 2018)."""

import json
import re
import string
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import TrainingArguments

from sublayers.tasks.windows import best_answers
from sublayers.training.data.squad import PLACE, SquadDataArguments

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


def choose_answers(
    logits: Any, questions: Dataset, windows: Dataset, run: Any, progress: bool = False
) -> dict[str, tuple[list[tuple[float, str]], float]]:
    """Choose the best answers to each question from all windows of its context (Devlin et al., 2019, section 4.2).

    Args:
        logits: start and end logits, two arrays of (windows, tokens).
        questions: what was asked.
        windows: what `answer_windows` made of the questions for evaluation.
        run: how many answers of how many tokens.
        progress: whether to show a progress bar.

    Returns:
        By id the best answers, best first, each with its score, start logit plus end logit; and the score of no answer,
        the least that [CLS] has in any window.
    """
    answers = {}
    places = zip(windows.select_columns(PLACE), *map(torch.from_numpy, logits), strict=True)
    groups = groupby(places, key=lambda place: place[0]["example"])
    bar = tqdm(questions, "choosing answers", disable=not progress)
    for question, (_, group) in zip(bar, groups, strict=True):
        null_score, candidates = inf, []
        for window, start, end in group:
            context = slice(window["context_start"], window["context_start"] + len(window["offsets"]))
            candidates.append((start[context], end[context], window["offsets"]))
            null_score = min(null_score, float(start[window["cls_index"]] + end[window["cls_index"]]))
        spans = best_answers(candidates, run.max_answer_length, run.n_best_size)
        texts = [(score, question["context"][start:end]) for score, start, end in spans]
        # a context may have no tokens
        answers[question["id"]] = texts or [(null_score, "")], null_score
    return answers


def start_and_end(logits: Any, labels: Any) -> Any:
    """Choose the logits of starts and ends, two tensors of (batch, tokens), from what a model computes."""
    # other outputs of the model would be kept for all windows
    return logits[:2]


def evaluate(
    prediction: Any, questions: Dataset, windows: Dataset, run: Any, data: SquadDataArguments, args: TrainingArguments
) -> dict[str, float]:
    """Choose answers, score them, and write them into the output folder.

    Args:
        prediction: logits of starts and ends, two arrays of (windows, tokens).
        questions: what was asked.
        windows: what `answer_windows` made of the questions for evaluation.
        run: the flags of `sublayers squad` for the choice of answers.
        data: those for the questions.
        args: of the Trainer.
    """
    chosen = choose_answers(prediction.predictions, questions, windows, run, not args.disable_tqdm)
    predictions = {name: answers[0][1] for name, (answers, _) in chosen.items()}
    null_odds = {name: null_score - answers[0][0] for name, (answers, null_score) in chosen.items()}
    metrics = squad_metrics(predictions, questions, data.version_2, null_odds, run.null_score_diff_threshold)
    files: dict[str, dict[str, Any]] = {"predictions": predictions}
    if data.version_2:
        chosen = {name: (sorted([*a, (score, "")], reverse=True), score) for name, (a, score) in chosen.items()}
        unanswered = {name: "" for name, odds in null_odds.items() if odds > run.null_score_diff_threshold}
        files = {"predictions": predictions | unanswered, "null_odds": null_odds}
    files["nbest_predictions"] = {name: _with_probabilities(answers) for name, (answers, _) in chosen.items()}
    if args.should_save:
        # the last of several evaluations replaces the others, as with metrics
        for name, content in files.items():
            text = json.dumps(content, indent=2, ensure_ascii=False)
            Path(str(args.output_dir), f"{name}.json").write_text(text + "\n", encoding="utf-8")
    return metrics


def _with_probabilities(answers: list[tuple[float, str]]) -> list[dict[str, Any]]:
    probabilities = torch.tensor([score for score, _ in answers]).softmax(0).tolist()
    return [
        {"text": text, "score": score, "probability": probability}
        for (score, text), probability in zip(answers, probabilities, strict=True)
    ]
