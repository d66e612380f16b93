"""What sentence encoders are tested on, and how long they take for it."""

from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from sublayers.training.lab.studies.students import place
from sublayers.training.metrics.score_pictures import TEACHER
from sublayers.training.metrics.timing import Call, keep_memory, ratio, time_in_turn

if TYPE_CHECKING:
    from sublayers.training.lab.studies.frontier import FrontierArguments
    from sublayers.training.metrics.sentence_encoders import Texts


def open_encoder(source: str) -> Any:
    """Open a SentenceTransformer, from a folder or repository."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(source, device="cpu")


def open_optimized(source: str) -> Any:
    """Open a SentenceTransformer in our classes, as students are opened. Raises what `optimize` raises."""
    from sublayers import optimize

    return optimize(open_encoder(source))


def score(source: str, texts: "Texts", max_questions: int) -> dict[str, float]:
    """Score an encoder, see `sentence_encoders.score`."""
    from sublayers.training.metrics import sentence_encoders

    return sentence_encoders.score(open_encoder(source), texts, max_questions)


def measure(tested: pd.DataFrame, texts: "Texts", args: "FrontierArguments") -> pd.DataFrame:
    """Time the teacher and students of the first seed in turn on the texts of each test, tokenization included.

    All run in the same classes and keep their memory, so that a student's ratio is what its order saves.

    Args:
        tested: a row for the teacher and for each student and seed.
        texts: of the tests.
        args: how many texts are encoded at once, and how many are timed how often.

    Returns:
        A row for each: median milliseconds per text, and the median of the ratios to the teacher within a round.
    """
    firsts = tested.drop_duplicates("name")
    encoders = {name: place(name, seed, args) for name, seed in zip(firsts["name"], firsts["seed"], strict=True)}
    keep_memory()
    opened = {name: open_optimized(source) for name, source in encoders.items()}
    rows: dict[str, dict[str, Any]] = {name: {"name": name} for name in opened}
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
