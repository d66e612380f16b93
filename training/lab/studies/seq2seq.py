"""`sublayers study seq2seq`: train several encoder-decoders alike, and compare what they write."""

from argparse import SUPPRESS
from dataclasses import dataclass, field
from typing import Any

from sublayers.training.flags import expand_settings_file, flag, number
from sublayers.training.lab.runs import own_flags
from sublayers.training.lab.studies.curves import LABELS, draw_curves
from sublayers.training.lab.studies.equal_translators import SCORES, studied, train
from sublayers.training.lab.studies.skeleton import Found, Study, run_study, scores
from sublayers.training.results import Row
from sublayers.training.trials import TrialsArguments

MODELS = [*studied(2)]


@dataclass
class StudySeq2SeqArguments(TrialsArguments):
    """Flags for the models; all others are those of `sublayers seq2seq`, for all runs alike."""

    models: list[str] = flag(f"of {', '.join(MODELS)}; default: the first 4", MODELS[:4])
    seeds: list[int] = flag("one run each", [0])
    layers: int = number("of the encoder, and as many of the decoder", 3)
    intermediate_size: int = number("of the Transformer", 1024)
    output_dir: str = flag("what is finished in it is not run again", "runs/study-seq2seq")
    # fields of a recipe that the models decide here
    encoder_sublayer_order: str | None = flag(SUPPRESS)
    decoder_sublayer_order: str | None = flag(SUPPRESS)
    flags: list[str] = field(default_factory=list, init=False)

    def __post_init__(self):
        super().__post_init__()
        if unknown := [name for name in self.models if name not in MODELS]:
            raise ValueError(f"unknown model {unknown[0]!r}; choose from {', '.join(MODELS)}")


class Seq2SeqStudy(Study):
    """Train encoder-decoders alike, and compare them; all other flags are those of `sublayers seq2seq`."""

    name, flags, goal, known = "seq2seq", (StudySeq2SeqArguments,), "minimize", MODELS
    free = (*Study.free, "encoder_sublayer_order", "decoder_sublayer_order")
    ending = "the figures and the learning curves are in"

    @classmethod
    def read(cls, argv: list[str]) -> Study:
        """Read the flags of the study, and keep those of the runs."""
        words = expand_settings_file(argv, "seq2seq")
        [args], others = own_flags(words, cls.flags, cls.usage(), description=cls.__doc__)
        args.flags = others
        return cls(args)

    def trial(self, model: str, seed: int) -> tuple[float, Found]:
        """Train a model: the validation loss, and what `train` tells."""
        found = train(model, seed, self.args)
        return found["metrics"]["eval_loss"], found

    def row(self, name: str, runs: list[Found]) -> Row:
        """Tell a model's orders, scores, and minutes of training."""
        row = {"encoder order": runs[0]["encoder"], "decoder order": runs[0]["decoder"]}
        row["parameters"] = f"{runs[0]['parameters']}"
        return row | scores([run["metrics"] for run in runs], SCORES)

    def sources(self, done: list[Found]) -> list[str]:
        """Name what the runs have read."""
        return [*dict.fromkeys(name for run in done for name in run["data"])]

    def draw(self, found: Any, rows: list[Row]) -> None:
        """Draw the learning curves of the first seed."""
        firsts = {name: next(iter(by_seed.values()))["curves"] for name, by_seed in found.items()}
        draw_curves(firsts, {"eval_loss": LABELS["eval_loss"]}, self.folder / "learning_curves.svg")


def main(argv: list[str]) -> dict[str, dict[str, Found]]:
    """Run the study, see `run_study`: of each model and seed what `train` tells."""
    return run_study(Seq2SeqStudy, argv)
