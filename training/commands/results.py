"""`sublayers results`: write the tables and pictures of documents again, from the files of figures that they name."""

import re
from dataclasses import MISSING, dataclass
from fnmatch import filter as filter_names
from pathlib import Path

from sublayers.training.flags import flag, parse_flags
from sublayers.training.metrics.score_pictures import Panel, draw_scores
from sublayers.training.results import measured, read, source, table

FORM = "<!-- results/FILE.csv: COLUMN, COLUMN as HEAD, SEVERAL *, ... --> and <!-- end of results/FILE.csv -->"
START = r"<!-- (\S+\.csv): "
PICTURE = "<!-- results/FILE.csv drawn: SCORE as NAME against COST as NAME, ... --> above ![...](FILE.svg)"
DRAWN = re.compile(r"<!-- (\S+\.csv) drawn: ([^>]*?)\s-->\n!\[[^\]]*\]\(([^)]+)\)")
MARKED = re.compile(rf"({START}([^>]*?)\s-->\n)(.*?)(<!-- end of \2 -->)", re.DOTALL)


@dataclass
class ResultsArguments:
    """Flags of `sublayers results`."""

    documents: list[Path] = flag(f"in Markdown, with tables between {FORM}, and {PICTURE}", MISSING, positional=True)


def main(argv: list[str]) -> None:
    """Replace what stands between the marks of tables in documents, and the pictures that have a mark.

    Below the last table of a file stands how its figures were made.

    Raises:
        FileNotFoundError: there is no such document or file of figures.
        ValueError: a column that there is not, or a table without an end.
    """
    [args] = parse_flags(argv, [ResultsArguments], "sublayers results DOCUMENT [DOCUMENT ...]", description=__doc__)
    for document in args.documents:
        text = document.read_text(encoding="utf-8")
        if (new := render(text, Path())) != text:
            document.write_text(new, encoding="utf-8")
            print(f"{document} has new tables")
        for match in DRAWN.finditer(text):
            file = document.parent / match[3]
            draw_scores(read(Path(match[1])), panels(match), file)
            print(f"{file} is drawn")


def panels(match: re.Match[str]) -> list[Panel]:
    """Read what a picture shows. Raises what `main` raises."""
    known = read(Path(match[1]))[0]
    found = []
    for panel in " ".join(match[2].split()).split(", "):
        axes = [axis.partition(" as ") for axis in panel.split(" against ")]
        if len(axes) != 2 or any(name not in known for name, _, _ in axes):
            raise ValueError(f"{panel!r} draws no columns of {match[1]}; write SCORE against COST")
        (score, _, score_name), (cost, _, cost_name) = axes
        found.append(Panel(score, cost, score_name or score, cost_name or cost))
    return found


def render(text: str, folder: Path) -> str:
    """Write the tables of a text again from files in a folder. Raises what `main` raises."""
    found = [*MARKED.finditer(text)]
    last = {match[2]: match.start() for match in found}
    whole = [match.start() for match in found]
    if cut := [start for start in re.finditer(START, text) if start.start() not in whole]:
        raise ValueError(f"a table of {cut[0][1]} has no end; write <!-- end of {cut[0][1]} --> after it")

    def fill(match: re.Match[str]) -> str:
        rows = read(folder / match[2])
        columns: dict[str, str] = {}
        for column in match[3].split(","):
            name, _, head = " ".join(column.split()).partition(" as ")
            names = [name] if name in rows[0] else filter_names(measured(rows), name)
            columns |= {each: head or each for each in names}
            if not names:
                raise ValueError(f"{match[2]} has no column {name!r}; choose from {', '.join(rows[0])}")
        below = f"\n{told}\n" if (told := source(rows)) and match.start() == last[match[2]] else ""
        return f"{match[1]}{table(rows, columns)}{below}{match[5]}"

    return MARKED.sub(fill, text)
