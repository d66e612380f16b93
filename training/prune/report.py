"""What a search for subsets of sublayers found, as a table and a picture."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from sublayers.configuration.alphabet import ALPHABET
from sublayers.configuration.sublayer_order import compact, expand
from sublayers.training.distill.subsets import Subset, name_sublayers, order_of
from sublayers.training.metrics.pictures import save
from sublayers.training.prune.search import Price, cheapest

Found = Mapping[Subset, float]


def frontier(found: Found, price: Price) -> list[Subset]:
    """Find the subsets that lose less than all that cost no more, from the cheapest on."""
    best, least = [], float("inf")
    for subset in sorted(found, key=lambda subset: (price(subset), found[subset])):
        if found[subset] < least:
            best.append(subset)
            least = found[subset]
    return best


def write_table(
    order: str, sublayers: Found, layers: Found, price: Price, budgets: list[float], times: Mapping[str, float]
) -> str:
    """Write a table of the best subset of each budget, beside the best whole layers, in Markdown."""
    full = tuple(range(len(expand(order))))
    lines = ["| budget | kept | price | loss | ms | sublayers |", "|---|---|---|---|---|---|"]
    rows: list[tuple[str, str, Subset | None]] = [("", "all", full)]
    for share in budgets:
        for kind, found in (("sublayers", {**sublayers, **layers}), ("whole layers", layers)):
            rows.append((f"{share:g}", kind, cheapest(found, price, share * price(full))))
    names = name_sublayers(order)
    for budget, kind, subset in rows:
        if subset is None:
            lines.append(f"| {budget} | {kind} | | | | none |")
            continue
        own = order_of(subset, order)
        loss = {**sublayers, **layers}[subset]
        kept = " ".join(names[place] for place in subset)
        lines.append(
            f"| {budget} | {kind} | {price(subset) / price(full):.3f} | {loss:.4f} | {times[own]:.2f} | "
            f"`{compact(own)}`: {kept} |"
        )
    return "\n".join(lines) + "\n"


def draw(order: str, sublayers: Found, layers: Found, price: Price, price_name: str, file: Path) -> None:
    """Draw what the model loses without each of its sublayers, and what the best subsets lose at which price."""
    order = expand(order)
    full = tuple(range(len(order)))
    figure = Figure(figsize=(12, 4), layout="constrained")
    alone, costs = figure.subplots(1, 2, width_ratios=[3, 2])
    single = {place: full[:place] + full[place + 1 :] for place in full}
    lost = {place: sublayers[subset] - sublayers[full] for place, subset in single.items() if subset in sublayers}
    colours: Any = [ALPHABET[order[place]].colour for place in lost]
    alone.bar([name_sublayers(order)[place] for place in lost], [*lost.values()], color=colours, edgecolor="gray")
    alone.set(title="without one sublayer", ylabel="loss more than with all", yscale="symlog" if lost else "linear")
    alone.tick_params(axis="x", rotation=90, labelsize=7)
    for kind, found in (("sublayers", sublayers), ("whole layers", layers)):
        best = frontier(found, price)
        shares, losses = [price(subset) / price(full) for subset in best], [found[subset] for subset in best]
        costs.step(shares, losses, where="post", marker="o", markersize=3, label=kind)
    costs.set(title="the best subsets", xlabel=f"{price_name}, as a share of all sublayers'", ylabel="loss")
    costs.legend(frameon=False)
    save(figure, file)
