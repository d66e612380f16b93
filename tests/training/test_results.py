import csv
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from sublayers.training import cli, results
from sublayers.training.results import commit, provenance, read, score, source, table, write

TIMED = {"step (ms)": "500", "step (ms) ratio to BERT": "0.50", "step (ms) ratio to GPT-2": "0.4"}
ROWS = [
    {"model": "BERT", "order": "(sf)2", "parameters": "1234567", "SST-2": "70.0", "SST-2 ±": "", "step (ms)": "1000.5"},
    {"model": "ours", "order": "s2f2", "SST-2": "71.5", "SST-2 ±": "0.25", **TIMED},
]


def test_a_table_has_deviations_and_ratios_beside_their_values():
    assert table(ROWS).splitlines() == [
        "| model | order | parameters | SST-2 | step (ms) |",
        "| --- | --- | --- | --- | --- |",
        "| BERT | `(sf)2` | 1,234,567 | 70.0 | 1,000.5 |",
        "| ours | `s2f2` |  | 71.5 ± 0.25 | 500 (0.50, 0.4) |",
    ]
    assert table(ROWS, {"model": "who", "SST-2": "right"}).splitlines()[::3] == [
        "| who | right |",
        "| ours | 71.5 ± 0.25 |",
    ]


def test_what_is_no_number_stays_as_it_is():
    rows = [{"model": "1.2.3", "decoder orders": "scf fcs", "left": "-1234", "words": "2 of 3"}]
    assert table(rows).splitlines()[2] == "| 1.2.3 | `scf`, `fcs` | -1,234 | 2 of 3 |"


def test_several_seeds_have_a_mean_and_a_deviation():
    # that of a sample
    assert score("STS-B", [1.0, 2.0, 6.0], 2) == {"STS-B": "3.00", "STS-B ±": "2.65"}
    assert score("STS-B", [4.26]) == {"STS-B": "4.3", "STS-B ±": ""}


def test_files_say_how_their_rows_were_made(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "commit", lambda: "abc1234")
    rows = [{**ROWS[0], "seeds": "0"}, {**ROWS[1], "seeds": "0, 1"}]
    command = ["study", "bert", "--hub_token", "hf_secret", "--order", "(sf)2"]
    about = provenance(command, ["some", "words"], others={"onnxruntime": "1.2"})
    write(rows, tmp_path / "out.csv", about)
    with (tmp_path / "out.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert [*first][-6:] == ["seeds", "data", "machine", "date", "commit", "command"]
    assert (first["model"], first["parameters"], first["step (ms) ratio to BERT"]) == ("BERT", "1234567", "")
    assert (first["data"], first["commit"]) == ("some, words", "abc1234")
    assert first["command"] == "sublayers study bert --order '(sf)2'"
    assert first["machine"].endswith("onnxruntime 1.2")
    assert f"torch {version('torch')}" in first["machine"]
    assert len(first["date"]) == len("2026-01-01")
    assert read(tmp_path / "out.csv") == [first, second]
    # what differs is not told of all
    assert source([first, second]) == (
        f"How: `sublayers study bert --order '(sf)2'`; some, words; {first['machine']}; {first['date']}; commit abc1234"
    )
    assert "; seeds 0; " in source([first])


def test_ratios_that_are_no_quotients_of_their_medians_are_explained():
    said = "ratios in brackets are medians of those within a round, so not the quotients of the medians beside them"
    fast = {"model": "fast", "order": "s2f2", "x (ms)": "71.0", "x (ms) ratio to slow": "0.61", "score": "1.0"}
    slow = {"model": "slow", "order": "(sf)2", "x (ms)": "104.0", "x (ms) ratio to slow": "", "date": "2026-01-02"}
    rows = [slow, fast]
    assert source(rows) == f"How: 2026-01-02; {said}"
    # peers have names or orders
    by_order = [{name.replace("slow", "(sf)2"): value for name, value in row.items()} for row in rows]
    assert source(by_order) == f"How: 2026-01-02; {said}"
    for quotient in ("0.68", ""):
        assert source([slow, fast | {"x (ms) ratio to slow": quotient}]) == "How: 2026-01-02"
    # of what there is no other time
    assert source([fast]) == ""


def git(folder, *words):
    author = ("-c", "user.name=ann", "-c", "user.email=ann@example.org")
    done = subprocess.run(["git", "-C", folder, *author, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_commit_is_that_of_the_code_and_of_no_repository_around_it(tmp_path, monkeypatch):
    package = tmp_path / "package"
    package.mkdir()
    module = package / "results.py"
    module.write_text("")
    monkeypatch.setattr(results, "__file__", str(module))
    assert commit() == ""
    git(tmp_path, "init")
    (tmp_path / "mine.txt").write_text("")
    git(tmp_path, "add", "mine.txt")
    git(tmp_path, "commit", "-m", "mine")
    assert commit() == ""
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "the package")
    git(tmp_path, "tag", "-a", "v1", "-m", "a release")
    assert commit() == git(tmp_path, "rev-parse", "--short", "HEAD")
    module.write_text("changed")
    assert commit().endswith("-dirty")


@pytest.fixture
def figures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("results").mkdir()
    Path("results/a.csv").write_text("model,x (ms),y (ms),y (ms) ratio,date\nBERT,1,2,,2026-01-02\nours,3,4000,0.5,\n")


MARKS = "<!-- results/a.csv: {} -->\nold\n<!-- end of results/a.csv -->\n"
SOURCE = "\nHow: 2026-01-02\n"


def made_of(*columns):
    """What the command makes of a document with a table of each."""
    document = Path("README.md")
    document.write_text("".join(f"# here\n{MARKS.format(each)}" for each in columns))
    cli.main(["results", "README.md"])
    return [part.split("-->\n", 1)[1].split("<!--")[0] for part in document.read_text().split("# here\n")[1:]]


def test_tables_in_documents_are_written_again(figures):
    who = "| who | y (ms) |\n| --- | --- |\n| BERT | 2 |\n| ours | 4,000 (0.5) |\n"
    assert made_of("model as who, y (ms)") == [f"{who}{SOURCE}"]
    before = Path("README.md").read_text()
    cli.main(["results", "README.md"])
    assert Path("README.md").read_text() == before
    # columns can be named by what they share, and over several lines
    [made] = made_of("model,\n* (ms)")
    assert made.startswith("| model | x (ms) | y (ms) |\n")
    # the last table of a file says how it was made
    first, second = made_of("model, x (ms)", "model, y (ms) ratio")
    assert "How:" not in first
    assert second.endswith(f"| ours | 0.5 |\n{SOURCE}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MARKS.format("model, z"), "results/a.csv has no column 'z'; choose from model, x (ms)"),
        (
            "<!-- results/a.csv: model -->\n" + MARKS.format("model"),
            "a table of results/a.csv has no end; write <!-- end of results/a.csv -->",
        ),
        (MARKS.format("model").replace("a.csv", "b.csv"), "results/b.csv"),
    ],
)
def test_bad_marks_are_one_sentence(text, message, figures, refusal):
    Path("README.md").write_text(text)
    assert message in refusal("results", "README.md")
