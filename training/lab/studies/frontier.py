"""`sublayers study frontier`: how good students in several orders are, and how fast, beside their teacher."""

from dataclasses import MISSING, dataclass
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

import pandas as pd

from sublayers.training.data.corpus import CorpusArguments
from sublayers.training.flags import flag, number
from sublayers.training.lab.runs import data_names
from sublayers.training.lab.studies.encoder_tests import measure, open_optimized, score
from sublayers.training.lab.studies.frontier_report import TEACHER, draw, rows_of
from sublayers.training.lab.studies.skeleton import Found, Study, run_study
from sublayers.training.lab.studies.students import place, read_student, teach
from sublayers.training.results import Row
from sublayers.training.trials import TrialsArguments


@dataclass
class FrontierArguments(TrialsArguments):
    """Flags for the students, how they learn, and what they are tested on."""

    _argument_group_name: ClassVar[str] = "students and tests"

    teacher: str = flag("folder or repository of a SentenceTransformer", MISSING, positional=True)
    students: list[str] = flag("an order each, and flags of its own, as in '(sf)2 --layers 0 1'", MISSING)
    output_dir: str = flag("what is finished in it is not run again", "runs/frontier")
    seeds: list[int] = flag("one distillation each", [0])
    distill_flags: str = flag("recipe and flags of sublayers distill, in one text", "")
    sts_file: str | None = flag("rows with sentence1, sentence2 and label, such as the test data of STS-B")
    squad_file: str | None = flag("for each of its questions, the paragraph is searched among all")
    max_questions: int = flag("questions of --squad_file that are asked", 1000)
    batch_sizes: list[int] = number("texts that are encoded at once", [1, 32])
    timed_texts: int = number("texts that are timed in one round", 64)
    rounds: int = number("rounds of timing all encoders in turn", 9)


class Frontier(Study):
    """Teach students with every seed, test all, time them side by side, and draw quality against time."""

    name, flags, words = "frontier", (FrontierArguments, CorpusArguments), "TEACHER [SETTINGS.yaml] --students ORDER"
    free = (*Study.free, "students", "batch_sizes", "timed_texts", "rounds")
    ending = "the card, a picture and the figures are in"

    def check(self) -> None:
        """Read students and tests; an encoder that cannot be opened is refused before hours of training."""
        students = [*map(read_student, self.args.students)]
        self.students = {each.name: each for each in students}
        folders = [place(each.name, 0, self.args) for each in students]
        if twice := [each.name for each, folder in zip(students, folders, strict=True) if folders.count(folder) > 1]:
            raise ValueError(f"--students {' and '.join(twice)} would share a folder; give one of them")
        # models take seconds to import, for which --help does not wait
        from sublayers.training.metrics.sentence_encoders import load_texts

        self.texts = load_texts(self.args.sts_file, self.args.squad_file)
        open_optimized(self.args.teacher)

    def grid(self) -> list[dict[str, Any]]:
        """List the teacher, and each student with each seed."""
        tasks = [{"model": name, "seed": seed} for seed in self.args.seeds for name in self.students]
        return [{"model": TEACHER, "seed": 0}, *tasks]

    def trial(self, model: str, seed: int) -> tuple[float, Found]:
        """Teach and test a student, or test the teacher: the mean score, from 0 to 100, and all that is known."""
        kind = {"kind": TEACHER, "order": ""}
        if model != TEACHER:
            kind = teach(self.students[model], seed, self.args, self.data)
        scores = score(place(model, seed, self.args), self.texts, self.args.max_questions)
        return mean(scores.values()), {"found": {"name": model, **kind, "seed": seed, **scores}}

    def found(self, done: list[Found]) -> pd.DataFrame:
        """Time all encoders: a row for the teacher and for each student and seed."""
        tested = pd.DataFrame([each["found"] for each in done])
        return tested.merge(measure(tested, self.texts, self.args), on="name")

    def rows(self, found: pd.DataFrame) -> list[Row]:
        """Make a row for each encoder, from the slowest to the fastest."""
        return rows_of(found)

    def sources(self, done: list[Found]) -> list[str]:
        """Name the corpus and the tests."""
        files = [Path(file).name for file in (self.args.sts_file, self.args.squad_file) if file]
        return [*data_names(self.data), *files]

    def draw(self, found: pd.DataFrame, rows: list[Row]) -> None:
        """Draw quality against time, and write a card."""
        draw(found, rows, self.folder)


def main(argv: list[str]) -> pd.DataFrame:
    """Run the study, see `run_study`: a row for the teacher and for each student and seed."""
    return run_study(Frontier, argv)
