"""Figures and pictures of `sublayers study orders`."""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from sublayers.training.data.pairs import SIDES
from sublayers.training.lab.studies.curves import LABELS, draw_curves
from sublayers.training.metrics.pictures import save
from sublayers.training.results import Row, report


def leave(found: dict[str, Any], folder: Path, about: Row) -> None:
    """Write `results.csv`, `results.json`, `subsets.svg` and `learning_curves.svg`, the pictures if there are such."""
    (folder / "results.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    report(rows_of(found), folder, about)
    draw_subsets(found, folder)
    metric = found["metric"]
    draw_curves(found["curves"], LABELS | {metric: f"{metric} of {found['split']}"}, folder / "learning_curves.svg")
    Console().print(f"all numbers and pictures are in {folder}")


def rows_of(found: dict[str, Any]) -> list[Row]:
    """Make a row of figures for each order of each model, with the pairs that it is predicted for, and for all else."""
    metric, rows = found["metric"], []
    for name, model in found["models"].items():
        subsets = {subset["order"]: subset for subset in model.get("subsets", [])}
        for number, order in enumerate(model["orders"], 1):
            row = {"model": name, "written in": f"{number}" if order["trained"] else f"{number}, untrained"}
            row |= {f"{side} order": order[side] for side in ("encoder", "decoder")}
            row[metric] = f"{order['metrics'][metric]:.2f}"
            if "share" in order:
                row["predicted for (%)"] = f"{100 * order['share']:.1f}"
            rows.append(row | (describe(subsets[number], metric) if number in subsets else {}))
        if "predicted" in model:
            rows.append({"model": name, "written in": "predicted", metric: f"{model['predicted'][metric]:.2f}"})
        if best := model.get("best"):
            row = {"model": name, "written in": f"{best['order']}, best of validation"}
            rows.append(
                row | {metric: f"{best['metrics'][metric]:.2f}", f"validation {metric}": f"{best['validation']:.2f}"}
            )
    names = [*found["models"]]
    for number, scores in enumerate(found["ensembles"], 1):
        rows.append({"model": ", ".join(names[:number]), "written in": "ensemble", metric: f"{scores[metric]:.2f}"})
    for name, curves in found["curves"].items():
        for step, score in curves.get(metric, []):
            rows.append({"model": name, "written in": f"step {step}", metric: f"{score:.2f}"})
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


def draw_subsets(found: dict[str, Any], folder: Path) -> None:
    """Draw how each order does on the pairs that are predicted to suit each (Figure 2), one model below the other."""
    models = {name: model for name, model in found["models"].items() if "subsets" in model}
    if not models:
        return
    figure = Figure(figsize=(8, 3.5 * len(models)), layout="constrained")
    for axes, (name, model) in zip(figure.subplots(len(models), squeeze=False)[:, 0], models.items(), strict=True):
        orders, subsets = model["orders"], model["subsets"]
        width = 0.8 / len(orders)
        for number, order in enumerate(orders):
            places = [place + (number - (len(orders) - 1) / 2) * width for place in range(len(subsets))]
            bars = axes.bar(
                places,
                [subset["scores"][number] for subset in subsets],
                width,
                label=f"{number + 1}: {order['encoder']} {order['decoder']}",
            )
            axes.bar_label(bars, fmt="%.1f", fontsize=7)
        labels = [f"{subset['order']} ({orders[subset['order'] - 1]['share']:.1%})" for subset in subsets]
        axes.set_xticks(range(len(subsets)), labels)
        axes.set(title=name, xlabel="predicted order (share of the pairs)", ylabel=found["metric"])
        axes.legend(title="written in order", loc="center left", bbox_to_anchor=(1, 0.5))
    save(figure, folder / "subsets.svg")
