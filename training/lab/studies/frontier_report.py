"""Table, picture and card of `sublayers study frontier`."""

from pathlib import Path

import pandas as pd
from rich.console import Console

from sublayers.training.metrics.pictures import pareto_front
from sublayers.training.metrics.score_pictures import TEACHER, Panel, draw_scores
from sublayers.training.results import Row, read, score, source, table

LABELS = {"sts": "STS correlation", "retrieval": "retrieval hits at 10"}
CAPTION = (
    "Scores from 0 to 100 with their standard deviation over the seeds, in brackets as shares of the teacher's; "
    "times with ratios to the teacher's, which `optimize` has brought into the students' classes. "
    "Best of its time: nothing is as good and faster with {} texts at once."
)


def heads(results: pd.DataFrame) -> dict[tuple[str, int], str]:
    """Name the columns of times, by the test and the number of texts that are encoded together."""
    found = {}
    for test in LABELS:
        for name in results.filter(regex=f"^{test}_time_"):
            size = int(name.rpartition("_")[2])
            found[test, size] = f"{'sentence' if test == 'sts' else 'passage'} {size} at once (ms)"
    return found


def rows_of(results: pd.DataFrame) -> list[Row]:
    """Make a row of scores and times for each encoder, from the slowest to the fastest.

    Args:
        results: a row for the teacher and for each student and seed.
    """
    times, means = heads(results), results.groupby("name").mean(numeric_only=True)
    # those that are faster than all of their quality, and better than all of their time
    last = {test: f"{test}_time_{size}" for test, size in times}
    points = {test: [*zip(means[time], -means[test], strict=True)] for test, time in last.items()}
    fronts = {test: pareto_front(places) for test, places in points.items()}
    rows = []
    for name in means.sort_values(next(iter(last.values())), ascending=False).index:
        runs, own = results[results["name"] == name], means.loc[name]
        row = {"model": f"{name}", "order": runs["order"].iloc[0], "kind": runs["kind"].iloc[0]}
        for test in fronts:
            row |= score(LABELS[test], [*runs[test]])
            row[f"{LABELS[test]} ratio (%)"] = f"{100 * own[test] / means.loc[TEACHER, test]:.1f}"
        for (test, size), head in times.items():
            row[head] = f"{own[f'{test}_ms_{size}']:.2f}"
            row[f"{head} ratio to {TEACHER}"] = f"{own[f'{test}_time_{size}']:.2f}"
        best = [LABELS[test] for test, front in fronts.items() if (own[last[test]], -own[test]) in front]
        rows.append(row | {"best of its time": ", ".join(best), "seeds": ", ".join(map(str, sorted(runs["seed"])))})
    return rows


def draw(results: pd.DataFrame, rows: list[Row], folder: Path) -> None:
    """Write `frontier.svg` and the card into a folder with `results.csv`.

    Args:
        results: a row for the teacher and for each student and seed.
        rows: what `rows_of` makes of them.
        folder: for what is written.
    """
    panels = [
        Panel(LABELS[test], f"{head} ratio to {TEACHER}", LABELS[test], f"{head.removesuffix(' (ms)')}, {TEACHER}: 1")
        for (test, _), head in heads(results).items()
    ]
    draw_scores(rows, panels, folder / "frontier.svg")
    caption = CAPTION.format([*heads(results)][-1][1])
    head = "# Quality against time of students in several orders\n\n![quality against time](frontier.svg)"
    card = "\n\n".join([head, f"{table(rows)}\n{caption}", source(read(folder / "results.csv"))])
    (folder / "README.md").write_text(card + "\n", encoding="utf-8")
    Console().print(caption, soft_wrap=True, markup=False, highlight=False)
