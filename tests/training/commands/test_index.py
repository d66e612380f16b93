import json
import re
import shlex
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from sublayers.auto_models import AUTO_CLASSES
from sublayers.configuration.order import Order
from sublayers.training import cli
from sublayers.training.flags import RECIPES
from sublayers.training.results import read


@pytest.fixture
def found(capsys):
    def find(*flags):
        cli.main(["list", *flags, "--json"])
        return json.loads(capsys.readouterr().out)

    return find


RESULTS = Path(__file__).resolve().parents[3] / "results"


def names(found, kind=None):
    return {entry["name"] for entry in found if kind in (None, entry["kind"])}


def test_everything_is_listed(found):
    listed = found()
    assert names(listed, "family") == {config.model_type for config in AUTO_CLASSES}
    files = {f"{path.parent.name} {path.stem}" for path in RECIPES.rglob("*.yaml")}
    assert files == names(listed, "recipe")
    assert {"bert", "llama", "transfo-xl", "adaptive span"} <= names(listed, "converter")
    assert [entry["name"] for entry in listed if entry["orders"] == ["(se)32"]] == ["Mixtral-8x7B-v0.1"]
    assert {entry["family"] for entry in listed} - {""} == names(listed, "family")


def test_published_orders_have_their_source(found):
    [entry, hybrid, *others] = found("--kind", "model")
    assert [other["orders"] for other in others] == [["(se)16"], ["(se)32"], ["(se)48"], ["((re)3se)12"]]
    # as its settings write it
    written = Order(hybrid["orders"][0]).letters.translate(str.maketrans("rfs", "M-*"))
    assert written == "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
    assert entry["orders"] == ["(gfgfsf)3(gfsf)3gf"]
    letters = Order(entry["orders"][0]).letters
    assert [i for i, letter in enumerate(letters[::2]) if letter == "s"] == [2, 5, 8, 10, 12, 14]
    assert (len(letters), letters[1::2]) == (32, "f" * 16)
    assert entry["source"].endswith("huggingface.co/LiquidAI/LFM2-350M")


def test_parts_of_papers_have_their_command_and_what_came_of_it(found):
    listed = {entry["name"]: entry for entry in found("--kind", "paper")}
    rows = {f"{path.stem}: {row['part']}": row for path in (RESULTS / "papers").glob("*.csv") for row in read(path)}
    assert {name: entry["command"] for name, entry in listed.items()} == {n: row["command"] for n, row in rows.items()}
    assert listed["sandwich: Figure 5"]["outcome"].startswith("agrees that sandwiches are better")
    assert listed["sandwich: Table 3"]["outcome"] == "not run: days on eight GPUs"


def test_results_are_rows_that_have_an_order(found):
    listed = found("--kind", "result")
    assert {name.split(": ")[0] for name in names(listed)} <= {path.stem for path in RESULTS.glob("*.csv")}
    by_name = {entry["name"]: entry["orders"] for entry in listed}
    assert by_name["bench_bert: sublayers s5f19"] == ["s5f19"]
    assert by_name["bench_iot: sf:csf,fcs"] == ["sf", "csf", "fcs"]
    assert by_name["multi30k: Macaron"] == ["(fsf)3", "(fscf)3"]
    assert "bench_iot: Transformer" not in by_name


def test_an_order_is_asked_for_in_either_form(found):
    assert "par_bert" in names(found("sff*"), "family")
    assert "par_bert" in names(found("(sff)5f9"), "family")
    assert names(found("s5(sf)19f5")) == {"sandwich_char_lm", "pretrain sandwich_enwik8"}
    assert names(found("sfs3f3")) == {"minilm_students: `sfs3f3`, layers 0 1 3 5"}


def test_heads_and_tasks_are_what_auto_classes_and_pipelines_load(found):
    listed = found("--kind", "family", "--head", "MaskedLM")
    assert names(listed) == {c.model_type for c, heads in AUTO_CLASSES.items() if AutoModelForMaskedLM in heads}
    assert names(listed) == names(found("--kind", "family", "--task", "fill-mask"))
    generating = names(found("--kind", "family", "--task", "text-generation"))
    assert generating == {c.model_type for c, heads in AUTO_CLASSES.items() if AutoModelForCausalLM in heads}


def test_filters_are_combined(found):
    listed = found("--family", "bert", "--kind", "recipe")
    assert names(listed) == {"pretrain macaron_bert", "pretrain nvlamb_phase1", "pretrain nvlamb_phase2"}


@pytest.mark.parametrize(
    ("flags", "given"), [(["x*"], "order 'x*'"), (["(fsf)12", "--family=par"], "order '(fsf)12' and family 'par'")]
)
def test_a_search_that_finds_nothing_says_so(flags, given, refusal):
    assert f"nothing has {given}; ask for less, any family runs any order" in refusal("list", *flags)


@pytest.mark.parametrize("page", ["README.md", "docs/models.md"])
def test_searches_that_a_page_shows_find_something(page, found):
    text = (RESULTS.parent / page).read_text()
    for flags in re.findall(r"`sublayers list ([^`]+)`|^sublayers list (.+?)(?: +#.*)?$", text, re.MULTILINE):
        assert found(*(word for word in shlex.split("".join(flags)) if word != "--json"))


def test_the_table_shows_each_once(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    cli.main(["list", "--family", "par_bert"])
    printed = capsys.readouterr().out
    heads = [line.split() for line in printed.splitlines() if "name" in line]
    shown = [[word for word in head if word.isalpha()] for head in heads[:2]]
    assert shown == [["name", "orders", "heads"], ["name", "family", "orders", "heads"]]
    for word in ("(sff)5f9", "QuestionAnswering", "pretrain nvlamb_phase1", "roberta"):
        assert word in printed
    assert "translation" not in printed
