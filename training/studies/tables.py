"""Tables, numbers and spreads that every study leaves behind."""

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Console


def write_table(rows: list[list[str]]) -> str:
    """Write rows, of which the first is their head, as a table in Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:])]
    return "\n".join(lines) + "\n"


def write_results(found: dict[str, Any], tables: str, folder: Path) -> None:
    """Write every number as `results.json`, and tables in Markdown as `results.md`; print the tables."""
    (folder / "results.md").write_text(tables, encoding="utf-8")
    (folder / "results.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    Console().print(tables, soft_wrap=True, markup=False)


def mean_and_deviation(scores: list[float], digits: int = 1) -> str:
    """Write the mean of several runs, with its standard deviation if there are more than one."""
    return f"{mean(scores):.{digits}f}" + (f" ± {stdev(scores):.{digits}f}" if len(scores) > 1 else "")
