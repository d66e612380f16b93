"""`sublayers study bert`: pre-train and fine-tune several orders alike, and draw quality against cost."""

from dataclasses import MISSING, dataclass
from statistics import mean
from typing import Any, ClassVar

from sublayers.training.data.corpus import CorpusArguments
from sublayers.training.flags import flag
from sublayers.training.lab.runs import data_names
from sublayers.training.lab.studies.equal_berts import LENGTH, MODELS, read_model
from sublayers.training.lab.studies.skeleton import Found, Study, run_study, scores
from sublayers.training.lab.studies.tuned_berts import PRETRAINING, train
from sublayers.training.metrics.score_pictures import Panel, draw_scores
from sublayers.training.results import Row, score
from sublayers.training.trials import TrialsArguments

COST = "cost of classifying"


@dataclass
class StudyArguments(TrialsArguments):
    """Flags for the models, how long they are trained, and on what."""

    _argument_group_name: ClassVar[str] = "models, training and tasks"

    glue_dir: str = flag("folder with one for each GLUE task, as --data_dir of sublayers glue", MISSING)
    squad_train_file: str | None = flag("as --train_file of sublayers squad")
    squad_validation_file: str | None = flag("as --squad_train_file")
    output_dir: str = flag("what is finished in it is not run again", "runs/study")
    models: list[str] = flag(f"of {', '.join(MODELS)}, or orders of layers as wide as BERT's", [*MODELS])
    tasks: list[str] = flag("GLUE tasks to fine-tune on", ["sst2", "mrpc", "cola", "stsb"])
    seeds: list[int] = flag("one pre-training and fine-tuning each", [0])
    hidden_size: int = flag("width of the models", 128)
    num_attention_heads: int = flag("attention heads", 4)
    vocab_size: int = flag("largest size of the tokenizer, which is trained first", 8192)
    pretraining_flags: str = flag("flags of sublayers pretrain, in one text", "")
    glue_flags: str = flag("flags of sublayers glue", "")
    squad_flags: str = flag("flags of sublayers squad", "")


class BertStudy(Study):
    """Train models with as many parameters as BERT alike, and controls of equal cost; draw quality against cost."""

    name, flags, known = "bert", (StudyArguments, CorpusArguments), [*MODELS]
    ending = "the figures and a picture of quality against cost are in"

    def check(self) -> None:
        """Read all models."""
        for name in self.args.models:
            read_model(name)

    def trial(self, model: str, seed: int) -> tuple[float, Found]:
        """Train a model: the mean score over the tasks, and what `train` tells."""
        found = train(model, seed, self.args, self.data)
        return mean(result["score"] for result in found["tasks"].values()), found

    def row(self, name: str, runs: list[Found]) -> Row:
        """Tell a model's cost, what it learned in pre-training, and its scores times 100."""
        row = {"order": runs[0]["order"], "kind": read_model(name).kind, "parameters": f"{runs[0]['parameters']}"}
        row |= {"width": f"{runs[0]['hidden_size']}", COST: f"{runs[0]['cost']:.2f}"}
        row |= scores([run["pretraining"] for run in runs], PRETRAINING)
        for task, result in runs[0]["tasks"].items():
            row |= score(f"{task} ({result['metric']})", [100 * run["tasks"][task]["score"] for run in runs])
        return row | score("mean", [100 * mean(each["score"] for each in run["tasks"].values()) for run in runs])

    def sources(self, done: list[Found]) -> list[str]:
        """Name the corpus and the tasks."""
        squad = ["SQuAD"] if self.args.squad_train_file else []
        return [*data_names(self.data), *(f"GLUE {task}" for task in self.args.tasks), *squad]

    def draw(self, found: Any, rows: list[Row]) -> None:
        """Draw quality against cost."""
        cost = f"FLOPs of classifying {LENGTH} tokens, relative to BERT"
        panel = Panel("mean", COST, "mean score over the tasks", cost)
        draw_scores(rows, [panel], self.folder / "quality_against_cost.svg")


def main(argv: list[str]) -> dict[str, dict[str, Found]]:
    """Run the study, see `run_study`: of each model and seed what `train` tells."""
    return run_study(BertStudy, argv)
