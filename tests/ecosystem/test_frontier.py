"""`sublayers study frontier`, with a teacher of a few thousand parameters."""

import json

import numpy as np
import pytest
import sentence_transformers
import torch
import yaml
from scipy.stats import spearmanr
from tiny_teachers import TEXTS, make_sentence_encoder, save_plain_norms, save_teacher, write_texts

from sublayers import PARBertModel
from sublayers.modeling.linear import prepacked_forward
from sublayers.training import cli
from sublayers.training.commands import distill
from sublayers.training.flags import RECIPES
from sublayers.training.lab.studies import encoder_tests
from sublayers.training.lab.studies.frontier import main as frontier
from sublayers.training.lab.studies.students import read_student
from sublayers.training.results import read

pytestmark = pytest.mark.slow

STUDENTS = ["--students", "s3f3 --moves_every 1", "(sf)2 --layers 0 2", "(sf)3 --hidden_size 8"]
FOLDERS = dict(zip(STUDENTS[1:], ("s3f3_moves_every_1", "sf_2_layers_0_2", "sf_3_hidden_size_8"), strict=True))
KINDS = {"teacher": "teacher", **dict(zip(FOLDERS, ("re-ordered", "layers dropped", "narrower"), strict=True))}
PAIRS = [
    {"sentence1": a, "sentence2": b, "label": n % 6} for n, (a, b) in enumerate(zip(TEXTS, TEXTS[7:], strict=False))
]
NO_ANSWERS = {"text": ["a"], "answer_start": [0]}
QUESTIONS = [
    {"id": f"{n}", "question": TEXTS[n], "context": " ".join(TEXTS[n : n + 3]), "answers": NO_ANSWERS}
    for n in range(30)
]
DISTILL = "--use_cpu --disable_tqdm=true --report_to=none --max_length=16 --per_device_train_batch_size=8 --max_steps=4"


@pytest.fixture
def flags(tmp_path):
    model, _ = save_teacher(tmp_path / "teacher")
    save_plain_norms(model, tmp_path / "teacher")
    make_sentence_encoder(tmp_path / "teacher", "mean")
    texts = write_texts(tmp_path / "texts.txt")
    write_texts(tmp_path / "pairs.jsonl", map(json.dumps, PAIRS))
    write_texts(tmp_path / "questions.jsonl", map(json.dumps, QUESTIONS))
    return [
        *(str(tmp_path / "teacher"), "--train_file", str(texts), "--validation_split_percentage", "20"),
        *("--sts_file", str(tmp_path / "pairs.jsonl"), "--squad_file", str(tmp_path / "questions.jsonl")),
        *("--distill_flags", DISTILL, "--output_dir", str(tmp_path / "out")),
        *("--timed_texts", "4", "--rounds", "2", "--batch_sizes", "1", "3"),
    ]


@pytest.mark.full
def test_tests_times_and_draws_every_student_once(flags, tmp_path, monkeypatch, capsys):
    commands, run = [], cli.run
    monkeypatch.setattr(cli, "run", lambda argv: (commands.append(argv), run(argv)))
    results = frontier([*flags, *STUDENTS, "--seeds", "0", "1"])
    assert [command[0] for command in commands] == ["distill"] * 6
    kinds = dict(zip(results["name"], results["kind"], strict=True))
    assert kinds == KINDS
    assert len(results) == 7
    # each score is that of the folder's own embeddings
    asked = {"sentence1": PAIRS, "sentence2": PAIRS, "question": QUESTIONS, "context": QUESTIONS}
    for _, row in results.iterrows():
        folder = "teacher" if row["name"] == "teacher" else f"out/{FOLDERS[row['name']]}-{row['seed']}"
        encoder = sentence_transformers.SentenceTransformer(str(tmp_path / folder), device="cpu")
        first, second, questions, passages = (
            encoder.encode([each[name] for each in rows], normalize_embeddings=True) for name, rows in asked.items()
        )
        labels = [pair["label"] for pair in PAIRS]
        assert row["sts"] == pytest.approx(100 * spearmanr((first * second).sum(1), labels).statistic, abs=0.1)
        similar = questions @ passages.T
        rank = (similar > np.diag(similar)[:, None] + 1e-6).sum(1)
        assert row["retrieval"] == pytest.approx(100 * (rank < 10).mean())
    teacher = results[results["name"] == "teacher"].iloc[0]
    assert teacher["sts_time_1"] == teacher["retrieval_time_3"] == 1
    assert (results[[f"{test}_ms_{size}" for test in ("sts", "retrieval") for size in (1, 3)]] > 0).all(axis=None)
    kept = {row["model"]: row for row in read(tmp_path / "out" / "results.csv")}
    assert {name: row["kind"] for name, row in kept.items()} == kinds
    for name, row in kept.items():
        runs = results[results["name"] == name]
        assert row["seeds"] == ("0" if name == "teacher" else "0, 1")
        assert row["retrieval hits at 10"] == f"{runs['retrieval'].mean():.1f}"
        assert row["passage 3 at once (ms) ratio to teacher"] == f"{runs['retrieval_time_3'].mean():.2f}"
    assert "passage 3 at once, teacher: 1" in (tmp_path / "out" / "frontier.svg").read_text()
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| s3f3 --moves_every 1 | `s3f3` | re-ordered |" in card
    assert "sublayers study frontier" in card
    # what is there is not run again, and joins what is new
    commands.clear()
    more = frontier([*flags, "--students", "sf"])
    [command] = commands
    assert command[command.index("--sublayer_order") + 1] == "sf"
    assert len(more) == 8
    assert "| sf | `sf` | layers dropped |" in capsys.readouterr().out


def test_the_recipe_has_flags_that_distill_knows(flags, tmp_path, monkeypatch):
    commands = []
    parse_distill = distill.parse

    def parse(argv):
        commands.append(argv)
        run, corpus, args = parse_distill(argv)
        assert (run.pooling, run.max_length, args.warmup_steps) == ("cls", 16, 0.0333)
        assert args.lr_scheduler_kwargs == {"num_decay_steps": 0.5}
        return run, corpus, args

    monkeypatch.setattr(distill, "parse", parse)
    source, *others = flags
    at = others.index("--distill_flags")
    others[at + 1] = f"short_texts --pooling cls {DISTILL}"
    frontier([source, "frontier_short_texts", *others, "--students", "s3f3 --moves_every 1"])
    assert len(commands) == 1
    kinds = {"short_texts": {"re-ordered", "narrower"}, "tails": {"attending tail"}, "sublayers": {"sublayers dropped"}}
    for name, own in kinds.items():
        recipe = yaml.safe_load((RECIPES / "study" / f"frontier_{name}.yaml").read_text())
        flags = "short_texts --max_steps 300" if name == "sublayers" else "short_texts --pooling cls"
        assert recipe["distill_flags"].startswith(flags)
        assert {read_student(text).kind for text in recipe["students"]} == {"layers dropped"} | own


def test_teacher_and_students_are_timed_in_the_same_classes(flags, monkeypatch):
    timed = {}

    def times(name, calls, repeats, device):
        timed.update(calls)
        return {key: [1.0] for key in calls}

    monkeypatch.setattr(encoder_tests, "time_in_turn", times)
    frontier([*flags, "--students", "sf"])
    assert [*timed] == ["teacher", "sf"]
    for call in timed.values():
        model = call.func.__self__[0].model
        assert isinstance(model, PARBertModel)
        maps = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
        assert {module.forward.func for module in maps} == {prepacked_forward}


def test_other_settings_get_another_folder(flags, tmp_path):
    frontier([*flags, "--students", "sf"])
    with pytest.raises(FileExistsError, match=r"has a study with distill_flags .* choose another --output_dir"):
        frontier([*flags, "--students", "sf", "--distill_flags", f"{DISTILL} --learning_rate 1e-3"])
