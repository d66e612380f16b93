"""`sublayers attention-distance`: how differently the attention heads of models look at the same text."""

import json
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from sublayers.training.flags import flag, number, parse_flags
from sublayers.training.folders import refuse_to_overwrite, whole_folder
from sublayers.training.results import table

# the names of the distances, and of their pictures
UNITS = {"value": "attention weight", "position": "tokens"}


EPILOG = (
    "For each token and self-attention sublayer, heads are matched at least cost; the distance is the sum over matched "
    "heads, averaged over tokens and sublayers. `value` compares the weights as samples, as the paper's numbers do, "
    "whatever a head looks at; `position` is by how many tokens attention has to be moved."
)


@dataclass
class DistanceArguments:
    """Flags for what is compared. Raises a ValueError for one model, or a part of a window."""

    models: list[str] = flag("two or more folders or names on the Hub", MISSING, positional=True)
    text: str | None = flag("file to read; default: held-out files of Python's standard library")
    tokens: int = number("how many to compare", 256)
    window: int = number("tokens read at a time", 128)
    output_dir: Path | None = flag("new folder for numbers and pictures")

    def __post_init__(self):
        if len(self.models) < 2:
            raise ValueError(f"{self.models[0]} has nothing to be compared with; give two models or more")
        if self.tokens % self.window:
            raise ValueError(f"--tokens={self.tokens} is not a multiple of --window={self.window}; give one that is")


def main(argv: list[str]) -> dict[str, Any]:
    """Compare models two by two, print the distances, and write and draw them if there is a folder for that.

    Returns:
        The models, their kinds (orders), the text and, for each metric of `attention_distances`, the matrix of
        `distances`, and what `mean_distances` finds.

    Raises:
        FileExistsError: the output folder holds files.
        OSError: a model, tokenizer or file does not exist.
        ValueError: bad flags, models that cannot be compared, tokenizers that read the text differently, or a text that
            is too short; see also `load`.
    """
    usage = "sublayers attention-distance MODEL MODEL [MODEL ...] [--name value ...]"
    [args] = parse_flags(argv, [DistanceArguments], usage, description=__doc__, epilog=EPILOG)
    if args.output_dir:
        refuse_to_overwrite(args.output_dir)
    found = _compare(args)
    for metric in UNITS:
        Console().print(_describe(found, metric), soft_wrap=True, markup=False, highlight=False)
    if args.output_dir:
        with whole_folder(args.output_dir) as folder:
            (folder / "results.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
            for metric in UNITS:
                _paint(found, metric, folder / f"{metric}.svg")
    return found


def _compare(args: DistanceArguments) -> dict[str, Any]:
    # these imports take seconds, for which --help does not wait
    from transformers import AutoModel, AutoTokenizer

    from sublayers.hub.loading import load
    from sublayers.training.data.corpus import STANDARD_LIBRARY, CorpusArguments, load_corpus
    from sublayers.training.lab import attention_weights as measure
    from sublayers.training.trainers.start import check_positions

    text = load_corpus(CorpusArguments(validation_file=args.text))["validation"]
    kinds, weights, windows = [], [], None
    for name in args.models:
        read = measure.read_windows(text.pieces(), load(AutoTokenizer, name), args.tokens // args.window, args.window)
        windows = read if windows is None else windows
        if not read.equal(windows):
            raise ValueError(f"{name} reads the text as other tokens than {args.models[0]}; share a tokenizer")
        model = load(AutoModel, name, attn_implementation="eager")
        check_positions(model.config, args, "window")
        weights.append(measure.attention_weights(model, windows))
        # others' models have no order
        kinds.append(getattr(model.config, "sublayer_order", model.config.model_type))
    found: dict[str, Any] = {"models": args.models, "kinds": kinds, "text": args.text or STANDARD_LIBRARY}
    found |= {"tokens": args.tokens, "window": args.window}
    for metric, distances in measure.attention_distances(weights).items():
        found[metric] = {"distances": distances.tolist(), **measure.mean_distances(distances, kinds)}
    return found


def _describe(found: dict[str, Any], metric: str) -> str:
    deviations = {name: f" ± {value:.2g}" for name, value in found[metric]["deviations"].items()}
    means = [f"{name}: {value:.4g}{deviations.get(name, '')}" for name, value in found[metric]["means"].items()]
    rows = []
    for place, distances in enumerate(found[metric]["distances"]):
        row = {"model": f"{place + 1} {found['models'][place]}", "kind": found["kinds"][place]}
        rows.append(row | {f"{other}": f"{distance:.4g}" for other, distance in enumerate(distances, 1)})
    return f"{metric}, {UNITS[metric]}, means of {', '.join(means)}\n\n{table(rows)}"


def _paint(found: dict[str, Any], metric: str, file: Path) -> None:
    from matplotlib.figure import Figure

    places = range(len(found["models"]))
    figure = Figure(figsize=(0.9 * len(places) + 3, 0.9 * len(places) + 2), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(found[metric]["distances"], cmap="Blues")
    middle = max(map(max, found[metric]["distances"])) / 2
    for row, distances in enumerate(found[metric]["distances"]):
        for column, distance in enumerate(distances):
            colour = "white" if distance > middle else "black"
            axes.text(column, row, f"{distance:.3g}", ha="center", va="center", color=colour)
    labels = [f"{name}\n{kind}" for name, kind in zip(found["models"], found["kinds"], strict=True)]
    axes.set_xticks(places, labels, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(places, labels)
    figure.colorbar(image, label=f"{metric} distance, {UNITS[metric]}")
    # long names of folders would be cut off
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
