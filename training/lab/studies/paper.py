"""`sublayers study paper`: train what a table or figure of a paper compares, small or at the paper's size."""

import re
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sublayers.hub.model_card import RUN
from sublayers.training.flags import as_flags, flag, read_settings
from sublayers.training.lab.runs import own_flags, read_results, run_once
from sublayers.training.lab.studies.curves import LABELS, draw_curves, read_losses
from sublayers.training.lab.studies.skeleton import Found, Study, run_study, scores
from sublayers.training.results import Row
from sublayers.training.trials import TrialsArguments

PAPERS = Path(__file__).resolve().parents[1] / "papers"
# figures of a run: their heads, factors and digits
SCORES = {
    "eval_loss": (LABELS["eval_loss"], 1, 3),
    "eval_perplexity": ("validation perplexity", 1, 2),
    "eval_recall_loss": ("loss of recalled tokens (nats per token)", 1, 3),
    "eval_bleu": ("validation BLEU", 1, 2),
    "eval_sentence_bleu": ("validation sentence BLEU", 1, 2),
    "eval_valid_code": ("valid code (%)", 1, 1),
    "test_bleu": ("test BLEU", 1, 2),
    "lowest_at": ("update of the lowest validation loss", 1, 0),
    "train_runtime": ("training (minutes)", 1 / 60, 1),
}


def papers() -> dict[str, Path]:
    """Find the tables and figures that can be studied, by their names."""
    return {path.stem: path for path in sorted(PAPERS.glob("*.yaml"))}


@dataclass
class StudyPaperArguments(TrialsArguments):
    """Flags for what is studied; all others are those of the command that trains. Raises a ValueError for bad names."""

    name: str = flag("table or figure of a paper, such as sandwich_figure5", MISSING, positional=True)
    full: bool = flag("train at the paper's size, on its data, which the other flags name", False)
    models: list[str] | None = flag("default: all that are compared")
    seeds: list[int] = flag("one run each", [0, 1, 2])
    output_dir: str | None = flag("what is finished in it is not run again; default: runs/paper-NAME")
    flags: list[str] = field(default_factory=list, init=False)
    command: str = field(default="", init=False)
    arms: dict[str, list[str]] = field(default_factory=dict, init=False)

    def __post_init__(self):
        super().__post_init__()
        if self.name not in (known := papers()):
            raise ValueError(f"{self.name!r} is no table or figure of a paper; choose from {', '.join(known)}")
        self.output_dir = self.output_dir or f"runs/paper-{self.name}"
        plan = yaml.safe_load(known[self.name].read_text(encoding="utf-8"))
        size = plan["full" if self.full else "small"]
        self.command, sizes = plan["command"], size.pop("sizes", {})
        models = plan["models"] | size.pop("models", {})
        shared = read_settings(size.pop("recipe"), self.command) | size | {"output_dir": None}
        for name, own in models.items():
            words = {key: value.format_map(sizes) if isinstance(value, str) else value for key, value in own.items()}
            self.arms[name] = as_flags(shared | words)
        self.models = self.models or [*self.arms]
        if unknown := [name for name in self.models if name not in self.arms]:
            raise ValueError(f"unknown model {unknown[0]!r}; choose from {', '.join(self.arms)}")


class PaperStudy(Study):
    """Train what a table or figure of a paper compares, alike; all other flags are those of the training."""

    name, flags, goal, words = "paper", (StudyPaperArguments,), "minimize", "NAME"
    free = (*Study.free, "arms")
    ending = "the figures and the learning curves are in"

    @classmethod
    def read(cls, argv: list[str]) -> Study:
        """Read the flags of the study, and keep those of the runs."""
        [args], others = own_flags(argv, cls.flags, cls.usage(), description=cls.__doc__)
        args.flags = others
        return cls(args)

    def trial(self, model: str, seed: int) -> tuple[float, Found]:
        """Train a model: the validation loss, and its orders, parameters, metrics, curves and the names of the data."""
        # these imports take seconds, for which --help does not wait
        from transformers import AutoConfig

        from sublayers.hub.loading import load
        from sublayers.hub.model_card import named_orders, num_parameters

        folder = self.folder / re.sub(r"\W+", "_", f"{model}-{seed}")
        words = [self.args.command, *self.args.arms[model], *self.args.flags, f"--seed={seed}"]
        metrics = run_once(folder, f"{model}, seed {seed}", words)
        curves = read_losses(folder)
        if points := curves.get("eval_loss"):
            metrics["lowest_at"] = min(points, key=lambda point: point[1])[0]
        orders = " ".join(str(order) for _, order in named_orders(load(AutoConfig, folder)))
        found = {"orders": orders, "parameters": num_parameters(folder), "metrics": metrics, "curves": curves}
        return metrics["eval_loss"], found | {"data": [part["name"] for part in read_results(folder / RUN)["data"]]}

    def row(self, name: str, runs: list[Found]) -> Row:
        """Tell a model's orders, parameters and scores."""
        row = {"orders": runs[0]["orders"], "parameters": f"{runs[0]['parameters']}"}
        return row | scores([run["metrics"] for run in runs], SCORES)

    def sources(self, done: list[Found]) -> list[str]:
        """Name what the runs have read."""
        return [*dict.fromkeys(name for run in done for name in run["data"])]

    def draw(self, found: Any, rows: list[Row]) -> None:
        """Draw the learning curves of the first seed."""
        firsts = {name: next(iter(by_seed.values()))["curves"] for name, by_seed in found.items()}
        draw_curves(firsts, {"eval_loss": LABELS["eval_loss"]}, self.folder / "learning_curves.svg")


def main(argv: list[str]) -> dict[str, dict[str, Found]]:
    """Run the study, see `run_study`: of each model and seed what its trial tells."""
    return run_study(PaperStudy, argv)
