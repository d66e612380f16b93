"""What came of a run in pictures and their numbers: the loss curve, and the spans that attention has learned."""

import json
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from sublayers.modeling.modeling_sandwich_char_lm import SandwichCharLMPreTrainedModel


def save_loss_curve(history: list[dict[str, float]], folder: Path, unit: str) -> None:
    """Write the losses that the Trainer logged into `loss_curve.json`, and draw them in `loss_curve.png`."""
    # a later entry of the same step, the final evaluation, replaces an earlier one
    curves = {name: {e["step"]: e[name] for e in history if name in e} for name in ("loss", "eval_loss")}
    points = {name: [list(point) for point in sorted(curve.items())] for name, curve in curves.items()}
    (folder / "loss_curve.json").write_text(json.dumps(points, indent=2) + "\n")
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    for name, label in {"loss": "training", "eval_loss": "evaluation"}.items():
        axes.plot(*zip(*points[name], strict=True), marker=".", label=label)
    axes.set(xlabel="step", ylabel=unit)
    axes.legend()
    figure.savefig(folder / "loss_curve.png", dpi=150)


def save_spans(model: Any, folder: Path) -> None:
    """Write how many tokens each attention head looks back into `spans.json`, a list for each sublayer, and draw them.

    As Sukhbaatar et al. (2019), "Adaptive Attention Span in Transformers", section 4, do; `spans.png` is the picture.
    Of a model without learned spans nothing is written.
    """
    attentions = model.span_attentions() if isinstance(model, SandwichCharLMPreTrainedModel) else []
    learned = [attention.span for attention in attentions if attention.span is not None]
    if not learned:
        return
    longest = model.config.attention_span
    spans = [[round(share * longest, 1) for share in span.detach().clamp(0, 1).tolist()] for span in learned]
    (folder / "spans.json").write_text(json.dumps(spans, indent=2) + "\n")
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    numbers = range(1, len(spans) + 1)
    heads = [(number, head) for number, sublayer in zip(numbers, spans, strict=True) for head in sublayer]
    axes.plot(*zip(*heads, strict=True), ".", color="grey", label="a head")
    axes.plot(numbers, [mean(sublayer) for sublayer in spans], label="mean")
    axes.plot(numbers, [max(sublayer) for sublayer in spans], label="largest")
    # spans are of all sizes, and none among them
    axes.set_yscale("symlog", linthresh=10)
    axes.set(xlabel="attention sublayer", ylabel="span (tokens)", ylim=(0, longest * 1.5))
    axes.legend()
    figure.savefig(folder / "spans.png", dpi=150)
