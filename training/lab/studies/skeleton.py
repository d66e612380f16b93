"""What all studies do: read flags, do trials of models, and report what these found."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from sublayers.training.flags import parse_flags
from sublayers.training.lab.runs import Do
from sublayers.training.results import Row, provenance, report, score
from sublayers.training.trials import TASK, check_done, open_study, results, run_trials

# the attributes of a trial that is done
Found = dict[str, Any]


class Study:
    """A study: its flags, its trials, and what is told of them. What a kind of study does not say is as here.

    Args:
        args: the flags, with those of `TrialsArguments`, `output_dir` and, for the grid, `models` and `seeds`.
        data: the flags of the data, if it has some.

    Attributes:
        name: the word after `sublayers study`.
        flags: the dataclasses of the arguments.
        words: that stand before the flags.
        free: flags that may differ when a study goes on.
        goal: whether a good value is low or high.
        known: names of models, in the order of the rows.
        ending: says what is in the folder.
    """

    name: str
    flags: tuple[type, ...]
    words: str = "[SETTINGS.yaml]"
    free: tuple[str, ...] = ("models", "seeds", "output_dir", "jobs", "storage")
    goal: Literal["minimize", "maximize"] = "maximize"
    known: Sequence[str] = ()
    ending: str

    def __init__(self, args: Any, data: Any = None):
        self.args, self.data, self.folder = args, data, Path(args.output_dir)

    @classmethod
    def read(cls, argv: list[str]) -> "Study":
        """Read a command line, which may begin with a recipe or a settings file. Raises what `parse_flags` raises."""
        return cls(*parse_flags(argv, cls.flags, cls.usage(), "study", description=cls.__doc__))

    @classmethod
    def usage(cls) -> str:
        """Return the first line of `--help`."""
        return f"sublayers study {cls.name} {cls.words} [--name value ...]"

    def settings(self) -> dict[str, Any]:
        """List what all trials have in common."""
        flags = vars(self.args) | (vars(self.data) if self.data else {})
        return {name: value for name, value in flags.items() if name not in self.free}

    def check(self) -> None:
        """Check what can be wrong before anything is written. Raises ValueError where something is."""

    def grid(self) -> list[dict[str, Any]]:
        """List the tasks of the trials."""
        return [{"model": name, "seed": seed} for seed in self.args.seeds for name in self.args.models]

    def trial(self, *args: Any, **task: Any) -> tuple[float, Found]:
        """Do a task, in any process: its value, and the attributes of its trial."""
        raise NotImplementedError

    def found(self, done: list[Found]) -> Any:
        """Put together what all trials found: by model, the known ones first, and by seed."""
        runs: dict[str, dict[str, Found]] = {name: {} for name in self.known}
        for found in sorted(done, key=lambda found: found[TASK]["seed"]):
            runs.setdefault(found[TASK]["model"], {})[f"{found[TASK]['seed']}"] = found
        return {name: by_seed for name, by_seed in runs.items() if by_seed}

    def rows(self, found: Any) -> list[Row]:
        """Make the rows of `results.csv`."""
        return [
            {"model": name} | self.row(name, [*by_seed.values()]) | {"seeds": ", ".join(by_seed)}
            for name, by_seed in found.items()
        ]

    def row(self, name: str, runs: list[Found]) -> Row:
        """Tell a model's figures, from those of all seeds."""
        raise NotImplementedError

    def sources(self, done: list[Found]) -> list[str]:
        """Name the data."""
        raise NotImplementedError

    def draw(self, found: Any, rows: list[Row]) -> None:
        """Draw pictures into the folder, and write what else stands beside the figures."""
        raise NotImplementedError


def run_study(kind: type[Study], argv: list[str]) -> Any:
    """Do the trials of a study that are not done, report on all that are, and return what they found.

    Raises:
        FileExistsError: the folder holds something else, or a study with other settings.
        ValueError: bad flags, or a trial failed.
    """
    study = kind.read(argv)
    study.check()
    for task in (tasks := study.grid()):
        if tasks.count(task) > 1:
            raise ValueError(f"{' '.join(str(value) for value in task.values())} is given twice; give each once")
    trials = open_study("study", study.folder, study.settings(), study.args.storage, study.goal)
    faults = run_trials(trials, Do(study.trial), study.folder, tasks, jobs=study.args.jobs)
    done = [trial.user_attrs for trial in results(trials)]
    found = study.found(done)
    rows = study.rows(found)
    report(rows, study.folder, provenance(["study", kind.name, *argv], study.sources(done)))
    study.draw(found, rows)
    Console().print(f"{study.ending} {study.folder}", soft_wrap=True)
    check_done(faults)
    return found


def scores(runs: Sequence[Mapping[str, float]], heads: Mapping[str, tuple[str, float, int]]) -> Row:
    """Name the means of what all runs have: by the name there, the name in figures, a factor and the digits."""
    row: Row = {}
    for name, (head, factor, digits) in heads.items():
        if all(name in run for run in runs):
            row |= score(head, [factor * run[name] for run in runs], digits)
    return row
