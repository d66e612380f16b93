"""The loss curve of a run, as numbers and as a picture."""

import json
from pathlib import Path

from matplotlib.figure import Figure


def save_loss_curve(history: list[dict[str, float]], folder: Path) -> None:
    """Write the losses that the Trainer logged into `loss_curve.json`, and draw them in `loss_curve.png`."""
    # a later entry of the same step, the final evaluation, replaces an earlier one
    curves = {name: {e["step"]: e[name] for e in history if name in e} for name in ("loss", "eval_loss")}
    points = {name: [list(point) for point in sorted(curve.items())] for name, curve in curves.items()}
    (folder / "loss_curve.json").write_text(json.dumps(points, indent=2) + "\n")
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    for name, label in {"loss": "training", "eval_loss": "evaluation"}.items():
        axes.plot(*zip(*points[name], strict=True), marker=".", label=label)
    axes.set(xlabel="step", ylabel="loss (nats per token)")
    axes.legend()
    figure.savefig(folder / "loss_curve.png", dpi=150)
