"""Learning curves of runs, and their picture."""

from pathlib import Path

from matplotlib.figure import Figure

from sublayers.training.lab.runs import read_results
from sublayers.training.metrics.pictures import save

# a run writes this file last
LOSS_CURVE = "loss_curve.json"
LABELS = {"loss": "training loss (nats per token)", "eval_loss": "validation loss (nats per token)"}
# pairs of a step and a value, by what the values are
Curves = dict[str, list[list[float]]]


def read_losses(run: Path) -> Curves:
    """Read the training and validation losses that a run left; none if it left none."""
    path = run / LOSS_CURVE
    curves = read_results(path) if path.exists() else {}
    return {name: curves[name] for name in LABELS if name in curves}


def draw_curves(found: dict[str, Curves], labels: dict[str, str], file: Path) -> None:
    """Draw curves by the names of their models, a box for each of the labels that there are values of."""
    drawn = [name for name in labels if any(curves.get(name) for curves in found.values())]
    if not drawn:
        return
    figure = Figure(figsize=(5 * len(drawn), 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True):
        for model, curves in found.items():
            if curves.get(name):
                axes.plot(*zip(*curves[name], strict=True), marker=".", label=model)
        axes.set(xlabel="step", ylabel=labels[name])
        axes.legend()
    save(figure, file)
