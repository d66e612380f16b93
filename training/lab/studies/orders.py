"""`sublayers study orders`: how the order of sublayers changes what a trained encoder-decoder writes."""

from dataclasses import MISSING, dataclass
from typing import Any, ClassVar, Literal

from sublayers.training.data.pairs import Seq2SeqDataArguments
from sublayers.training.flags import flag
from sublayers.training.lab.runs import data_names
from sublayers.training.lab.studies.order_rows import draw, rows_of
from sublayers.training.lab.studies.skeleton import Found, Study, run_study
from sublayers.training.lab.studies.written import Written
from sublayers.training.results import Row
from sublayers.training.trials import TrialsArguments


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


class OrdersStudy(Study):
    """Let every model write a split in each order that it has, and compare; also ensembles and checkpoints.

    The studies are those of Zhu et al. (2021): Figures 2 to 4, Tables 1, 2, 10, 18 and 21, and section 5.4.
    """

    name, flags = "orders", (StudyOrdersArguments, Seq2SeqDataArguments)
    words = "[SETTINGS.yaml] --model_name_or_path RUN [RUN ...] --task TASK"
    free = (*Study.free, "model_name_or_path", "ensemble")
    ending = "all numbers and pictures are in"

    def check(self) -> None:
        """Load all models and pairs."""
        Written(self.args, self.data).check()

    def grid(self) -> list[dict[str, Any]]:
        """List the models."""
        return [{"model": name} for name in self.args.model_name_or_path]

    def trial(self, model: str) -> tuple[float, Found]:
        """Return the metric of a model's first order, what all of them write, and the model's curves."""
        written = Written(self.args, self.data)
        found = written.study(model)
        texts, value = found.pop("texts"), found["orders"][0]["metrics"][written.metric]
        return value, {"models": found, "texts": texts, "curves": written.curves(model)}

    def found(self, done: list[Found]) -> dict[str, Any]:
        """Put together and write what `results.json` holds, see `Written`."""
        return Written(self.args, self.data).everything(done, self.folder / "results.json")

    def rows(self, found: dict[str, Any]) -> list[Row]:
        """Make a row for each order of each model, and for all else."""
        return rows_of(found)

    def sources(self, done: list[Found]) -> list[str]:
        """Name the pairs."""
        return data_names(self.data, "functions of Python's standard library")

    def draw(self, found: dict[str, Any], rows: list[Row]) -> None:
        """Draw `subsets.svg` and `learning_curves.svg`, where there are such."""
        draw(found, self.folder)


def main(argv: list[str]) -> dict[str, Any]:
    """Run the study, see `run_study`: what `results.json` holds."""
    return run_study(OrdersStudy, argv)
