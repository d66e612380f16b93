"""What all studies do: trials with models and seeds, and a report of what these found."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from sublayers.training.lab.runs import Do
from sublayers.training.results import Row, provenance, report, score
from sublayers.training.trials import TASK, check_done, open_study, results, run_trials


class Study:
    """The trials of a study, which others may share, and its folder.

    Args:
        argv: the words of the command line after `sublayers study`.
        args: the flags, with those of `TrialsArguments` and `output_dir`.
        settings: what all trials have in common.
        goal: whether a good value is low or high.

    Raises:
        FileExistsError: the folder holds something else, or a study with other settings.
    """

    def __init__(
        self,
        argv: list[str],
        args: Any,
        settings: dict[str, Any],
        goal: Literal["minimize", "maximize"] = "maximize",
    ):
        self.argv, self.folder, self.jobs = argv, Path(args.output_dir), args.jobs
        self.trials = open_study("study", self.folder, settings, args.storage, goal)
        self.faults: list[tuple[dict[str, Any], str]] = []

    def run(self, find: Callable[..., tuple[float, dict[str, Any]]], tasks: Sequence[dict[str, Any]]) -> None:
        """Do the tasks that are not done, see `Do`."""
        self.faults += run_trials(self.trials, Do(find), self.folder, tasks, jobs=self.jobs)

    def found(self) -> list[dict[str, Any]]:
        """List the attributes of all trials that are done."""
        return [trial.user_attrs for trial in results(self.trials)]

    def by_model(self, names: Sequence[str]) -> dict[str, dict[str, dict[str, Any]]]:
        """Sort the attributes of trials by model, in this order, and by seed; models without a trial are left out."""
        runs: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in names}
        for found in sorted(self.found(), key=lambda found: found[TASK]["seed"]):
            runs[found[TASK]["model"]][f"{found[TASK]['seed']}"] = found
        return {name: by_seed for name, by_seed in runs.items() if by_seed}

    def about(self, data: Sequence[str]) -> Row:
        """Tell how figures are made from some data now."""
        return provenance(["study", *self.argv], data)

    def report(self, rows: list[Row], data: Sequence[str]) -> None:
        """Write `results.csv`, and print it."""
        report(rows, self.folder, self.about(data))

    def end(self, message: str) -> None:
        """Say what is in the folder. Raises ValueError where a trial failed."""
        Console().print(f"{message} {self.folder}", soft_wrap=True)
        check_done(self.faults)


def scores(runs: Sequence[Mapping[str, float]], heads: Mapping[str, tuple[str, float, int]]) -> Row:
    """Name the means of what all runs have: by the name there, the name in figures, a factor and the digits."""
    row: Row = {}
    for name, (head, factor, digits) in heads.items():
        if all(name in run for run in runs):
            row |= score(head, [factor * run[name] for run in runs], digits)
    return row
