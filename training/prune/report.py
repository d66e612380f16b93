"""What a search for subsets of sublayers found, as a table and a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from sublayers.configuration.alphabet import ALPHABET
from sublayers.configuration.sublayer_order import compact, expand
from sublayers.training.distill.subsets import Subset, name_sublayers, number_places, orders_of
from sublayers.training.metrics.pictures import pareto_front, save
from sublayers.training.prune.search import Price, cheapest, without

Found = Mapping[Subset, float]


def write_table(
    orders: Sequence[str],
    full: Subset,
    sublayers: Found,
    layers: Found,
    price: Price,
    budgets: list[float],
    times: Mapping[tuple[str, ...], float],
    elsewhere: Found,
    is_predicted: bool,
) -> str:
    """Write a table of the best subset of each budget, beside the best whole layers, in Markdown.

    Whole layers are among the sublayers. `times` are those of orders; `elsewhere` has the losses on other texts. Where
    the price is a time that was predicted, it stands beside what was measured.
    """
    names = name_sublayers(*orders)
    lines = ["| budget | kept | price | loss | on other texts | ms | sublayers |", "|---|---|---|---|---|---|---|"]
    rows: list[tuple[str, str, Subset | None]] = [("", "all", full)]
    for share in budgets:
        for kind, found in (("sublayers", sublayers), ("whole layers", layers)):
            rows.append((f"{share:g}", kind, cheapest(found, price, share * price(full))))
    for budget, kind, subset in rows:
        if subset is None:
            lines.append(f"| {budget} | {kind} | | | | | none |")
            continue
        own = orders_of(subset, *orders)
        # rounding may leave a loss of nothing below it
        loss, other = (max(0.0, found[subset]) for found in (sublayers, elsewhere))
        kept = " ".join(names[place] for place in subset)
        took = f"{times[own]:.2f}" + (f" (predicted {price(subset):.2f})" if is_predicted else "")
        lines.append(
            f"| {budget} | {kind} | {price(subset) / price(full):.3f} | {loss:.4f} | {other:.4f} | {took} | "
            f"{' '.join(f'`{compact(order)}`' for order in own)}: {kept} |"
        )
    return "\n".join(lines) + "\n"


def draw(
    orders: Sequence[str],
    full: Subset,
    sublayers: Found,
    layers: Found,
    price: Price,
    price_name: str,
    budgets: list[float],
    file: Path,
) -> None:
    """Draw what the model loses without each sublayer, which ones each budget keeps, and loss against price."""
    order, names = "".join(map(expand, orders)), name_sublayers(*orders)
    places, colours = range(len(order)), [ALPHABET[letter].colour for letter in order]
    figure = Figure(figsize=(4 + 0.25 * len(order), 3.5 + 0.25 * len(budgets)), layout="constrained")
    halves: Any = figure.subfigures(1, 2, width_ratios=[0.25 * len(order) + 1, 4])
    left, right = halves
    worth, kept = left.subplots(2, 1, sharex=True, height_ratios=[3, 0.3 + 0.3 * len(budgets)])
    single = {place: without(full, [(place,)]) for place in full}
    lost = {place: sublayers[subset] - sublayers[full] for place, subset in single.items() if subset in sublayers}
    worth.bar([*lost], [*lost.values()], color=[colours[place] for place in lost], edgecolor="gray")
    # one that the model cannot do without would press all others together
    worth.set_yscale("symlog", linthresh=max(median(map(abs, lost.values())), 1e-6))
    worth.yaxis.set_major_formatter("{x:.3g}")
    worth.set(title="added loss without one sublayer")
    for row, budget in enumerate(budgets):
        for place in cheapest(sublayers, price, budget * price(full)) or ():
            kept.add_patch(Rectangle((place - 0.45, row - 0.45), 0.9, 0.9, color=colours[place]))
    kept.set(ylim=(len(budgets) - 0.5, -0.5), ylabel="kept")
    kept.set_yticks(range(len(budgets)), [f"{budget:g}" for budget in budgets])
    kept.set_xticks(places, names, rotation=90, size=7)
    for stack in number_places(*orders)[1:]:
        # between encoder and decoder
        worth.axvline(stack.start - 0.5, color="gray", linestyle=":")
        kept.axvline(stack.start - 0.5, color="gray", linestyle=":")
    axes = right.subplots()
    for kind, found in (("sublayers", sublayers), ("whole layers", layers)):
        best = pareto_front([(price(subset) / price(full), loss) for subset, loss in found.items()])
        axes.step(*zip(*best, strict=True), where="post", marker="o", markersize=3, label=kind)
    axes.set(title="the best subsets", xlabel=f"{price_name}, as a share of all sublayers'", ylabel="loss")
    axes.legend(frameon=False)
    save(figure, file)
