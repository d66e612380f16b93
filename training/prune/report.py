"""What a search for subsets of sublayers found, as a table and a picture."""

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from sublayers.configuration.alphabet import ALPHABET
from sublayers.configuration.order import Order, compact
from sublayers.training.distill.subsets import Subset, name_sublayers, number_places, orders_of
from sublayers.training.metrics.pictures import pareto_front, save
from sublayers.training.prune.search import Price, cheapest, without

# what may be left out one by one
KINDS = ("sublayers", "whole layers")


class Pruning(NamedTuple):
    """A model and what was found of its subsets.

    Attributes:
        orders: of the model's stacks.
        full: the subset that has all sublayers.
        price: of a subset.
        budgets: shares of the price of the whole model.
        found: by `KINDS`, the losses of subsets; those of whole layers are among the others.
    """

    orders: tuple[str, ...]
    full: Subset
    price: Price
    budgets: list[float]
    found: Mapping[str, Mapping[Subset, float]]

    def best(self, kind: str, budget: float) -> Subset | None:
        """Find the subset of a kind that loses least within a budget, None if nothing meets it."""
        return cheapest(self.found[kind], self.price, budget * self.price(self.full))

    def share(self, subset: Subset) -> float:
        """Return a subset's price as a share of that of all sublayers."""
        return self.price(subset) / self.price(self.full)


def write_table(
    pruning: Pruning,
    times: Mapping[Subset, float],
    elsewhere: Mapping[Subset, float],
    is_predicted: bool,
) -> str:
    """Write a table of the best subset of each budget, beside the best whole layers, in Markdown.

    `times` are those of subsets; `elsewhere` has the losses on other texts. Where the price is a time that was
    predicted, it stands beside what was measured.
    """
    names = name_sublayers(*pruning.orders)
    lines = ["| budget | kept | price | loss | on other texts | ms | sublayers |", "|---|---|---|---|---|---|---|"]
    best = [(f"{share:g}", kind, pruning.best(kind, share)) for share in pruning.budgets for kind in KINDS]
    for budget, kind, subset in [("", "all", pruning.full), *best]:
        if subset is None:
            lines.append(f"| {budget} | {kind} | | | | | none |")
            continue
        own = orders_of(subset, *pruning.orders)
        # rounding may leave a loss of nothing below it
        loss, other = (max(0.0, found[subset]) for found in (pruning.found["sublayers"], elsewhere))
        kept = " ".join(names[place] for place in subset)
        took = f"{times[subset]:.2f}" + (f" (predicted {pruning.price(subset):.2f})" if is_predicted else "")
        lines.append(
            f"| {budget} | {kind} | {pruning.share(subset):.3f} | {loss:.4f} | {other:.4f} | {took} | "
            f"{' '.join(f'`{compact(order)}`' for order in own)}: {kept} |"
        )
    return "\n".join(lines) + "\n"


def draw(pruning: Pruning, price_name: str, file: Path) -> None:
    """Draw what the model loses without each sublayer, which ones each budget keeps, and loss against price."""
    orders, budgets, losses = pruning.orders, pruning.budgets, pruning.found["sublayers"]
    order, names = "".join(Order(order).letters for order in orders), name_sublayers(*orders)
    places, colours = range(len(order)), [ALPHABET[letter].colour for letter in order]
    figure = Figure(figsize=(4 + 0.25 * len(order), 3.5 + 0.25 * len(budgets)), layout="constrained")
    halves: Any = figure.subfigures(1, 2, width_ratios=[0.25 * len(order) + 1, 4])
    left, right = halves
    worth, kept = left.subplots(2, 1, sharex=True, height_ratios=[3, 0.3 + 0.3 * len(budgets)])
    single = {place: without(pruning.full, [(place,)]) for place in places}
    lost = {place: losses[subset] - losses[pruning.full] for place, subset in single.items() if subset in losses}
    worth.bar([*lost], [*lost.values()], color=[colours[place] for place in lost], edgecolor="gray")
    # one that the model cannot do without would press all others together
    worth.set_yscale("symlog", linthresh=max(median(map(abs, lost.values())), 1e-6))
    worth.yaxis.set_major_formatter("{x:.3g}")
    worth.set(title="added loss without one sublayer")
    for row, budget in enumerate(budgets):
        for place in pruning.best("sublayers", budget) or ():
            kept.add_patch(Rectangle((place - 0.45, row - 0.45), 0.9, 0.9, color=colours[place]))
    kept.set(ylim=(len(budgets) - 0.5, -0.5), ylabel="kept")
    kept.set_yticks(range(len(budgets)), [f"{budget:g}" for budget in budgets])
    kept.set_xticks(places, names, rotation=90, size=7)
    for stack in number_places(*orders)[1:]:
        # between encoder and decoder
        worth.axvline(stack.start - 0.5, color="gray", linestyle=":")
        kept.axvline(stack.start - 0.5, color="gray", linestyle=":")
    axes = right.subplots()
    for kind in KINDS:
        best = pareto_front([(pruning.share(subset), loss) for subset, loss in pruning.found[kind].items()])
        axes.step(*zip(*best, strict=True), where="post", marker="o", markersize=3, label=kind)
    axes.set(title="the best subsets", xlabel=f"{price_name}, as a share of all sublayers'", ylabel="loss")
    axes.legend(frameon=False)
    save(figure, file)
