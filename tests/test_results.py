"""The figures that README, cards and documentation show are those of results/."""

import re
from decimal import Decimal
from pathlib import Path

import pytest

from sublayers.training.commands.results import MARKED, render
from sublayers.training.results import PROVENANCE, read

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "model_cards").glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))

# what has digits behind a point and is no figure: front matter, code, targets of links, versions, sections, settings
OTHERS = (
    r"\A---\n.*?\n---\n",
    r"```.*?```",
    r"`[^`]*`",
    r"<[^>]*>",
    r"\]\([^)]*\)",
    r"\b(torch|transformers|OpenVINO|ONNX Runtime|Python|SQuAD|Apache|sections?|appendix)[\s-]\d+(\.\d+)+",
    r"\b\d+\.\d+ (M (words|tokens)|epochs)\b",
    r"\b(dropout|smoothing|weight decay|probabilities \|) (of )?\d+\.\d+",
)
OF_A_PAPER = re.compile(r"\b(papers?|authors|their figures|(section|Table) \d)")
NUMBER = re.compile(r"(?<![\w.])(\d[\d,]*\.\d+)(?![\d.]*\w|e)( M\b)?")


def figures_for(text: str) -> set[str]:
    """What a text may tell: the figures of the tables in it, of those that it links to, and the single findings."""
    linked = [ROOT / "model_cards" / Path(target).name for target in re.findall(r"\]\(([^)#:]+\.md)", text)]
    texts = [text, *(document.read_text() for document in linked if document in DOCUMENTS)]
    files = {"results/findings.csv", *(match[2] for each in texts for match in MARKED.finditer(each))}
    cells = [
        cell for file in files for row in read(ROOT / file) for name, cell in row.items() if name not in PROVENANCE
    ]
    return {cell.removeprefix("-") for cell in cells if re.fullmatch(r"-?\d+(\.\d+)?", cell)}


def numbers(text: str) -> list[str]:
    """The numbers with digits behind a point that a text tells of us."""
    text = MARKED.sub("", text)
    for other in OTHERS:
        text = re.sub(other, " ", text, flags=re.DOTALL)
    text = re.sub(r"^#+ [^\n]*\bpapers?'s? results.*?(?=^#|\Z)", "", text, flags=re.DOTALL | re.MULTILINE)
    sentences = re.split(r"(?<=[.;?])\s+|\n\n|\n(?=[|*-] )", text)
    ours = [sentence for sentence in sentences if not OF_A_PAPER.search(sentence)]
    return [match[0] for sentence in ours for match in NUMBER.finditer(sentence)]


def is_one_of(number: str, figures: set[str]) -> bool:
    """Whether one of the figures is this number when it is rounded to as many digits; ` M` stands for millions."""
    value, scales = Decimal(number.removesuffix(" M").replace(",", "")), (1, 10**6) if number.endswith("M") else (1,)
    digits = -int(value.as_tuple().exponent)
    exact = [Decimal(figure) / scale for figure in figures for scale in scales]
    # what is printed has no digit that the figure has not
    return any(abs(value - each) * 2 * 10**digits <= 1 and -int(each.as_tuple().exponent) >= digits for each in exact)


def test_every_row_says_of_what_it_is_and_when_it_was_measured():
    for file in (ROOT / "results").glob("*.csv"):
        rows = read(file)
        assert tuple([*rows[0]][-len(PROVENANCE) :]) == PROVENANCE, file
        assert all(row["model"] and row["date"] for row in rows), file


@every_document
def test_tables_are_made_from_the_results(document):
    text = document.read_text()
    assert render(text, ROOT) == text, "run make results"


@every_document
def test_numbers_in_prose_are_figures_of_the_results_or_a_papers(document):
    text = document.read_text()
    figures = figures_for(text)
    unknown = [number for number in numbers(text) if not is_one_of(number, figures)]
    assert not unknown, f"{document.name} has numbers that are in none of its results: {unknown}"
