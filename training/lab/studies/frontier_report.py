"""Tables, picture and card of `sublayers study frontier`."""

import math
from pathlib import Path

import pandas as pd
from rich.console import Console
from scipy.stats import ttest_rel

from sublayers.training.metrics.pictures import pareto_front
from sublayers.training.metrics.score_pictures import TEACHER, Panel, draw_scores
from sublayers.training.results import Row, read, score, source, table, write

LABELS = {"sts": "STS correlation", "retrieval": "retrieval hits at 10"}
# points that a student of equal quality may be apart from another
MARGIN = 1.0
DROPPED = "layers dropped"
CAPTION = (
    "Scores from 0 to 100 with their standard deviation over the seeds, in brackets as shares of the teacher's; "
    "times with ratios to the teacher's. Best of its time: nothing is as good and faster with {} texts at once."
)
GLUE_CAPTION = (
    "Fine-tuning, with standard deviations over the seeds. Differences to the student with fewer layers nearest in "
    f"time, paired by seed, with confidence intervals of 95 %; as good: the interval stays within {MARGIN:g} point."
)


def report(results: pd.DataFrame, glue: pd.DataFrame, folder: Path, about: Row) -> None:
    """Write `results.csv`, `frontier.svg` and the card into a folder, and print the tables.

    Args:
        results: a row for the teacher and for each student and seed.
        glue: a row for each fine-tuning, with `name`, `task`, `seed` and `score`.
        folder: for what is written.
        about: how all were measured.
    """
    tests = [test for test in LABELS if test in results]
    batch_sizes = [int(name.rpartition("_")[2]) for name in results if name.startswith(f"{tests[0]}_time_")]
    rows = rows_of(results, tests, batch_sizes)
    panels = [
        Panel(LABELS[test], f"{head} ratio to {TEACHER}", LABELS[test], f"{head.removesuffix(' (ms)')}, {TEACHER}: 1")
        for test in tests
        for head in (time_name(test, size) for size in batch_sizes)
    ]
    draw_scores(rows, panels, folder / "frontier.svg")
    parts = [f"{table(rows)}\n{CAPTION.format(batch_sizes[-1])}"]
    if len(glue):
        tuned = compare(glue, results, f"{tests[0]}_time_{batch_sizes[-1]}")
        parts.append(f"{table(tuned)}\n{GLUE_CAPTION}")
        by_name = {row["model"]: row for row in tuned}
        rows = [row | by_name.get(row["model"], {}) for row in rows]
    write(rows, folder / "results.csv", about)
    head = "# Quality against time of students in several orders\n\n![quality against time](frontier.svg)"
    card = "\n\n".join([head, *parts, source(read(folder / "results.csv"))])
    (folder / "README.md").write_text(card + "\n", encoding="utf-8")
    Console().print("\n\n".join(parts), soft_wrap=True, markup=False, highlight=False)


def time_name(test: str, size: int) -> str:
    """Name the column of times of texts of a test that are encoded together."""
    return f"{'sentence' if test == 'sts' else 'passage'} {size} at once (ms)"


def front(points: pd.DataFrame, test: str, time: str) -> set[str]:
    """Name those that are faster than all of their quality, and better than all of their time."""
    best = {*pareto_front([(row[time], -row[test]) for _, row in points.iterrows()])}
    return {str(name) for name, row in points.iterrows() if (row[time], -row[test]) in best}


def rows_of(results: pd.DataFrame, tests: list[str], batch_sizes: list[int]) -> list[Row]:
    """Make a row of scores and times for each encoder, from the slowest to the fastest."""
    times = {(test, size): f"{test}_time_{size}" for test in tests for size in batch_sizes}
    means = results.groupby("name").mean(numeric_only=True)
    fronts = {test: front(means, test, times[test, batch_sizes[-1]]) for test in tests}
    rows = []
    for name in means.sort_values(times[tests[0], batch_sizes[-1]], ascending=False).index:
        runs = results[results["name"] == name]
        row = {"model": f"{name}", "order": runs["order"].iloc[0], "kind": runs["kind"].iloc[0]}
        for test in tests:
            row |= score(LABELS[test], [*runs[test]])
            row[f"{LABELS[test]} ratio (%)"] = f"{100 * means.loc[name, test] / means.loc[TEACHER, test]:.1f}"
        for (test, size), time in times.items():
            head = time_name(test, size)
            row[head] = f"{means.loc[name, f'{test}_ms_{size}']:.2f}"
            row[f"{head} ratio to {TEACHER}"] = f"{means.loc[name, time]:.2f}"
        row["best of its time"] = ", ".join(LABELS[test] for test in tests if name in fronts[test])
        rows.append(row | {"seeds": ", ".join(f"{seed}" for seed in sorted(runs["seed"]))})
    return rows


def compare(glue: pd.DataFrame, results: pd.DataFrame, time: str) -> list[Row]:
    """Make a row of fine-tuning's scores for each encoder, compared with that of fewer layers nearest in time.

    Students are paired by seed. One is as good as the other if the confidence interval of the mean difference stays
    within `MARGIN` points.
    """
    times, kinds = results.groupby("name")[time].mean(), results.groupby("name")["kind"].first()
    tasks = [*dict.fromkeys(glue["task"])]
    names = [name for name in times.sort_values(ascending=False).index if name in {*glue["name"]}]
    rivals = [name for name in names if kinds[name] == DROPPED]
    rows = []
    for name in names:
        others = [rival for rival in rivals if rival != name and kinds[name] not in (DROPPED, TEACHER)]
        rival = min(others, key=lambda other: abs(math.log(times[other] / times[name])), default=None)
        row = {"model": f"{name}", "compared with": rival or ""}
        for task in tasks:
            of_task = glue[glue["task"] == task].set_index("seed")
            own, other = (of_task["score"][of_task["name"] == each] for each in (name, rival))
            row |= score(task, [*own])
            row[f"difference in {task}"] = difference(own, other) if rival else ""
        rows.append(row)
    return rows


def difference(scores: pd.Series, others: pd.Series) -> str:
    """Write the mean difference of scores with the same seeds, its confidence interval, and what follows."""
    first, second = scores.align(others, join="inner")
    if len(first) < 2:
        return ""
    low, high = ttest_rel(first, second).confidence_interval(0.95)
    verdict = "better" if low > 0 else "worse" if high < 0 else "undecided"
    if -MARGIN <= low <= high <= MARGIN:
        verdict = "as good"
    return f"{(first - second).mean():+.1f} [{low:+.1f}, {high:+.1f}], {verdict}"
