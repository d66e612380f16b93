"""Pictures of orders, and of what came of a search."""

from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import textalloc
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from sublayers.configuration.alphabet import ALPHABET
from sublayers.configuration.order import Order

IDENTITY = "#dddddd"
# the distance of a name to its point, and of two points
Point = tuple[str, float, float]
Line = tuple[tuple[float, float], tuple[float, float]]


def save(figure: Figure, file: Path) -> None:
    """Write a picture that is the same whenever it is drawn."""
    with matplotlib.rc_context({"svg.hashsalt": file.stem}):
        figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)


def write_names(named: Sequence[tuple[Axes, Sequence[Point], Sequence[Line]]]) -> None:
    """Write each point's name beside it, where it covers no other name, no point and none of the lines.

    Names without room are left out. Nothing else in the figure moves any more.
    """
    figure: Any = named[0][0].figure
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes, points, lines in filter(itemgetter(1), named):
        names, xs, ys = map(list, zip(*points, strict=True))
        options: dict[str, Any] = {"textsize": 9, "linecolor": "gray", "linewidth": 0.5}
        if lines:
            options |= {"x_lines": [list(xs) for xs, _ in lines], "y_lines": [list(ys) for _, ys in lines]}
        textalloc.allocate(
            axes, xs, ys, names, x_scatter=xs, y_scatter=ys, max_distance=0.07, draw_all=False, **options
        )


def draw_orders(rows: Sequence[tuple[str, str]], file: Path) -> None:
    """Draw orders as rows of coloured boxes, each below its title."""
    # widths in boxes; a letter of a title is about a third of a box
    width = max(max(len(Order(order)), len(title) / 3) for title, order in rows)
    figure = Figure(figsize=(0.3 * width + 0.2, 0.75 * len(rows) + 0.1), layout="constrained")
    axes = figure.subplots()
    for row, (title, order) in enumerate(rows):
        axes.text(0, -2.5 * row + 0.75, title, family="monospace", size=9)
        read = Order(order)
        for column, (kind, label) in enumerate(zip(read.kinds, read.labels, strict=True)):
            box = Rectangle((column, -2.5 * row - 0.45), 0.9, 0.9, color=kind.colour)
            axes.add_patch(box)
            axes.text(column + 0.45, -2.5 * row, label, ha="center", va="center", size=9)
    axes.set(xlim=(0, width), ylim=(-2.5 * len(rows) + 1.5, 1.6), aspect="equal")
    axes.axis("off")
    save(figure, file)


def draw_times(times: dict[str, dict[str, float]], file: Path) -> None:
    """Draw for everything that may be read a bar for each order: its time as a share of the first one's."""
    figure = Figure(figsize=(7, 1.2 + 0.2 * sum(map(len, times.values()))), layout="constrained")
    boxes = figure.subplots(len(times), sharex=True, squeeze=False).flat
    for axes, (read, measured) in zip(boxes, times.items(), strict=True):
        first, *_ = measured.values()
        shares = [time / first for time in measured.values()]
        bars = axes.barh([*measured], shares, color=[f"C{number}" for number in range(len(shares))])
        axes.bar_label(bars, [f"{share:.2f}" for share in shares], padding=3, size=8)
        axes.set_title(read, loc="left", size=9)
        axes.invert_yaxis()
        axes.margins(x=0.1)
    axes.set_xlabel(f"time, as a share of {next(iter(measured))}")
    save(figure, file)


def draw_bottom_halves(points: list[tuple[int, float]], file: Path) -> None:
    """Draw the loss of each order against the number of its attentions in the bottom half of its parameters."""
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*points, strict=True), "o", alpha=0.7)
    axes.set(xlabel="self-attention sublayers in the bottom half of the parameters", ylabel="loss (nats per token)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    save(figure, file)


def draw_costs(points: list[tuple[str, float, float]], unit: str, file: Path) -> None:
    """Draw the loss of each order, with its name, against its cost, and the Pareto front."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    _, costs, losses = zip(*points, strict=True)
    axes.plot(costs, losses, "o", color="tab:blue", alpha=0.7)
    front = pareto_front([*zip(costs, losses, strict=True)])
    axes.step(*zip(*front, strict=True), where="post", marker="o", color="tab:orange", label="Pareto front")
    axes.set(xlabel=unit, ylabel="loss (nats per token)")
    axes.margins(0.1)
    figure.legend(loc="outside upper right", frameon=False)
    # each step goes to the right, and then down
    right = [((cost, dearer), (loss, loss)) for (cost, loss), (dearer, _) in pairwise(front)]
    down = [((dearer, dearer), (loss, lower)) for (_, loss), (dearer, lower) in pairwise(front)]
    write_names([(axes, points, [*right, *down])])
    save(figure, file)


def pareto_front(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Choose the points (cost, loss) that no other one beats in one and equals in the other, from cheap to dear."""
    front: list[tuple[float, float]] = []
    for cost, loss in sorted(points):
        if not front or loss < front[-1][1]:
            front.append((cost, loss))
    return front


def draw_probabilities(curve: list[dict[str, Any]], letters: str, title: str, file: Path) -> None:
    """Draw how the probabilities of a super-network's candidates changed, a box for each layer."""
    # (layers, candidates, steps)
    shares = np.array([point["probabilities"] for point in curve]).transpose(1, 2, 0)
    rows = -(-len(shares) // 4)
    figure = Figure(figsize=(9, 1.4 * rows + 0.8), layout="constrained")
    boxes = figure.subplots(rows, min(len(shares), 4), sharex=True, sharey=True, squeeze=False).flat
    steps = [point["step"] for point in curve]
    names, colours = _candidates(letters)
    for layer, axes in enumerate(boxes):
        if layer >= len(shares):
            axes.axis("off")
            continue
        axes.stackplot(steps, shares[layer], colors=colours, labels=names)
        axes.set_title(f"layer {layer + 1}", size=8)
        axes.set(ylim=(0, 1), xlim=(steps[0], steps[-1]))
    figure.supylabel("probability")
    figure.suptitle(title, size=10)
    _finish_layers(figure, "step", file)


def draw_mixtures(mixtures: list[tuple[str, list[list[float]]]], letters: str, file: Path) -> None:
    """Draw the last probabilities of super-networks, each with its title: a bar for each layer."""
    figure = Figure(figsize=(7, 1.8 * len(mixtures) + 0.8), layout="constrained")
    boxes = figure.subplots(len(mixtures), squeeze=False).flat
    names, colours = _candidates(letters)
    for axes, (title, rows) in zip(boxes, mixtures, strict=True):
        shares = np.array(rows).T
        for name, colour, share, below in zip(names, colours, shares, shares.cumsum(0) - shares, strict=True):
            axes.bar(range(1, len(rows) + 1), share, bottom=below, color=colour, label=name)
        axes.set_title(title, size=9, family="monospace")
        axes.set(ylabel="probability", ylim=(0, 1))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _finish_layers(figure, "layer", file)


def _finish_layers(figure: Figure, label: str, file: Path) -> None:
    figure.supxlabel(label)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper")
    save(figure, file)


def _candidates(letters: str) -> tuple[list[str], list[str]]:
    names, colours = zip(*((ALPHABET[letter].name, ALPHABET[letter].colour) for letter in letters), strict=True)
    return [*names, "identity"], [*colours, IDENTITY]
