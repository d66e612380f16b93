"""Table and picture of what models write in each of their orders."""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from sublayers.training.data.pairs import SIDES
from sublayers.training.lab.studies.curves import LABELS, draw_curves
from sublayers.training.metrics.pictures import save
from sublayers.training.results import Row


def rows_of(found: dict[str, Any]) -> list[Row]:
    """Make a row of figures for each order of each model, with the pairs that it is predicted for, and for all else."""
    metric, rows = found["metric"], []

    def row_of(name: str, written_in: str, score: float) -> Row:
        return {"model": name, "written in": written_in, metric: f"{score:.2f}"}

    for name, model in found["models"].items():
        subsets = {subset["order"]: subset for subset in model.get("subsets", [])}
        # a model of one order is compared with the others of this kind
        several = name in found["preferences"]
        compared = found["preferences"].get(name if several else "models of one order", {})
        for number, order in enumerate(model["orders"], 1):
            row = {"model": name, "written in": f"{number}" if order["trained"] else f"{number}, untrained"}
            row |= {f"{side} order": order[side] for side in ("encoder", "decoder")}
            row[metric] = f"{order['metrics'][metric]:.2f}"
            if "share" in order:
                row["predicted for (%)"] = f"{100 * order['share']:.1f}"
            for kind in ("bleu", "ter"):
                shares = compared.get(f"best_{kind}", {}) if order["trained"] else {}
                if (own := shares.get(f"{number}" if several else name)) is not None:
                    row[f"best {kind} (%)"] = f"{100 * own:.1f}"
            rows.append(row | (describe(subsets[number], metric) if number in subsets else {}))
        if "predicted" in model:
            rows.append(row_of(name, "predicted", model["predicted"][metric]))
        if best := model.get("best"):
            row = row_of(name, f"{best['order']}, best of validation", best["metrics"][metric])
            rows.append(row | {f"validation {metric}": f"{best['validation']:.2f}"})
    names = [*found["models"]]
    for number, scores in enumerate(found["ensembles"], 1):
        rows.append(row_of(", ".join(names[:number]), "ensemble", scores[metric]))
    for name, group in found["preferences"].items():
        variances = {
            f"variance of {kind} {metric}": f"{group[f'{kind}_variance']:.4f}" for kind in ("sentence", "corpus")
        }
        rows.append(row_of(name, "best for each sentence", group["best_of_all"]) | variances)
    for name, curves in found["curves"].items():
        rows += [row_of(name, f"step {step}", score) for step, score in curves.get(metric, [])]
    return rows


def describe(subset: dict[str, Any], metric: str) -> Row:
    """Name the figures of the pairs that are predicted to suit an order, in tokens without special ones."""
    row = {"sentences": f"{subset['sentences']}"}
    row |= {f"their {metric} under {number}": f"{score:.2f}" for number, score in enumerate(subset["scores"], 1)}
    row[f"their mean {metric}"] = f"{subset['mean_score']:.2f}"
    for side in SIDES:
        row[f"{side} tokens"] = f"{subset[side]['tokens']}"
        row[f"distinct {side} tokens"] = f"{subset[side]['distinct_tokens']}"
        row[f"frequency of the top 20 {side} tokens"] = f"{subset[side]['top_frequency']:.4f}"
    return row


def draw(found: dict[str, Any], folder: Path) -> None:
    """Draw `subsets.svg` and `learning_curves.svg` into a folder, where there are such."""
    draw_subsets(found, folder / "subsets.svg")
    labels = LABELS | {found["metric"]: f"{found['metric']} of {found['split']}"}
    draw_curves(found["curves"], labels, folder / "learning_curves.svg")


def draw_subsets(found: dict[str, Any], file: Path) -> None:
    """Draw how each order does on the pairs that are predicted to suit each (Figure 2), one model below the other."""
    models = {name: model for name, model in found["models"].items() if "subsets" in model}
    if not models:
        return
    figure = Figure(figsize=(8, 3.5 * len(models)), layout="constrained")
    for axes, (name, model) in zip(figure.subplots(len(models), squeeze=False)[:, 0], models.items(), strict=True):
        orders, subsets = model["orders"], model["subsets"]
        labels = [f"{subset['order']} ({orders[subset['order'] - 1]['share']:.1%})" for subset in subsets]
        heads = [f"{number}: {order['encoder']} {order['decoder']}" for number, order in enumerate(orders, 1)]
        pd.DataFrame([subset["scores"] for subset in subsets], labels, heads).plot.bar(ax=axes, rot=0, width=0.8)
        for bars in axes.containers:
            axes.bar_label(bars, fmt="%.1f", fontsize=7)
        axes.set(title=name, xlabel="predicted order (share of the pairs)", ylabel=found["metric"])
        axes.legend(title="written in order", loc="center left", bbox_to_anchor=(1, 0.5))
    save(figure, file)
