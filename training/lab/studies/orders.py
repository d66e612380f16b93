"""`sublayers study orders`: how the order of sublayers changes what a trained encoder-decoder writes."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import MISSING, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pandas as pd
from matplotlib.figure import Figure
from transformers import PreTrainedTokenizerBase

from sublayers.training.data.pairs import SIDES, Seq2SeqDataArguments, load_pairs
from sublayers.training.flags import expand_settings_file, flag, parse_flags
from sublayers.training.lab.runs import data_names
from sublayers.training.lab.studies.curves import LABELS, draw_curves, read_losses
from sublayers.training.lab.studies.skeleton import Study
from sublayers.training.metrics.pictures import save
from sublayers.training.metrics.seq2seq import task_metrics
from sublayers.training.results import Row
from sublayers.training.trials import TASK, TrialsArguments, check_done

if TYPE_CHECKING:
    from sublayers.training.lab.studies.writer import Writer

USAGE = "sublayers study orders [SETTINGS.yaml] --model_name_or_path RUN [RUN ...] --task TASK [--name value ...]"
# the metric of each task that tables and pictures show
TASK_METRICS = {"translation": "bleu", "summarization": "rougeL", "code": "sentence_bleu"}
# flags that may differ when a study goes on
FREE = ("model_name_or_path", "output_dir", "ensemble", "jobs", "storage")
# how many tokens are the frequent ones of Table 18
FREQUENT = 20

# texts by side
Pairs = dict[str, list[str]]
# metrics of predictions and references
Score = Callable[[list[str], list[str]], dict[str, Any]]


@dataclass
class StudyOrdersArguments(TrialsArguments):
    """Flags for the models, how they write, and what is studied besides."""

    _argument_group_name: ClassVar[str] = "models, task and generation"

    model_name_or_path: list[str] = flag("folders that sublayers seq2seq left", MISSING)
    task: Literal["translation", "summarization", "code"] = flag("decides on the metrics", MISSING)
    language: Literal["python", "java"] = flag("of the targets of --task code", "python")
    split: Literal["validation", "test"] = flag("which pairs are written", "validation")
    output_dir: str = flag("what is written in it is not written again", "runs/study-orders")
    orders: list[str] | None = flag("decoder orders to force on a model that has only one, such as fsc csf")
    ensemble: bool = flag("let the first model, the first two, ... write together", False)
    checkpoints: bool = flag("score every checkpoint in the models' folders, too", False)
    batch_size: int = flag("sources that are decoded at once", 32)
    num_beams: int | None = flag("default: the model's")
    length_penalty: float | None = flag("default: the model's")
    max_length: int | None = flag("most tokens of a text; default: the model's")


FLAGS = (StudyOrdersArguments, Seq2SeqDataArguments)


def main(argv: list[str]) -> dict[str, Any]:
    """Let every model write a split in each order that it has, and compare; also ensembles and checkpoints.

    The studies are those of Zhu et al. (2021): Figures 2 to 4, Tables 10, 18 and 21, and setting 1 of section 5.4.
    The output folder has `results.csv`, `results.json`, and, where they exist, `subsets.svg` and `learning_curves.svg`.

    Returns:
        What `results.json` holds: of each model in `models` what `study_model` finds, and in `curves` its losses in
        training and, with --checkpoints, their scores, as pairs of a step and a value; and in `ensembles` the metrics
        of the first model, the first two, ...

    Raises:
        FileExistsError: the output folder holds something else, or a study with other flags.
        FileNotFoundError: a file does not exist.
        ValueError: bad flags or data, or models that cannot be studied so.
    """
    args, data = parse_flags(expand_settings_file(argv, "study"), FLAGS, USAGE)
    # models take seconds to import, for which --help does not wait
    from sublayers.training.lab.studies.ensemble import Seq2SeqEnsemble

    metric = TASK_METRICS[args.task]
    if args.task != "code" and not (data.dataset_name or data.validation_file or data.test_file):
        raise ValueError(f"there are no data for --task {args.task}; give --validation_file or --dataset_name")
    write = Write(args, data)
    writers = {name: write.load(name) for name in args.model_name_or_path}
    if args.ensemble:
        check_vocabularies(writers)
    pairs = write.read(*writers.values())[args.split]
    settings = {name: value for name, value in (vars(args) | vars(data)).items() if name not in FREE}
    study = Study(["orders", *argv], args, settings)
    study.run(write, [{"model": name} for name in writers])
    check_done(study.faults)
    known = {each[TASK]["model"]: each for each in study.found()}
    found: dict[str, Any] = {"split": args.split, "metric": metric, "models": {}, "curves": {}, "ensembles": []}
    found["models"] = {name: known[name]["found"] for name in writers}
    found["curves"] = {name: known[name]["curves"] for name in writers}
    if args.ensemble:
        all_writers = [*writers.values()]
        for number in range(1, len(writers) + 1):
            ensemble = Seq2SeqEnsemble([writer.model for writer in all_writers[:number]])
            texts = replace(all_writers[0], model=ensemble).write(pairs["source"], f"ensemble of {number}")
            found["ensembles"].append(write.score(texts, pairs["target"]))
    (study.folder / "results.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    study.report(rows_of(found), data_names(data, "functions of Python's standard library"))
    draw_subsets(found, study.folder)
    labels = LABELS | {metric: f"{metric} of {args.split}"}
    draw_curves(found["curves"], labels, study.folder / "learning_curves.svg")
    study.end("all numbers and pictures are in")
    return found


@dataclass(frozen=True)
class Write:
    """Lets models write."""

    args: StudyOrdersArguments
    data: Seq2SeqDataArguments

    def __call__(self, model: str) -> tuple[float, dict[str, Any]]:
        """Return the metric of a model's first order, what `study_model` finds, and the model's curves."""
        from sublayers.training.trainers.resume import complete_checkpoints

        metric = TASK_METRICS[self.args.task]
        writer, curves = self.load(model), read_losses(Path(model))
        splits = self.read(writer)
        pairs = splits[self.args.split]
        found = study_model(writer, model, splits, self.args, self.score)
        if self.args.checkpoints:
            points = curves[metric] = []
            for path in complete_checkpoints(model):
                texts = self.load(str(path)).write(pairs["source"], str(path))
                points.append([int(path.name.split("-")[-1]), self.score(texts, pairs["target"])[metric]])
        return found["orders"][0]["metrics"][metric], {"found": found, "curves": curves}

    def load(self, name: str) -> "Writer":
        """Load a model. Raises what `load_writer` raises."""
        from sublayers.training.lab.studies.writer import load_writer

        return load_writer(name, args=self.args, max_source_length=self.data.max_source_length)

    def read(self, *writers: "Writer") -> dict[str, Pairs]:
        """Read the splits that writers need. Raises a ValueError where there is none."""
        loaded = load_pairs(self.data)
        needed = {self.args.split, *("validation" for writer in writers if writer.is_undecided)}
        if missing := sorted(needed - loaded.keys()):
            raise ValueError(f"there are no {missing[0]} data; give --{missing[0]}_file")
        return {split: {side: list(loaded[split][side]) for side in SIDES} for split in needed}

    def score(self, predictions: list[str], references: list[str]) -> dict[str, Any]:
        """Score predictions with the metrics of the task."""
        return task_metrics(self.args.task, predictions, references, self.args.language, self.data.target)


def check_vocabularies(writers: dict[str, "Writer"]) -> None:
    """Check that models can write together.

    Raises:
        ValueError: two have other tokens.
    """
    vocabularies = {name: [each.get_vocab() for each in writer.tokenizers] for name, writer in writers.items()}
    first, *others = vocabularies
    for name in others:
        if vocabularies[name] != vocabularies[first]:
            raise ValueError(f"{name} has another vocabulary than {first}; an ensemble needs models with the same")


def study_model(
    writer: "Writer", name: str, splits: dict[str, Pairs], args: StudyOrdersArguments, score: Score
) -> dict[str, Any]:
    """Let a model write a split in each of its orders.

    Returns:
        `orders`, a list of a dict each: `encoder` and `decoder`, whether the order was `trained`, the `metrics` of the
        whole split (Table 21) and, if orders are predicted, the `share` of the sources that are predicted to suit it.
        `predicted`: the metrics of the texts in predicted orders, and `subsets`: see `study_subset`, one for each order
        that is predicted at all.
        `best`, if orders are trained, but not predicted: the number of the `order` that scores best on the `validation`
        data, that score, and its metrics on the split.
    """

    def write_all(split: str) -> list[list[str]]:
        sources, number = splits[split]["source"], len(writer.paths)
        return [
            writer.write(sources, f"{name}, {split}, order {n} of {number}", path)
            for n, path in enumerate(writer.paths, 1)
        ]

    pairs, metric, texts = splits[args.split], TASK_METRICS[args.task], write_all(args.split)
    encoders, decoders = writer.model.config.stack_orders
    orders: list[dict[str, Any]] = [
        {
            "encoder": str(encoders[m]),
            "decoder": str(decoders[n]),
            "trained": number < writer.trained,
            "metrics": score(texts[number], pairs["target"]),
        }
        for number, (m, n) in enumerate(writer.paths)
    ]
    found: dict[str, Any] = {"orders": orders}
    if writer.predicts:
        chosen = writer.choose(pairs["source"], f"{name}, predicting orders")
        own = [texts[number][row] for row, number in enumerate(chosen)]
        found |= {"predicted": score(own, pairs["target"]), "subsets": []}
        for number, order in enumerate(orders):
            rows = [row for row, other in enumerate(chosen) if other == number]
            order["share"] = len(rows) / len(chosen)
            if rows:
                subset = study_subset(rows, pairs, texts, writer.tokenizers, score, metric)
                found["subsets"].append({"order": number + 1, **subset})
    if writer.is_undecided:
        scores = [order["metrics"][metric] for order in orders]
        if args.split != "validation":
            target = splits["validation"]["target"]
            scores = [score(written, target)[metric] for written in write_all("validation")]
        best = scores.index(max(scores))
        found["best"] = {"order": best + 1, "validation": scores[best], "metrics": orders[best]["metrics"]}
    return found


def study_subset(
    rows: list[int],
    pairs: Pairs,
    texts: list[list[str]],
    tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase],
    score: Score,
    metric: str,
) -> dict[str, Any]:
    """Score some rows under every order (Figure 2), and count their tokens (Table 18).

    Args:
        rows: numbers of the pairs.
        pairs: sources and targets of the split.
        texts: what was written for each pair, by order.
        tokenizers: of sources and of targets.
        score: of predictions and references.
        metric: the one of the score that is kept.

    Returns:
        The number of `sentences`, `scores` under each order and their mean `mean_score`; and for `source` and `target`
        the `tokens`, special ones not counted, `distinct_tokens`, and how frequent the 20 most frequent ones are among
        them in all, `top_frequency`, from 0 to 1.
    """
    found: dict[str, Any] = {"sentences": len(rows)}
    references = [pairs["target"][row] for row in rows]
    found["scores"] = [score([written[row] for row in rows], references)[metric] for written in texts]
    found["mean_score"] = mean(found["scores"])
    for side, tokenizer in zip(SIDES, tokenizers, strict=True):
        ids = tokenizer([pairs[side][row] for row in rows], add_special_tokens=False, verbose=False).input_ids
        counts = Counter(token for text in ids for token in text)
        found[side] = {
            "tokens": counts.total(),
            "distinct_tokens": len(counts),
            "top_frequency": sum(count for _, count in counts.most_common(FREQUENT)) / counts.total(),
        }
    return found


def rows_of(found: dict[str, Any]) -> list[Row]:
    """Make a row of figures for each order of each model, with the pairs that it is predicted for, and for all else."""
    metric, rows = found["metric"], []

    def row_of(name: str, written_in: str, score: float) -> Row:
        return {"model": name, "written in": written_in, metric: f"{score:.2f}"}

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
            rows.append(row_of(name, "predicted", model["predicted"][metric]))
        if best := model.get("best"):
            row = row_of(name, f"{best['order']}, best of validation", best["metrics"][metric])
            rows.append(row | {f"validation {metric}": f"{best['validation']:.2f}"})
    names = [*found["models"]]
    for number, scores in enumerate(found["ensembles"], 1):
        rows.append(row_of(", ".join(names[:number]), "ensemble", scores[metric]))
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


def draw_subsets(found: dict[str, Any], folder: Path) -> None:
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
    save(figure, folder / "subsets.svg")
