"""Tables, picture and card of `sublayers study frontier`."""

import math
from pathlib import Path

import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter
from rich.console import Console
from scipy.stats import ttest_rel

from sublayers.training.search.pictures import pareto_front, save
from sublayers.training.studies.tables import mean_and_deviation, write_table
from sublayers.training.trainers.machine import machine
from sublayers.training.trainers.publish import without_tokens

TEACHER = "teacher"
LABELS = {"sts": "STS, correlation", "retrieval": "retrieval, hits at 10"}
# points that a student of equal quality may be apart from another
MARGIN = 1.0
DROPPED = "layers dropped"
LEAST_SHARE = 0.7


def report(results: pd.DataFrame, glue: pd.DataFrame, folder: Path, command: list[str]) -> None:
    """Write `results.csv`, `frontier.svg` and the card, with fine-tuning also `glue.csv`; print the tables.

    Args:
        results: a row for the teacher and for each student and seed.
        glue: a row for each fine-tuning, with `name`, `task`, `seed` and `score`.
        folder: for what is written.
        command: the words of the command line.
    """
    results.to_csv(folder / "results.csv", index=False)
    tests = [test for test in LABELS if test in results]
    batch_sizes = [int(name.rpartition("_")[2]) for name in results if name.startswith(f"{tests[0]}_time_")]
    draw(results, tests, batch_sizes, folder / "frontier.svg")
    parts = [table(results, tests, batch_sizes)]
    if len(glue):
        glue.to_csv(folder / "glue.csv", index=False)
        parts.append(compare(glue, results, f"{tests[0]}_time_{batch_sizes[-1]}"))
    about = ", ".join(f"{name} {value}" for name, value in machine(torch.device("cpu")).items())
    words = f"```bash\n{without_tokens(['sublayers', *command])}\n```"
    title = "# Quality against time of students in several orders"
    card = "\n\n".join([title, "![quality against time](frontier.svg)", *parts, f"Measured with {about}.", words])
    (folder / "README.md").write_text(card + "\n", encoding="utf-8")
    Console().print("\n\n".join(parts), soft_wrap=True, markup=False, highlight=False)
    Console().print(f"the card, a picture and all numbers are in {folder}", soft_wrap=True)


def front(points: pd.DataFrame, test: str, time: str) -> set[str]:
    """Name those that are faster than all of their quality, and better than all of their time."""
    best = {*pareto_front([(row[time], -row[test]) for _, row in points.iterrows()])}
    return {str(name) for name, row in points.iterrows() if (row[time], -row[test]) in best}


def table(results: pd.DataFrame, tests: list[str], batch_sizes: list[int]) -> str:
    """Write scores and times in Markdown, from the slowest to the fastest."""
    times = {(test, size): f"{test}_time_{size}" for test in tests for size in batch_sizes}
    means = results.groupby("name").mean(numeric_only=True)
    fronts = {test: front(means, test, times[test, batch_sizes[-1]]) for test in tests}
    head = ["encoder", "kind", "seeds", *(LABELS[test] for test in tests)]
    head += [f"ms per text, {'sentence' if test == 'sts' else 'passage'}, {size} at once" for test, size in times]
    rows = [head]
    for name in means.sort_values(times[tests[0], batch_sizes[-1]], ascending=False).index:
        runs = results[results["name"] == name]
        row = [f"`{name}`", runs["kind"].iloc[0], f"{len(runs)}"]
        for test in tests:
            share = means.loc[name, test] / means.loc[TEACHER, test]
            mark = "**" if name in fronts[test] else ""
            row.append(f"{mark}{mean_and_deviation([*runs[test]])}{mark} ({share:.1%})")
        row += [
            f"{means.loc[name, f'{test}_ms_{size}']:.2f} ({means.loc[name, time]:.2f})"
            for (test, size), time in times.items()
        ]
        rows.append(row)
    caption = (
        "Scores from 0 to 100 with their standard deviation over the seeds, and as shares of the teacher's; times as "
        f"ratios to the teacher's. Bold: nothing is as good and faster with {batch_sizes[-1]} texts at once."
    )
    return f"{write_table(rows)}\n{caption}"


def compare(glue: pd.DataFrame, results: pd.DataFrame, time: str) -> str:
    """Write the scores of fine-tuning, and compare each student with that of fewer layers nearest in time.

    Students are paired by seed. One is as good as the other if the confidence interval of the mean difference stays
    within `MARGIN` points.
    """
    times, kinds = results.groupby("name")[time].mean(), results.groupby("name")["kind"].first()
    tasks = [*dict.fromkeys(glue["task"])]
    names = [name for name in times.sort_values(ascending=False).index if name in {*glue["name"]}]
    rivals = [name for name in names if kinds[name] == DROPPED]
    rows = [["encoder", "time", "against", *(part for task in tasks for part in (task, "difference"))]]
    for name in names:
        others = [rival for rival in rivals if rival != name and kinds[name] not in (DROPPED, TEACHER)]
        rival = min(others, key=lambda other: abs(math.log(times[other] / times[name])), default=None)
        row = [f"`{name}`", f"{times[name]:.2f}", f"`{rival}`" if rival else ""]
        for task in tasks:
            scores = {
                each: glue[(glue["name"] == each) & (glue["task"] == task)].set_index("seed")["score"]
                for each in (name, rival)
            }
            row += [mean_and_deviation([*scores[name]]), difference(scores[name], scores[rival]) if rival else ""]
        rows.append(row)
    caption = (
        "Fine-tuning, with standard deviations over the seeds. Differences to the student with fewer layers nearest in "
        f"time, paired by seed, with confidence intervals of 95 %; as good: the interval stays within {MARGIN:g} point."
    )
    return f"{write_table(rows)}\n{caption}"


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


def draw(results: pd.DataFrame, tests: list[str], batch_sizes: list[int], file: Path) -> None:
    """Draw the scores of each test against the time at each batch size, a line for each kind of student.

    Students with less than `LEAST_SHARE` of the teacher's score, which would press the others together, are named only.
    """
    figure = Figure(figsize=(5.5 * len(batch_sizes), 4 * len(tests)), layout="constrained")
    for row, test in zip(figure.subplots(len(tests), len(batch_sizes), squeeze=False), tests, strict=True):
        for axes, size in zip(row, batch_sizes, strict=True):
            time = f"{test}_time_{size}"
            means = results.groupby("name").mean(numeric_only=True)
            least = LEAST_SHARE * means.loc[TEACHER, test]
            low = means[means[test] < least]
            shown = results[~results["name"].isin(low.index)]
            for kind, of_kind in shown.groupby("kind"):
                runs = of_kind.groupby("name")
                points = pd.DataFrame(
                    {"time": runs[time].mean(), "score": runs[test].mean(), "deviation": runs[test].std()}
                )
                points = points.sort_values("time").fillna(0)
                style = {"marker": "*", "markersize": 12} if kind == TEACHER else {"marker": "o"}
                axes.errorbar(points["time"], points["score"], yerr=points["deviation"], capsize=3, label=kind, **style)
                for name, point in points.iterrows():
                    # the flags of each are in the table
                    label = str(name).partition(" --")[0]
                    place = (point["time"], point["score"])
                    axes.annotate(label, place, textcoords="offset points", xytext=(5, 5), size=8)
            best = means.loc[sorted(front(means, test, time) - {*low.index})]
            axes.plot(best[time], best[test], "o", markersize=14, fillstyle="none", color="black", label="Pareto front")
            axes.axhline(0.95 * means.loc[TEACHER, test], linestyle=":", color="gray")
            axes.set(xlabel=f"time, {size} at once (teacher: 1)", ylabel=LABELS[test], xscale="log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
            axes.xaxis.set_major_formatter(ScalarFormatter())
            axes.xaxis.set_minor_locator(NullLocator())
            below = [f"{name}: {point[test]:.1f}" for name, point in low.iterrows()]
            axes.set_title("\n".join(["below the picture:", *below]) if below else "", size=8, loc="left")
            axes.legend()
    save(figure, file)
