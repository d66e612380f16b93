"""Figures in one form: a row for each model, with all that was measured of it and how, in a CSV file.

What stands in a column such as `STS-B` may have its deviation over the seeds in `STS-B ±`, and its ratio to a peer in
`STS-B ratio to BERT`.
"""

import csv
import re
import subprocess
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from statistics import mean, stdev

from rich.console import Console

PROVENANCE = ("seeds", "data", "machine", "date", "commit", "command")

# values by the names of their columns
Row = dict[str, str]


def score(name: str, values: list[float], digits: int = 1) -> Row:
    """Name the mean of the values of all seeds and, if there are several, their standard deviation."""
    deviation = f"{stdev(values):.{digits}f}" if len(values) > 1 else ""
    return {name: f"{mean(values):.{digits}f}", f"{name} ±": deviation}


def provenance(
    command: list[str], data: Iterable[str] = (), device: str | None = None, others: dict[str, str] | None = None
) -> Row:
    """Tell how figures are made that are measured now.

    Args:
        command: the words of the command line after `sublayers`.
        data: names of what is read.
        device: on which it is measured; default: the one that Trainers choose.
        others: facts beside those that are always told, such as versions of more packages.
    """
    # these imports take seconds, for which tables do not wait
    import torch

    from sublayers.training.trainers.machine import machine
    from sublayers.training.trainers.publish import command_line

    if device is None:
        # commands that need no extra name their device
        from accelerate import PartialState

        device = str(PartialState().device)
    on = machine(torch.device(device)) | (others or {})
    return {
        "data": ", ".join(data),
        "date": on.pop("date")[:10],
        "machine": ", ".join([on.pop("processor"), *(f"{name} {value}" for name, value in on.items())]),
        "commit": commit(),
        "command": command_line(["sublayers", *command]),
    }


def write(rows: list[Row], file: Path, about: Row) -> None:
    """Write rows into a new file or in place of an older one.

    Args:
        rows: `model`, `order` and `parameters` first, then what was measured, and `seeds`.
        file: for the rows.
        about: their `provenance`.
    """
    given = dict.fromkeys(name for row in rows for name in row)
    names = [name for shown in measured(rows) for name in given if name == shown or name.startswith(_beside(shown))]
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, [*names, *PROVENANCE], restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(row | about for row in rows)


def report(rows: list[Row], folder: Path, about: Row) -> None:
    """Write rows as `results.csv` into a folder, see `write`, and print them as a table in Markdown."""
    write(rows, folder / "results.csv", about)
    Console().print(table(rows), soft_wrap=True, markup=False, highlight=False)


def commit() -> str:
    """Name the commit of this code, with `-dirty` where it was changed since, or nothing outside a repository."""
    here = Path(__file__).resolve()
    git = ("git", "-C", str(here.parent))
    try:
        # a repository around the environment that the package is installed in is another one
        subprocess.run([*git, "ls-files", "--error-unmatch", here.name], capture_output=True, check=True)
        name = [*git, "describe", "--always", "--dirty", "--exclude=*"]
        return subprocess.run(name, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def read(file: Path) -> list[Row]:
    """Read the rows of a file.

    Raises:
        FileNotFoundError: there is no such file.
    """
    with file.open(encoding="utf-8", newline="") as stream:
        return [*csv.DictReader(stream)]


def measured(rows: list[Row]) -> list[str]:
    """Name the columns that a table shows: no provenance, and no deviations and ratios, which stand beside others."""
    names = dict.fromkeys(name for row in rows for name in row if name not in PROVENANCE)
    return [name for name in names if not any(name.startswith(_beside(other)) for other in names)]


def table(rows: list[Row], columns: dict[str, str] | None = None) -> str:
    """Write rows as a table in Markdown, a value as `82.0 ± 0.4 (0.97)`.

    Args:
        rows: all that are shown.
        columns: the heads of the columns by their names; without, those of `measured`.
    """
    columns = columns or {name: name for name in measured(rows)}
    lines = [[*columns.values()], ["---"] * len(columns), *([_cell(row, name) for name in columns] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def source(rows: list[Row]) -> str:
    """Tell in a line how rows were made, as far as they agree, and what ratios are that nobody can find by dividing.

    Where they agree in nothing, the line is empty.
    """
    values = {name: {row[name] for row in rows if row.get(name)} for name in PROVENANCE}
    shared = {name: each.pop() for name, each in values.items() if len(each) == 1}
    forms = {"command": "`{}`", "seeds": "seeds {}", "data": "{}", "machine": "{}", "date": "{}", "commit": "commit {}"}
    told = [form.format(shared[name]) for name, form in forms.items() if name in shared]
    remark = "ratios in brackets are medians of those within a round, so not the quotients of the medians beside them"
    told += [remark] if _has_ratios_of_rounds(rows) else []
    return f"How: {'; '.join(told)}" if told else ""


def _has_ratios_of_rounds(rows: list[Row]) -> bool:
    """Say whether a time stands beside a ratio to another one that is not their quotient."""
    for name in rows[0]:
        time, _, peer = name.partition("(ms) ratio to ")
        time += "(ms)"
        others = [float(row[time]) for row in rows if peer in (row.get("model"), row.get("order")) and row.get(time)]
        for row in rows if peer and others else []:
            # less may come of rounding
            if row[name] and row[time] and abs(float(row[time]) / others[0] - float(row[name])) > 0.006:
                return True
    return False


def _beside(name: str) -> tuple[str, str]:
    return f"{name} ±", f"{name} ratio"


def _cell(row: Row, name: str) -> str:
    value = row.get(name) or ""
    if name == "command":
        return f"`{value}`" if value else ""
    if name.endswith(("order", "orders")):
        return ", ".join(f"`{order}`" for order in value.split())
    ratios = [_number(row[other]) for other in row if other.startswith(f"{name} ratio") and row[other]]
    deviation = row.get(f"{name} ±")
    parts = [_number(value), f"± {_number(deviation)}" if deviation else "", f"({', '.join(ratios)})" if ratios else ""]
    return " ".join(filter(None, parts))


def _number(value: str) -> str:
    # Decimal keeps the digits after the point that the file has
    return f"{Decimal(value):,}" if re.fullmatch(r"-?\d+(\.\d+)?", value) else value
