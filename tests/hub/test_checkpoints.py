"""The trained models of the repository: a stranger opens them, and they score on stored samples what they did."""

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from hub_metadata import metadata_errors
from launched import python
from sacrebleu import corpus_bleu
from safetensors import safe_open
from snippets import check_command

from sublayers.training.results import read

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {path.parent.name: path.parent for path in sorted(ROOT.glob("model_cards/checkpoints/*/config.json"))}
SAMPLES = {name: ROOT / "tests" / "reference" / "checkpoints" / f"{name}.json" for name in FOLDERS}
FIGURES = {row["model"]: row for file in ROOT.glob("results/checkpoints_*.csv") for row in read(file)}
every_folder = pytest.mark.parametrize("name", FOLDERS)


def run_of(name):
    return json.loads((FOLDERS[name] / "run.json").read_text())


def without_resuming(words):
    resumes = words.index("--resume_from_checkpoint") if "--resume_from_checkpoint" in words else len(words)
    return words[:resumes] + words[resumes + 2 :]


def sample_of(name):
    return json.loads(SAMPLES[name].read_text())


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What a stranger gets for the samples, by checkpoint."""
    home = tmp_path_factory.mktemp("home")
    for name, folder in FOLDERS.items():
        shutil.copytree(folder, home / name)
    asked = [[str(home / name), *(sample_of(name)[part] for part in ("task", "texts"))] for name in FOLDERS]
    printed = python(Path(__file__).with_name("stranger.py"), json.dumps(asked), home=home)
    return dict(zip(FOLDERS, json.loads(printed.splitlines()[-1]), strict=True))


@every_folder
def test_scores_on_its_sample_what_it_scored(answers, name):
    sample, found = sample_of(name), answers[name]
    if sample["task"] == "translation":
        found = [each["translation_text"] for each in found]
        assert corpus_bleu(found, [sample["references"]]).score == pytest.approx(sample["bleu"], abs=2)
        # where two words are as likely, machines differ
        assert sum(map(str.__eq__, found, sample["answers"])) >= len(found) - 1
    elif isinstance(found[0], float):
        assert found == pytest.approx(sample["answers"], abs=2e-3)
    else:
        # the best word or label of each text, as a dictionary or a list of one
        best = [each[0] if isinstance(each, list) else each for each in found]
        assert best == [pytest.approx(each, abs=5e-3) for each in sample["answers"]]


@every_folder
def test_its_card_has_what_was_measured(name):
    card, run = (FOLDERS[name] / "README.md").read_text(), run_of(name)
    assert metadata_errors(card) == ([], [])
    assert run["command"] in card
    # a plain model of the same cost, or the teacher
    assert run.get("beside") or any(score["metric"].startswith("teacher_") for score in run["results"])
    figures = {f"{score['split']} {score['metric']}": score["value"] for score in run["results"]}
    told = {column: value for column, value in FIGURES[name].items() if column in figures}
    assert told
    for column, value in told.items():
        assert float(value) == pytest.approx(figures[column], abs=0.006), column


def test_they_are_small_and_in_16_bits():
    # controls have figures and no folder
    assert {name: f"model_cards/checkpoints/{name}" for name in FOLDERS} == {
        name: row["source"] for name, row in FIGURES.items() if row["source"]
    }
    total = 0
    for folder in FOLDERS.values():
        total += sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        with safe_open(folder / "model.safetensors", "pt") as weights:
            assert {weights.get_slice(key).get_dtype() for key in weights.keys()} == {"BF16"}  # noqa: SIM118
    assert total < 120e6


def test_make_checkpoints_makes_each_with_the_command_of_its_card(monkeypatch):
    printed = subprocess.run(["make", "-n", "checkpoints"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = [shlex.split(line) for line in printed.replace("\\\n", " ").splitlines()]
    called = [words[i:] for words in lines for i, word in enumerate(words) if word.endswith("/sublayers")]
    commands = [["sublayers", *words[1:]] for words in called]
    for words in commands:
        check_command(words, monkeypatch)
    exported = {Path(words[3]).name: Path(words[2]).parts for words in commands if words[1] == "export"}
    assert exported.keys() == FOLDERS.keys()
    trained = [without_resuming(words) for words in commands if words[1] != "export"]
    for name, run in exported.items():
        [words] = [words for words in trained if words[words.index("--output_dir") + 1] in run]
        assert without_resuming(shlex.split(run_of(name)["command"])) == words
