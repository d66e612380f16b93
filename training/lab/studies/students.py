"""Students of an encoder: orders with flags of their own, and how they are taught."""

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sublayers.configuration.order import Order, compact
from sublayers.training.data.corpus import CorpusArguments
from sublayers.training.flags import as_flags
from sublayers.training.lab.runs import flags_of, run_once
from sublayers.training.metrics.score_pictures import TEACHER

if TYPE_CHECKING:
    from sublayers.training.lab.studies.frontier import FrontierArguments


class Student(NamedTuple):
    """A student: its name, its kind, its order, and flags of its own."""

    name: str
    kind: str
    order: str
    flags: list[str]


def read_student(text: str) -> Student:
    """Read an order with flags, and say what it is beside its teacher.

    That is narrower, with fewer layers or fewer sublayers, with a tail that attends to fixed states, or re-ordered.
    """
    order, *flags = shlex.split(text)
    kind = "layers dropped" if Order(order).letters == "sf" * Order(order).counts["s"] else "re-ordered"
    kind = "attending tail" if Order(order).has_fixed_states else kind
    kind = "sublayers dropped" if "--sublayers" in flags else kind
    if any(flag.startswith("--hidden_size") for flag in flags):
        kind = "narrower"
    return Student(" ".join([compact(order), *flags]), kind, compact(order), flags)


def place(name: str, seed: int, args: "FrontierArguments") -> str:
    """Name the folder of a student, or that of the teacher."""
    if name == TEACHER:
        return args.teacher
    own = re.sub(r"\W+", "_", name).strip("_")
    return str(Path(args.output_dir, f"{own}-{seed}"))


def teach(student: Student, seed: int, args: "FrontierArguments", corpus: CorpusArguments) -> dict[str, str]:
    """Distil a student, unless that is done, and return what it is."""
    # a recipe or settings file comes first
    words = ["distill", args.teacher, *shlex.split(args.distill_flags), *as_flags(flags_of(corpus))]
    words += [f"--answers={Path(args.output_dir, 'answers')}", "--sublayer_order", student.order, *student.flags]
    run_once(Path(place(student.name, seed, args)), f"{student.name}, seed {seed}", [*words, f"--seed={seed}"])
    return {"kind": student.kind, "order": student.order}
