import gzip
import json
import random
import re
import warnings
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from tiny_runs import write_rows
from transformers import AutoModelForQuestionAnswering, pipeline

import sublayers.pipelines  # noqa: F401
from sublayers import PARBertConfig, PARBertForQuestionAnswering
from sublayers.tasks.windows import context_windows
from sublayers.training.commands.squad import SquadArguments, main as squad, parse
from sublayers.training.data.squad import SquadDataArguments, answer_windows, load_questions
from sublayers.training.data.tokenizers import train_tokenizer
from sublayers.training.metrics.squad import choose_answers

pytestmark = pytest.mark.slow

NAMES = ["Ann", "Bob", "Cleo", "Dan", "Eve", "Flo", "Gus", "Hal"]
CITIES = ["Rome", "Paris", "Oslo", "Lima", "Bonn", "Cairo", "Delhi", "Quito"]
FLAGS = ["--max_seq_length", "24", "--doc_stride", "6", "--use_cpu", "--disable_tqdm", "true", "--report_to", "none"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([" ".join(NAMES + CITIES) + " lives in, and where does live? not."] * 2, "wordpiece", 200)


@pytest.fixture
def model(tokenizer, tmp_path):
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "max_position_embeddings": 24}
    sizes |= {"vocab_size": len(tokenizer), "dropout": 0.0, "attention_dropout": 0.0}
    config = PARBertConfig(sublayer_order="sfsff", **sizes)
    PARBertForQuestionAnswering(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def make_rows(number: int, share_without_answer: float = 0.0, cities_at_once: int = 5) -> list[dict]:
    """Who lives where: contexts of several windows, in which the question's name occurs once or not at all."""
    draw = random.Random(number)
    rows = []
    for n in range(number):
        people, cities = draw.sample(NAMES, 6), draw.sample(CITIES, 5)
        homes = [f" in {c}" if (i - n) % 5 < cities_at_once else "" for i, c in enumerate(cities)]
        context = " ".join(f"{p} lives{home}." for p, home in zip(people, homes, strict=False))
        known = draw.random() >= share_without_answer
        who, city = (people[n % 5], cities[n % 5]) if known else (people[5], "")
        answers = {"text": [city] * known, "answer_start": [context.index(city)] * known}
        rows.append({"id": f"q{n}", "question": f"where does {who} live?", "context": context, "answers": answers})
    return rows


def write_nested(rows: list[dict], path: Path) -> str:
    def nested(row):
        answers = [{"text": text, "answer_start": start} for text, start in zip(*row["answers"].values(), strict=True)]
        return {"context": row["context"], "qas": [{"id": row["id"], "question": row["question"], "answers": answers}]}

    with (gzip.open if path.suffix == ".gz" else open)(path, "wt") as file:
        json.dump({"version": "1.1", "data": [{"title": "People", "paragraphs": [*map(nested, rows)]}]}, file)
    return str(path)


def test_windows_hold_the_answer_or_point_at_cls(tokenizer):
    rows = make_rows(20, 0.3)
    # a start within a word, and white space at the ends of an answer and of a context
    rows[0]["answers"] = {"text": ["ives"], "answer_start": [rows[0]["context"].index("ives")]}
    rows[1]["context"] = f"  {rows[1]['context']}"
    rows[1]["answers"] = {"text": [rows[1]["context"][:6]], "answer_start": [0]}
    # several words, of which some windows hold a part
    for n, row in enumerate(rows[2:12]):
        row["answers"] = {"text": [row["context"][5 * n :][:20]], "answer_start": [5 * n]}
    args = SquadDataArguments(max_seq_length=24, doc_stride=6, version_2=True)
    windows = answer_windows(datasets.Dataset.from_list(rows), tokenizer, args, training=False)
    assert len(windows) >= 2 * len(rows)
    answered, seen = set(), {n: set() for n in range(len(rows))}
    for window in windows:
        row, offsets, first = rows[window["example"]], window["offsets"], window["context_start"]
        assert len(window["input_ids"]) <= 24
        assert window["cls_index"] == 0
        seen[window["example"]].update(range(offsets[0][0], offsets[-1][1]))
        begin, end = window["start_positions"], window["end_positions"]
        text = row["answers"]["text"][0].strip() if row["answers"]["text"] else None
        if text is not None:
            start = row["answers"]["answer_start"][0] + row["answers"]["text"][0].index(text)
            inside = offsets[0][0] <= start and start + len(text) <= offsets[-1][1]
            tokens = [n for n, (s, e) in enumerate(offsets, first) if inside and s < start + len(text) and e > start]
        if text is None or not tokens:
            assert (begin, end) == (0, 0)
        else:
            assert (begin, end) == (tokens[0], tokens[-1])
            answered.add(window["example"])
    assert answered == {n for n, row in enumerate(rows) if row["answers"]["text"]}
    assert all(len(seen[n]) == len(row["context"].strip()) for n, row in enumerate(rows))
    # neighbours share as many tokens of the context as asked for
    one, two = windows[0], windows[1]
    assert one["offsets"][-6:] == two["offsets"][:6]


def test_windows_know_their_questions_however_many_there_are(tokenizer):
    rows = datasets.Dataset.from_list(make_rows(1001))
    windows = answer_windows(rows, tokenizer, SquadDataArguments(max_seq_length=24, doc_stride=6), training=False)
    assert list(dict.fromkeys(windows["example"])) == list(range(1001))


def test_white_space_around_a_question_takes_no_room():
    tokenizer = train_tokenizer([], "byte", 300)
    spaced, bare = (
        context_windows(tokenizer, [question], ["Rome"], 12, 0) for question in (" \n " * 9 + "Where?", "Where?")
    )
    assert spaced["input_ids"] == bare["input_ids"]


def test_chooses_the_best_answers_of_all_windows(tokenizer):
    rows = datasets.Dataset.from_list(make_rows(5))
    args = SquadDataArguments(max_seq_length=24, doc_stride=6)
    windows = answer_windows(rows, tokenizer, args, training=False)
    start, end = np.random.default_rng(0).normal(size=(2, len(windows), 24)).astype(np.float32)
    chosen = choose_answers((start, end), rows, windows, SquadArguments(n_best_size=7, max_answer_length=3))
    for n, row in enumerate(rows):
        spans, null_scores = {}, []
        for w, window in enumerate(windows):
            if window["example"] != n:
                continue
            null_scores.append(start[w, 0] + end[w, 0])
            for i, (begin, _) in enumerate(window["offsets"], window["context_start"]):
                for j, (_, stop) in enumerate(window["offsets"], window["context_start"]):
                    if i <= j < i + 3:
                        spans[begin, stop] = max(start[w, i] + end[w, j], spans.get((begin, stop), -np.inf))
        best = sorted(((score, row["context"][b:e]) for (b, e), score in spans.items()), reverse=True)[:7]
        answers, null_score = chosen[row["id"]]
        assert [text for _, text in answers] == [text for _, text in best]
        assert [score for score, _ in answers] == pytest.approx([float(score) for score, _ in best], abs=1e-6)
        assert null_score == pytest.approx(float(min(null_scores)), abs=1e-6)


def test_learns_and_leaves_a_model_for_the_pipeline(tmp_path, model, capsys):
    # where there is one city it is the answer
    rows = make_rows(200, cities_at_once=1)
    out = tmp_path / "out"
    train, validation = write_rows(tmp_path / "t.jsonl", rows), write_nested(rows[:60], tmp_path / "v.json.gz")
    files = ["--train_file", train, "--validation_file", validation, "--output_dir", str(out)]
    steps = ["--num_train_epochs", "4", "--learning_rate", "5e-3", "--train_sampling_strategy", "group_by_length"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        metrics = squad(["--model_name_or_path", model, *files, *steps, *FLAGS])
    assert metrics["eval_exact_match"] > 90
    printed = capsys.readouterr().out.splitlines()[-1]
    assert f"eval_exact_match {metrics['eval_exact_match']:.4f}, eval_f1 {metrics['eval_f1']:.4f} in {out}" in printed
    assert json.loads((out / "all_results.json").read_text())["eval_f1"] == metrics["eval_f1"]
    card = ModelCard.load(out / "README.md").data
    assert card.pipeline_tag == "question-answering"
    assert {s.metric_type: s.metric_value for s in card.eval_results}["f1"] == metrics["eval_f1"]
    predictions = json.loads((out / "predictions.json").read_text())
    n_best = json.loads((out / "nbest_predictions.json").read_text())
    assert predictions == {name: answers[0]["text"] for name, answers in n_best.items()}
    assert sum(answer["probability"] for answer in n_best["q0"]) == pytest.approx(1)
    assert not (out / "null_odds.json").exists()

    answer = pipeline("question-answering", model=str(out), doc_stride=6)
    for row in rows[:5]:
        assert answer(question=row["question"], context=row["context"])["answer"] == row["answers"]["text"][0]
    scored = squad(["--predictions_file", str(out / "predictions.json"), "--validation_file", validation])
    assert (scored["exact_match"], scored["f1"]) == (metrics["eval_exact_match"], metrics["eval_f1"])


def test_version_2_leaves_questions_unanswered(tmp_path, model):
    rows = make_rows(60, 0.5)
    validation = write_nested(rows, tmp_path / "v.json")
    command = ["--model_name_or_path", model, "--validation_file", validation, "--version_2", "--do_eval", *FLAGS]
    metrics = squad([*command, "--output_dir", str(tmp_path / "a")])
    odds = json.loads((tmp_path / "a" / "null_odds.json").read_text())
    n_best = json.loads((tmp_path / "a" / "nbest_predictions.json").read_text())
    for name, answers in n_best.items():
        scores = {answer["text"]: answer["score"] for answer in answers[::-1]}
        best = max(score for text, score in scores.items() if text)
        assert odds[name] == pytest.approx(scores[""] - best, abs=1e-5)
    threshold = sorted(odds.values())[20]
    again = squad([*command, "--output_dir", str(tmp_path / "b"), "--null_score_diff_threshold", str(threshold)])
    predictions = json.loads((tmp_path / "b" / "predictions.json").read_text())
    assert {name for name, text in predictions.items() if not text} == {n for n, odd in odds.items() if odd > threshold}
    scored = squad(
        ["--predictions_file", str(tmp_path / "b" / "predictions.json"), "--validation_file", validation, "--version_2"]
    )
    assert scored == pytest.approx({name: again[f"eval_{name}"] for name in scored})
    best = metrics["eval_best_f1_thresh"]
    final = squad([*command, "--output_dir", str(tmp_path / "c"), "--null_score_diff_threshold", str(best)])
    assert final["eval_f1"] == pytest.approx(metrics["eval_best_f1"])
    assert metrics["eval_HasAns_total"] + metrics["eval_NoAns_total"] == 60


def test_reads_a_data_set_and_takes_the_first_questions(tmp_path, model):
    folder = tmp_path / "people"
    folder.mkdir()
    for split in ("train", "validation"):
        datasets.Dataset.from_list(make_rows(8)).to_parquet(folder / f"{split}.parquet")
    few = ["--max_train_samples", "2", "--max_eval_samples", "3", "--num_train_epochs", "1"]
    out = tmp_path / "out"
    squad(["--model_name_or_path", model, "--dataset_name", str(folder), "--output_dir", str(out), *few, *FLAGS])
    assert list(json.loads((out / "predictions.json").read_text())) == ["q0", "q1", "q2"]
    assert AutoModelForQuestionAnswering.from_pretrained(out).config.model_type == "par_bert"


BAD_ROWS = [
    ({"answers": {"text": ["lives"], "answer_start": [0]}}, "'lives' of question 'q1' is not at answer_start=0"),
    ({"answers": {"text": ["lives"], "answer_start": [0]}}, "of its context, but at "),
    ({"answers": {"text": ["Atlantis"], "answer_start": [3]}}, "answer_start=3 of its context, nor anywhere else in"),
    ({"answers": {"text": ["."], "answer_start": [-1]}}, "is not at answer_start=-1"),
    ({"answers": {"text": [""], "answer_start": [0]}}, "the answer '' of question 'q1'"),
    ({"answers": {"text": [], "answer_start": []}}, "question 'q1' has no answer; give --version_2"),
    ({"answers": None}, "question 'q1' has the answers None; give each a text and an"),
    ({"answers": {"text": [None], "answer_start": [0]}}, "question 'q1' has the answers"),
    ({"answers": {"text": ["."], "answer_start": [None]}}, "question 'q1' has the answers"),
    ({"answers": {"text": ["."], "answer_start": []}}, "question 'q1' has the answer"),
    ({"answers": "Rome"}, "rows.jsonl cannot be read: "),
    ({"context": " "}, "question 'q1' has an empty context"),
    ({"question": ""}, "question 'q1' has an empty question"),
    ({"question": "Rome " * 40}, "windows of 24 tokens have room for 0 of the co"),
    ({"id": "q0"}, "several questions with one id"),
]


@pytest.mark.parametrize(("columns", "message"), BAD_ROWS)
def test_bad_questions_are_one_sentence(columns, message, tmp_path, tokenizer):
    rows = make_rows(3)
    rows[1] |= columns
    args = SquadDataArguments(train_file=write_rows(tmp_path / "rows.jsonl", rows), max_seq_length=24, doc_stride=6)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        answer_windows(load_questions("train", args), tokenizer, args, training=True)
    assert "\n" not in str(error.value)


BAD_FILES = {
    "missing.jsonl": (b'{"id": "q", "question": "?", "context": "a"}', "has no column 'answers', only id, question, c"),
    "rows.csv": (b"question", "rows.csv has none of the known endings .json, .jsonl"),
    "half.json": (b'{"data": [', "half.json cannot be read: Expecting"),
    "archive.json.gz": (gzip.compress(b"{}" * 100)[:-12], "archive.json.gz cannot be read: "),
    "other.json": (b'{"data": [{"context": "Rome"}]}', "other.json is not nested as SQuAD is ('paragraphs'); give"),
    "text.json.gz": (b"{}", "text.json.gz cannot be read: Not a gzipped file"),
    "empty.json": (b'{"data": []}', "empty.json holds no questions"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_one_sentence(name, tmp_path):
    content, message = BAD_FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises((OSError, ValueError), match=re.escape(message)):
        load_questions("validation", SquadDataArguments(validation_file=str(tmp_path / name)))


def test_no_question_of_all_is_refused(tmp_path):
    args = SquadDataArguments(validation_file=write_rows(tmp_path / "rows.jsonl", make_rows(3)), max_eval_samples=0)
    with pytest.raises(ValueError, match="no validation question is left of the first 0; use at least"):
        load_questions("validation", args)


def test_the_least_numbers_are_taken():
    flags = ["--n_best_size=1", "--max_answer_length=1", "--doc_stride=0", "--model_name_or_path=some"]
    run, data, _ = parse(flags)
    assert (run.n_best_size, run.max_answer_length, data.doc_stride) == (1, 1, 0)
