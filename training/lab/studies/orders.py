"""`sublayers study orders`: how the order of sublayers changes what a trained encoder-decoder writes."""

import json
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from sublayers.training.data.pairs import Seq2SeqDataArguments
from sublayers.training.flags import flag
from sublayers.training.lab.runs import data_names
from sublayers.training.lab.studies.curves import LABELS, draw_curves, read_losses
from sublayers.training.lab.studies.order_rows import draw_subsets, rows_of
from sublayers.training.lab.studies.skeleton import Found, Study, run_study
from sublayers.training.lab.studies.written import TASK_METRICS, Written
from sublayers.training.results import Row
from sublayers.training.trials import TASK, TrialsArguments


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
    batch_size: int = flag("sources that are decoded at once", 32)
    num_beams: int | None = flag("default: the model's")
    length_penalty: float | None = flag("default: the model's")
    max_length: int | None = flag("most tokens of a text; default: the model's")


class OrdersStudy(Study):
    """Let every model write a split in each of its orders, and compare (Zhu et al., 2021: Figure 2, Tables 18, 21)."""

    name, flags = "orders", (StudyOrdersArguments, Seq2SeqDataArguments)
    words = "[SETTINGS.yaml] --model_name_or_path RUN [RUN ...] --task TASK"
    free = (*Study.free, "model_name_or_path")
    ending = "all numbers and pictures are in"

    def check(self) -> None:
        """Load all models and pairs."""
        Written(self.args, self.data).check()

    def grid(self) -> list[dict[str, Any]]:
        """List the models."""
        return [{"model": name} for name in self.args.model_name_or_path]

    def trial(self, model: str) -> tuple[float, Found]:
        """Return the metric of a model's first order, what `Written` finds, and the losses of its training."""
        value, found = Written(self.args, self.data).study(model)
        return value, {"models": found, "curves": read_losses(Path(model))}

    def found(self, done: list[Found]) -> dict[str, Any]:
        """Return what `results.json` holds: of each model what `trial` tells."""
        found = {kind: {each[TASK]["model"]: each[kind] for each in done} for kind in ("models", "curves")}
        return {"split": self.args.split, "metric": TASK_METRICS[self.args.task], **found}

    def rows(self, found: dict[str, Any]) -> list[Row]:
        """Make a row for each order of each model, and for all else."""
        return rows_of(found)

    def sources(self, done: list[Found]) -> list[str]:
        """Name the pairs."""
        return data_names(self.data, "functions of Python's standard library")

    def draw(self, found: dict[str, Any], rows: list[Row]) -> None:
        """Draw `subsets.svg` and `learning_curves.svg`, where there are such, and write `results.json`."""
        draw_subsets(found, self.folder / "subsets.svg")
        draw_curves(found["curves"], LABELS, self.folder / "learning_curves.svg")
        (self.folder / "results.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def main(argv: list[str]) -> dict[str, Any]:
    """Run the study, see `run_study`: what `results.json` holds."""
    return run_study(OrdersStudy, argv)
