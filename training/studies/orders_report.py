"""Tables and pictures of `sublayers study orders`."""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from sublayers.training.data.pairs import SIDES
from sublayers.training.studies.tables import write_results, write_table

LABELS = {"loss": "training loss (nats per token)", "eval_loss": "validation loss (nats per token)"}


def read_losses(run: Path) -> dict[str, list[list[float]]]:
    """Read the training and validation losses, pairs of a step and a loss, that a run left; none if it left none."""
    path = run / "loss_curve.json"
    if not path.exists():
        return {}
    curves = json.loads(path.read_text(encoding="utf-8"))
    return {name: curves[name] for name in LABELS}


def report(found: dict[str, Any], folder: Path) -> None:
    """Write `results.json`, `results.md`, `subsets.svg` and `learning_curves.svg`, the pictures if there are such."""
    write_results(found, write_tables(found), folder)
    draw_subsets(found, folder)
    draw_curves(found, folder)
    Console().print(f"all numbers and pictures are in {folder}")


def write_tables(found: dict[str, Any]) -> str:
    """Write all tables in Markdown."""
    metric = found["metric"]
    rows = []
    for name, model in found["models"].items():
        for number, order in enumerate(model["orders"], 1):
            share = f"{order['share']:.1%}" if "share" in order else ""
            mark = "" if order["trained"] else ", untrained"
            stacks = (f"`{order[side]}`" for side in ("encoder", "decoder"))
            rows.append([name, f"{number}{mark}", *stacks, share, f"{order['metrics'][metric]:.2f}"])
        if "predicted" in model:
            rows.append([name, "predicted", "", "", "", f"{model['predicted'][metric]:.2f}"])
        if best := model.get("best"):
            which = f"{best['order']}, best of validation ({best['validation']:.2f})"
            rows.append([name, which, "", "", "", f"{best['metrics'][metric]:.2f}"])
    title = f"All {found['split']} pairs under each order"
    parts = [table(title, ["model", "order", "encoder", "decoder", "predicted for", metric], rows)]

    rows = []
    for name, model in found["models"].items():
        if subsets := model.get("subsets"):
            under = [f"under {number}" for number in range(1, len(model["orders"]) + 1)]
            scores = [[f"{subset['order']}", *(f"{score:.2f}" for score in subset["scores"])] for subset in subsets]
            parts.append(table(f"{metric} of the pairs that {name} predicts an order for", ["order", *under], scores))
        for subset in model.get("subsets", []):
            for side in SIDES:
                numbers = subset[side]
                counts = [subset["sentences"], numbers["tokens"], numbers["distinct_tokens"]]
                values = [f"{numbers['top_frequency']:.4f}", f"{subset['mean_score']:.2f}"]
                rows.append([name, f"{subset['order']}", side, *(f"{count:,}" for count in counts), *values])
    if rows:
        head = [
            "model",
            "order",
            "side",
            "sentences",
            "tokens",
            "distinct",
            "frequency of the top 20",
            f"mean {metric}",
        ]
        title = "What these pairs are, in tokens of the model's tokenizer without special ones"
        parts.append(table(title, head, rows))
    if ensembles := found["ensembles"]:
        names = [*found["models"]]
        rows = [[", ".join(names[:n]), f"{scores[metric]:.2f}"] for n, scores in enumerate(ensembles, 1)]
        parts.append(table("Ensembles, each model in the order of its own for each source", ["models", metric], rows))
    rows = [
        [name, f"{step}", f"{score:.2f}"]
        for name, curves in found["curves"].items()
        for step, score in curves.get(metric, [])
    ]
    if rows:
        parts.append(table("Checkpoints", ["model", "step", metric], rows))
    return "\n".join(parts)


def table(title: str, head: list[str], rows: list[list[str]]) -> str:
    """Write a table in Markdown, under its title."""
    return f"## {title}\n\n{write_table([head, *rows])}"


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
    figure.savefig(folder / "subsets.svg")


def draw_curves(found: dict[str, Any], folder: Path) -> None:
    """Draw losses in training and scores of checkpoints (Figures 3 and 4), all models in one picture."""
    labels = LABELS | {found["metric"]: f"{found['metric']} of {found['split']}"}
    drawn = [name for name in labels if any(curves.get(name) for curves in found["curves"].values())]
    if not drawn:
        return
    figure = Figure(figsize=(5 * len(drawn), 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True):
        for model, curves in found["curves"].items():
            if curves.get(name):
                axes.plot(*zip(*curves[name], strict=True), marker=".", label=model)
        axes.set(xlabel="step", ylabel=labels[name])
        axes.legend()
    figure.savefig(folder / "learning_curves.svg")
