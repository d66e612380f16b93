"""`sublayers study frontier`: how good students in several orders are, and how fast, beside their teacher."""

import re
import shlex
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pandas as pd
import torch

from sublayers.configuration.order import Order, compact
from sublayers.training.data.corpus import CorpusArguments
from sublayers.training.data.files import BUILDERS, check_file, read_rows
from sublayers.training.data.squad import SquadDataArguments, load_questions
from sublayers.training.flags import HELP, expand_settings_file, flag, parse_flags
from sublayers.training.lab.runs import as_flags, data_names, flags_of, read_results, run_once
from sublayers.training.lab.studies.frontier_report import TEACHER, report
from sublayers.training.lab.studies.skeleton import Study
from sublayers.training.metrics.timing import Call, ratio, time_in_turn
from sublayers.training.trials import TrialsArguments

if TYPE_CHECKING:
    from sublayers.training.metrics.sentence_encoders import Texts

USAGE = (
    "sublayers study frontier TEACHER [SETTINGS.yaml] --students ORDER ['ORDER --flag value' ...] [--name value ...]"
)
# the folder of a student's fine-tunings
GLUE = "glue"
PAIR_COLUMNS = ("sentence1", "sentence2", "label")


class Candidate(NamedTuple):
    """A student: its name, its kind, its order, and flags of its own."""

    name: str
    kind: str
    order: str
    flags: list[str]


@dataclass
class FrontierArguments(TrialsArguments):
    """Flags for the students, how they learn, and what they are tested on."""

    _argument_group_name: ClassVar[str] = "students and tests"

    students: list[str] = flag(
        "an order each, and flags of its own, such as '(sf)2 --layers 0 1' or '(sf)6 --hidden_size 192'", MISSING
    )
    output_dir: str = flag("what is finished in it is not run again", "runs/frontier")
    seeds: list[int] = flag("one distillation each", [0])
    distill_flags: str = flag("recipe and flags of sublayers distill, in one text", "")
    sts_file: str | None = flag("rows with sentence1, sentence2 and label, such as the test data of STS-B")
    squad_file: str | None = flag("for each of its questions, the paragraph is searched among all")
    max_questions: int = flag("questions of --squad_file that are asked", 1000)
    glue_dir: str | None = flag("folder with one for each task, as sublayers glue's")
    glue_tasks: list[str] = flag("tasks to fine-tune students on", [])
    glue_students: list[str] = flag("students to fine-tune; default: all, and the teacher", [])
    glue_seeds: list[int] = flag("one fine-tuning each, of the student of the first seed", [0, 1, 2, 3, 4])
    glue_flags: str = flag("flags of sublayers glue", "")
    batch_sizes: list[int] = flag("texts that are encoded at once", [1, 32])
    timed_texts: int = flag("texts that are timed in one round", 64)
    rounds: int = flag("rounds of timing all encoders in turn", 9)


FLAGS = (FrontierArguments, CorpusArguments)


def main(argv: list[str]) -> pd.DataFrame:
    """Teach every student as often as there are seeds, test all, time them side by side, and draw quality against time.

    What is finished in the output folder is not run again, but for the times, which can be compared where they were
    measured in turn. It has `results.csv`, `frontier.svg` and a card.

    Args:
        argv: the teacher's folder or repository, a SentenceTransformer, then flags, after an optional settings file.

    Returns:
        A row for the teacher and for each student and seed: scores from 0 to 100, milliseconds per text, and times as
        ratios to the teacher's.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: bad flags or data, a student twice, or what the other commands raise.
    """
    # --help comes without a teacher
    source, *flags = argv if argv[0] not in HELP else ["", *argv]
    args, corpus = parse_flags(expand_settings_file(flags, "study"), FLAGS, USAGE)
    # models take seconds to import, for which --help does not wait
    from sentence_transformers import SentenceTransformer

    students = [read_student(text) for text in args.students]
    check(args, students)
    texts = load_texts(args)
    # an encoder that cannot be opened is refused before hours of training
    SentenceTransformer(source, device="cpu")
    answers = Path(args.output_dir) / "answers"
    # a recipe or settings file comes first
    distill = ["distill", source, *shlex.split(args.distill_flags), *as_flags(flags_of(corpus)), f"--answers={answers}"]
    tests = [args.sts_file, args.squad_file, args.max_questions]
    study = Study(["frontier", *argv], args, {"distill": distill, "tests": tests})
    teach = Teach(source, {each.name: each for each in students}, distill, texts, args)
    tasks = [{"student": each.name, "seed": seed} for seed in args.seeds for each in students]
    study.run(teach, [{"student": TEACHER, "seed": 0}, *tasks])
    chosen = [name_of(text) for text in args.glue_students] or [TEACHER, *teach.students]
    study.run(teach.fine_tune, [{"student": name, "task": task} for task in args.glue_tasks for name in chosen])
    tested = [each["found"] for each in study.found() if "found" in each]
    glue = [row for each in study.found() for row in each.get(GLUE, [])]
    encoders = {row["name"]: str(teach.folder(row["name"], row["seed"])) for row in reversed(tested)}
    frame = pd.DataFrame(tested).merge(measure(encoders | {TEACHER: source}, texts, args), on="name")
    files = [Path(file).name for file in (args.sts_file, args.squad_file) if file]
    about = study.about([*data_names(corpus), *files, *(f"GLUE {task}" for task in args.glue_tasks)])
    report(frame, pd.DataFrame(glue), study.folder, about)
    study.end("the card, a picture and the figures are in")
    return frame


@dataclass(frozen=True)
class Teach:
    """Teaches and tests students.

    Attributes:
        source: the teacher.
        students: by name.
        distill: the command without what is a student's own.
        texts: of the tests.
        args: of the study.
    """

    source: str
    students: dict[str, Candidate]
    distill: list[str]
    texts: "Texts"
    args: FrontierArguments

    def __call__(self, student: str, seed: int) -> tuple[float, dict[str, Any]]:
        """Teach and test a student, or test the teacher: the mean score, from 0 to 100, and all scores."""
        from sentence_transformers import SentenceTransformer

        from sublayers.training.metrics.sentence_encoders import score

        about, encoder = {"name": student, "kind": TEACHER, "order": "", "seed": seed}, self.source
        if student != TEACHER:
            own, encoder = self.students[student], str(self.folder(student, seed))
            about |= {"kind": own.kind, "order": own.order}
            command = [*self.distill, "--sublayer_order", own.order, *own.flags, f"--seed={seed}"]
            run_once(Path(encoder), f"{student}, seed {seed}", command)
        scores = score(SentenceTransformer(encoder, device="cpu"), self.texts, self.args.max_questions)
        return mean(scores.values()), {"found": about | scores}

    def folder(self, name: str, seed: int) -> Path:
        """Name the folder of a student, or of what is fine-tuned of the teacher."""
        own = TEACHER if name == TEACHER else f"{as_folder(name)}-{seed}"
        return Path(self.args.output_dir, own)

    def fine_tune(self, student: str, task: str) -> tuple[float, dict[str, Any]]:
        """Fine-tune the teacher, or the student of the first seed: the mean score, and a row for each seed."""
        own = self.folder(student, self.args.seeds[0])
        flags = {
            "model_name_or_path": self.source if student == TEACHER else own,
            "task_name": task,
            "data_dir": self.args.glue_dir,
            "seeds": self.args.glue_seeds,
        }
        command = ["glue", *as_flags(flags), *shlex.split(self.args.glue_flags)]
        run_once(own / GLUE / task, f"{student}, {task}", command, "results.json")
        found = read_results(own / GLUE / task / "results.json")[task]
        split, metric = found["split"], found["metric"]
        about = {"name": student, "task": f"{task} ({metric})"}
        rows = [about | {"seed": run["seed"], "score": 100 * run[split][metric]} for run in found["best"]["runs"]]
        return mean(row["score"] for row in rows), {GLUE: rows}


def read_student(text: str) -> Candidate:
    """Read an order with flags, and say what it is beside its teacher.

    That is narrower, with fewer layers or fewer sublayers, with a tail that attends to fixed states, or re-ordered.
    """
    order, *flags = shlex.split(text)
    kind = "layers dropped" if Order(order).letters == "sf" * Order(order).counts["s"] else "re-ordered"
    kind = "attending tail" if Order(order).has_fixed_states else kind
    kind = "sublayers dropped" if "--sublayers" in flags else kind
    if any(flag.startswith("--hidden_size") for flag in flags):
        kind = "narrower"
    return Candidate(" ".join([compact(order), *flags]), kind, compact(order), flags)


def as_folder(name: str) -> str:
    """Turn the name of a student into a part of a path."""
    return re.sub(r"\W+", "_", name).strip("_")


def name_of(text: str) -> str:
    """Return the name of a student that is written in any way, or of the teacher."""
    return TEACHER if text == TEACHER else read_student(text).name


def check(args: FrontierArguments, students: list[Candidate]) -> None:
    """Check what no other command checks.

    Raises:
        ValueError: a student or seed twice, no test, or fine-tuning of a student that there is not.
    """
    for what, values in (("students", [as_folder(each.name) for each in students]), ("seeds", args.seeds)):
        if len({*values}) < len(values):
            raise ValueError(f"--{what} {' '.join(map(str, values))} has one twice; give each once")
    if not (args.sts_file or args.squad_file):
        raise ValueError("there is nothing to test students on; give --sts_file or --squad_file")
    if args.glue_tasks and not args.glue_dir:
        raise ValueError(f"there are no data to fine-tune on {args.glue_tasks[0]}; give --glue_dir")
    names = [TEACHER, *(each.name for each in students)]
    if unknown := [text for text in args.glue_students if name_of(text) not in names]:
        raise ValueError(f"--glue_students {unknown[0]!r} is none of the students; choose from {', '.join(names)}")
    if min(args.rounds, args.timed_texts, *args.batch_sizes) < 1:
        raise ValueError("--rounds, --timed_texts and --batch_sizes are numbers of 1 or more; give others")


def load_texts(args: FrontierArguments) -> "Texts":
    """Read the texts of the tests. Raises ValueError or FileNotFoundError where a file cannot be read."""
    from sublayers.training.metrics.sentence_encoders import Texts

    pairs: Any = None
    questions: Any = None
    if args.sts_file:
        check_file(args.sts_file, BUILDERS)
        pairs = read_rows([args.sts_file])
        if missing := [name for name in PAIR_COLUMNS if name not in pairs.column_names]:
            raise ValueError(f"{args.sts_file} has no column {missing[0]!r}, only {', '.join(pairs.column_names)}")
    if args.squad_file:
        questions = load_questions("validation", SquadDataArguments(validation_file=args.squad_file)).shuffle(seed=0)
    return Texts(pairs, questions)


def measure(encoders: dict[str, str], texts: "Texts", args: FrontierArguments) -> pd.DataFrame:
    """Time encoders, folders or repositories by name, in turn on the texts of each test, tokenization included.

    Returns:
        A row for each: median milliseconds per text, and the median of the ratios to the teacher within a round.
    """
    from sentence_transformers import SentenceTransformer

    opened = {name: SentenceTransformer(source, device="cpu") for name, source in encoders.items()}
    rows: dict[str, dict[str, Any]] = {name: {"name": name} for name in encoders}
    for test, of_test in texts.by_score().items():
        # as many texts of each length as there are in all
        by_length = sorted(of_test, key=len)
        number = min(args.timed_texts, len(by_length))
        timed = [by_length[i * len(by_length) // number] for i in range(number)]
        for batch_size in args.batch_sizes:
            calls: dict[Any, Call] = {
                name: partial(encoder.encode, timed, batch_size=batch_size, show_progress_bar=False)
                for name, encoder in opened.items()
            }
            times = time_in_turn(f"{test}, {batch_size} at once", calls, args.rounds, torch.device("cpu"))
            for name, row in rows.items():
                row[f"{test}_ms_{batch_size}"] = median(times[name]) / number
                row[f"{test}_time_{batch_size}"] = ratio(times[name], times[TEACHER])
    return pd.DataFrame(rows.values())
