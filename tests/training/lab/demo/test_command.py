import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from sublayers.training.data import corpus, statements
from sublayers.training.lab.demo import bert as demo_bert, command as demo, lm as demo_lm
from sublayers.training.results import read

pytestmark = pytest.mark.slow


def test_bigram_perplexity_equals_a_naive_count():
    draw = np.random.default_rng(0)
    # token 6 never occurs in training, token 5 only at the end, where nothing follows
    train, validation = np.append(draw.integers(0, 5, 300), 5), draw.integers(0, 7, 80)
    pairs, firsts, followers = Counter(pairwise(train)), Counter(train[:-1]), Counter()
    for first, _ in pairs:
        followers[first] += 1
    nats = 0.0
    for a, b in pairwise(validation):
        frequency = ((train == b).sum() + 1) / (len(train) + 7)
        if firsts[a]:
            probability = max(pairs[a, b] - 0.75, 0) / firsts[a] + 0.75 * followers[a] / firsts[a] * frequency
        else:
            probability = frequency
        nats -= math.log(probability)
    assert demo_lm.bigram_perplexity(train, validation, 7) == pytest.approx(math.exp(nats / 79))


@pytest.mark.full
def test_trains_all_models_and_tries_them_in_new_processes(tmp_path, monkeypatch, capfd):
    library = corpus.standard_library()
    small = {split: rows.select(range(min(20, len(rows)))) for split, rows in library.items()}
    monkeypatch.setattr(corpus, "standard_library", lambda: small)
    monkeypatch.setattr(demo_lm, "standard_library", lambda: small)
    monkeypatch.setattr(statements, "standard_library", lambda: small)
    monkeypatch.setattr(demo_lm, "EVALUATION_FILES", 2)
    # no other number for the tests that follow
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(demo_lm, "FLAGS", demo_lm.FLAGS.replace("--max_eval_samples 30", "--max_eval_samples 2"))
    monkeypatch.setenv("COLUMNS", "120")
    demo.main(["--max_steps", "2", "--output_dir", str(tmp_path / "demo")])
    out = capfd.readouterr().out
    for expected in ("sandwich", "s(sf)2f", "(sf)3", "bigram", demo_lm.PROMPT, "s2(sf)2f2"):
        assert expected in out
    # each answer with what is right
    judged = [line for line in out.splitlines() if "acceptable" in line]
    asked = statements.acceptable_statements()["validation"].take(demo_bert.ASKED)
    assert [line.split(": ", 1)[1] for line in judged] == asked["sentence"][:]
    assert ["unacceptable:" not in line for line in judged] == [label == 1 for label in asked["label"]]
    for name in ("sandwich", "interleaved"):
        assert {"model.safetensors", "tokenizer.json", "loss_curve.png", "loss_curve.json"} <= {
            path.name for path in (tmp_path / "demo" / name).iterdir()
        }
    assert (tmp_path / "demo" / "bert" / "par_bert" / "cola" / "model.safetensors").exists()
    figures = {row["model"]: row for row in read(tmp_path / "demo" / "results.csv")}
    assert [*figures] == [
        *("sandwich", "interleaved", "bigram, counted on the whole corpus"),
        *("par_bert", "always the same answer"),
    ]
    sandwich = figures["sandwich"]
    assert (sandwich["order"], sandwich["parameters"]) == ("s(sf)2f", "627968")
    assert 2 ** float(sandwich["bits per byte"]) == pytest.approx(float(sandwich["perplexity"]), rel=0.01)
    assert figures["par_bert"]["seeds"] == "42"
    assert -1 <= float(figures["par_bert"]["Matthews correlation"]) <= 1
    assert sandwich["command"].startswith("sublayers demo --max_steps 2")
    assert "the standard library of Python" in sandwich["data"]


def test_says_what_it_trains_and_for_how_long(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "few").mkdir()
    monkeypatch.setattr(demo_lm, "show_language_models", lambda *_: [])
    monkeypatch.setattr(demo_bert, "show_bert", lambda *_: [{"model": "bert"}])
    demo.main(["--output_dir", str(tmp_path / "few")])
    how_long = "Training two language models and a BERT, for about 2 minutes; 1 threads, as OMP_NUM_THREADS says"
    assert how_long in " ".join(capsys.readouterr().out.split())
