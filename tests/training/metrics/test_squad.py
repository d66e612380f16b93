import json
import random
import re
import string
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from sublayers.training.commands.squad import main as squad
from sublayers.training.data.squad import SquadDataArguments, load_questions
from sublayers.training.metrics.squad import squad_metrics

SQUAD = Path(__file__).resolve().parents[4] / "shared" / "data" / "squad_v1.1"
needs_squad = pytest.mark.skipif(not SQUAD.is_dir(), reason="../shared/data/squad_v1.1 is not there")


def naive_score(prediction: str | None, golds: list[str]) -> tuple[float, float]:
    """Exact match and F1 of version 1.1 by the words of its paper, one character and one word at a time."""

    def words(text):
        text = "".join(char for char in text.lower() if char not in string.punctuation)
        found = re.findall(r"\w+|\W+", text)
        return "".join(" " if word in ("a", "an", "the") else word for word in found).split()

    exact = f1 = 0.0
    for gold in golds if prediction is not None else []:
        mine, right = words(prediction), words(gold)
        exact = max(exact, float(mine == right))
        common = 0
        left = list(right)
        for word in mine:
            if word in left:
                left.remove(word)
                common += 1
        if common:
            precision, recall = common / len(mine), common / len(right)
            f1 = max(f1, 2 * precision * recall / (precision + recall))
    return exact, f1


AWKWARD = [
    "the Denver Broncos", "Denver  broncos!", "Theatre", "a b b c", "b b", "b", "…", ".", "The", "", "U.S.", "US",
    "“US”", "café", unicodedata.normalize("NFD", "café"), "an apple a day", "1,000", "1000", "the a an", "İstanbul",
    "x_the_y", "well-known", "wellknown", "a\tb\nc", "Straße", "STRASSE", "the-end", "end", "a.", "naïve the",
]  # fmt: skip


def as_questions(golds: list[list[str]]) -> list[dict]:
    return [{"id": n, "answers": {"text": texts}} for n, texts in enumerate(golds)]


def test_exact_match_and_f1_are_those_of_the_definition():
    pairs = [(p, [gold]) for p in AWKWARD for gold in AWKWARD if gold]
    pairs += [(p, ["b", "a b b", "Theatre"]) for p in [*AWKWARD, None]]
    for prediction, golds in pairs:
        actual = squad_metrics({} if prediction is None else {0: prediction}, as_questions([golds]))
        exact, f1 = naive_score(prediction, golds)
        assert actual == pytest.approx({"exact_match": 100 * exact, "f1": 100 * f1}), (prediction, golds)
    predictions = {n: text for n, (text, _) in reversed(list(enumerate(pairs)))}
    actual = squad_metrics(predictions, as_questions([golds for _, golds in pairs]))
    scores = np.mean([naive_score(*pair) for pair in pairs], axis=0)
    assert list(actual.values()) == pytest.approx(list(100 * scores))


def test_version_2_scores_parts_and_finds_the_best_threshold():
    draw = random.Random(0)
    golds = [[draw.choice(AWKWARD) or "b"] * draw.randint(0, 2) for _ in range(60)]
    texts = [golds[n][0] if golds[n] and n % 3 else draw.choice(AWKWARD) for n in range(60)]
    # many of them equal, so that no threshold is between them
    odds = [draw.randint(-4, 4) / 2 - bool(golds[n]) for n in range(60)]

    def has_words(text):
        # what shares a word with itself
        return naive_score(text, [text])[1] > 0

    def naive(threshold):
        scores = []
        for text, gold, odd in zip(texts, golds, odds, strict=True):
            worded = [g for g in gold if has_words(g)]
            if odd > threshold:
                scores.append((float(not gold),) * 2)
            else:
                # what has no words is no answer in version 2
                scores.append(naive_score(text, worded) if worded else (float(not has_words(text)),) * 2)
        return 100 * np.array(scores)

    actual = squad_metrics(dict(enumerate(texts)), as_questions(golds), True, dict(enumerate(odds)), 0.5)
    has_answer = np.array([bool(gold) for gold in golds])
    for prefix, part in {"": has_answer | True, "HasAns_": has_answer, "NoAns_": ~has_answer}.items():
        assert actual[f"{prefix}total"] == part.sum()
        expected = naive(0.5)[part].mean(0)
        assert [actual[f"{prefix}exact"], actual[f"{prefix}f1"]] == pytest.approx(list(expected))
    for column, name in enumerate(("exact", "f1")):
        best = max(naive(threshold)[:, column].mean() for threshold in [-99, *odds])
        assert actual[f"best_{name}"] == pytest.approx(best)
        assert naive(actual[f"best_{name}_thresh"])[:, column].mean() == pytest.approx(best)


@needs_squad
@pytest.mark.slow
@pytest.mark.full
def test_nested_and_flat_files_are_the_same_and_score_as_the_definition_says(capsys, tmp_path):
    nested, flat = (
        load_questions("validation", SquadDataArguments(validation_file=str(SQUAD / name)))
        for name in ("dev-v1.1.json.gz", "validation.parquet")
    )
    assert nested.to_list() == flat.to_list()
    draw = random.Random(0)
    # some right, some cut, some wrong and some missing
    predictions = {}
    for row in nested:
        text = draw.choice(row["answers"]["text"])
        predictions[row["id"]] = draw.choice([text, f"The {text}!", " ".join(text.split()[1:]), row["context"][:20]])
    for name in list(predictions)[::50]:
        del predictions[name]
    path = tmp_path / "predictions.json"
    path.write_text(json.dumps(predictions))
    metrics = squad(["--predictions_file", str(path), "--validation_file", str(SQUAD / "dev-v1.1.json.gz")])
    scores = [naive_score(predictions.get(row["id"]), row["answers"]["text"]) for row in nested]
    assert [metrics["exact_match"], metrics["f1"]] == pytest.approx(list(100 * np.mean(scores, axis=0)))
    assert "212 of 10570 questions have no prediction and count as wrong" in capsys.readouterr().err
