"""Pictures of scores against what they cost."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from sublayers.configuration.order import Order, interleaved
from sublayers.training.metrics.pictures import Line, Point, save, write_names
from sublayers.training.results import Row

TEACHER = "teacher"
# the share of the best score below which points are left out, since they would press all others together
LEAST_SHARE = 0.7


class Panel(NamedTuple):
    """A score against a cost, by their columns among the figures, and what the axes call them."""

    score: str
    cost: str
    score_name: str
    cost_name: str


def draw_scores(rows: Sequence[Row], panels: Sequence[Panel], file: Path) -> None:
    """Draw scores against costs, each kind of model in a colour of its own.

    A point has its deviation over the seeds, or is hollow where there is one seed. Lines join the plain orders of a
    kind, and a dashed one is the teacher's score. What is far below all others is named in the title.

    Args:
        rows: figures with `model`, `order`, `kind` and the panels' columns; what has no kind is not drawn.
        panels: what is drawn, two side by side.
        file: for the picture.
    """
    columns = min(2, len(panels))
    height = -(-len(panels) // columns)
    figure = Figure(figsize=(6 * columns + 0.5, 4 * height + 0.3), layout="constrained")
    boxes = figure.subplots(height, columns, squeeze=False).flat
    kinds = dict.fromkeys(row["kind"] for row in rows if row.get("kind", TEACHER) not in ("", TEACHER))
    colours = {kind: f"C{number}" for number, kind in enumerate(kinds)}
    named = [(axes, *_draw_panel(axes, rows, panel, colours)) for axes, panel in zip(boxes, panels, strict=True)]
    drawn = [line for axes in figure.axes for line in axes.get_lines()]
    shown = {line.get_label() for line in drawn}
    if any(line.get_markerfacecolor() == "white" for line in drawn):
        shown.add("one seed")
    looks: dict[str, dict[str, Any]] = {
        **{kind: {"marker": "o", "linestyle": "none", "color": colour} for kind, colour in colours.items()},
        "one seed": {"marker": "o", "linestyle": "none", "color": "gray", "markerfacecolor": "white"},
        TEACHER: {"linestyle": "--", "color": "gray"},
    }
    handles = [Line2D([], [], label=name, **look) for name, look in looks.items() if name in shown]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    write_names(named)
    save(figure, file)


def _draw_panel(
    axes: Axes, rows: Sequence[Row], panel: Panel, colours: dict[str, str]
) -> tuple[list[Point], list[Line]]:
    """Draw a panel, and return the points that get names, and the lines that names must not cover."""
    scored = [row for row in rows if row.get("kind") and row[panel.score]]
    least = LEAST_SHARE * max(float(row[panel.score]) for row in scored)
    points: list[Point] = []
    lines: list[Line] = []
    plain: dict[str, list[tuple[float, float]]] = {kind: [] for kind in colours}
    far = []
    for row in scored:
        cost, score, kind, order = float(row[panel.cost]), float(row[panel.score]), row["kind"], row["order"]
        if kind == TEACHER:
            axes.axhline(score, linestyle="--", color="gray", label=TEACHER)
            continue
        if score < least:
            far.append(f"{row['model'].replace('`', '')}: {row[panel.score]}")
            continue
        points.append((order, cost, score))
        if deviated := row.get(f"{panel.score} ±"):
            deviation = float(deviated)
            axes.errorbar(cost, score, yerr=deviation, fmt="none", capsize=3, color=colours[kind])
            lines.append(((cost, cost), (score - deviation, score + deviation)))
            axes.plot(cost, score, "o", color=colours[kind], label=kind)
        else:
            axes.plot(cost, score, "o", color=colours[kind], markerfacecolor="white", label=kind, zorder=3)
        if order == interleaved(Order(order).counts["s"]):
            plain[kind].append((cost, score))
    for kind, places in plain.items():
        for (cost, score), (next_cost, next_score) in pairwise(sorted(places)):
            lines.append(((cost, next_cost), (score, next_score)))
            axes.plot(*lines[-1], color=colours[kind], label=kind)
    axes.set(xlabel=panel.cost_name, ylabel=panel.score_name, xscale="log")
    axes.margins(0.12)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    if far:
        axes.set_title(f"far below: {'; '.join(far)}", size=9, loc="left")
    return points, lines
