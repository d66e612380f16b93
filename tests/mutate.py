"""Change the package in one place at a time, and see which tests find it: `python tests/mutate.py --help`.

A mutation that `make test` does not find is tried again with what only `make test-full` runs. Every room is changed in
as many places. Files are restored at the end, also after Ctrl-C.
"""

import argparse
import ast
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tqdm.auto import tqdm

ROOT = Path(__file__).resolve().parents[1]
ROOMS = [
    "configuration",
    "configuration/letters",
    "modeling",
    "modeling/mixers",
    "src/sublayers/convert",
    "src/sublayers/convert/graphs",
    "src/sublayers/hub",
    "src/sublayers/tasks",
    "training",
    "training/commands",
]
ROOMS += ["training/data", "training/distill", "training/metrics", "training/serve"]
ROOMS += ["training/trainers", "training/lab/bench", "training/lab/search", "training/lab/studies"]
# rooms whose tests are elsewhere
ELSEWHERE = {
    "training/serve": ["tests/ecosystem"],
    "src/sublayers/convert/graphs": ["tests/ecosystem"],
    "training/distill": ["tests/training/commands"],
}
ELSEWHERE |= {"src/sublayers/convert/graphs": ["tests/ecosystem"]}
ELSEWHERE |= {"configuration/letters": ["tests/configuration"], "modeling/mixers": ["tests/modeling"]}
OPPOSITES = {
    **{ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="},
    **{ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"},  # codespell:ignore
    **{ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.And: "or", ast.Or: "and"},
}


def sites(file: Path) -> Iterator[tuple[int, int, int, str]]:
    """Find what can be changed in a file: line, first and last column, and what takes its place."""
    lines = file.read_text(encoding="utf-8").splitlines()
    for function in ast.walk(ast.parse("\n".join(lines))):
        if not isinstance(function, ast.FunctionDef):
            continue
        # messages and annotations are no behaviour
        skipped = {id(inner) for node in ast.walk(function) if isinstance(node, ast.Raise) for inner in ast.walk(node)}
        skipped |= {id(inner) for part in (function.args, function.returns) if part for inner in ast.walk(part)}
        for node in ast.walk(function):
            if id(node) in skipped:
                continue
            if isinstance(node, ast.Compare) and len(node.ops) == 1:
                between, operator = (node.left, node.comparators[0]), node.ops[0]
            elif isinstance(node, ast.BinOp):
                between, operator = (node.left, node.right), node.op
            elif isinstance(node, ast.BoolOp):
                between, operator = tuple(node.values[:2]), node.op
            elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
                yield node.lineno, node.col_offset, node.col_offset + 4, ""
                continue
            elif isinstance(node, ast.Constant) and type(node.value) is int:
                yield node.lineno, node.col_offset, node.end_col_offset or 0, str(node.value + 1)
                continue
            else:
                continue
            first, second = between
            if type(operator) in OPPOSITES and first.end_lineno == second.lineno:
                start, end = first.end_col_offset or 0, second.col_offset
                # an operator in parentheses that close or open beside it is left alone
                if not set("()") & set(lines[second.lineno - 1][start:end]):
                    yield second.lineno, start, end, f" {OPPOSITES[type(operator)]} "


def tests_of(file: Path, room: str) -> list[str]:
    """Find the tests of a file, the nearest first: those of its name, those that import it, those of its room."""
    stem, dotted = file.stem, ".".join(file.with_suffix("").parts).removeprefix("src.").removeprefix("sublayers.")
    every = sorted((ROOT / "tests").rglob("test_*.py"))
    named = [path for path in every if path.stem == f"test_{stem}"]
    importing = [path for path in every if f"sublayers.{dotted} " in path.read_text(encoding="utf-8")]
    folders = [ROOT / "tests" / room.removeprefix("src/sublayers/"), *(ROOT / path for path in ELSEWHERE.get(room, ()))]
    rest = [path for path in every if any(path.is_relative_to(folder) for folder in folders)]
    return [str(path.relative_to(ROOT)) for path in dict.fromkeys([*named, *importing, *rest])]


def is_found(tests: list[str], marks: str, seconds: int) -> bool:
    """Run tests until the first one that fails; say whether one does in time."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", marks, "-p", "no:cacheprovider", *tests]
    # this copy of the package, wherever the environment has another one
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    try:
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, timeout=seconds, check=False
        ).returncode
        # 1 is a failure, 2 an error while tests are collected
        return ended in (1, 2)
    except subprocess.TimeoutExpired:
        return False


def main() -> None:
    """Write a line of JSON for each mutation, and a count at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="a .jsonl file; what is in it is not tried again")
    parser.add_argument("--number", type=int, default=4, help="mutations in each room")
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=ROOMS, help="which are changed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=200, help="after which tests are stopped")
    args = parser.parse_args()
    done = [json.loads(line) for line in args.output.read_text().splitlines()] if args.output.exists() else []
    known = {(row["file"], row["line"], row["start"], row["new"]) for row in done}
    drawn = random.Random(args.seed)
    wanted = []
    for room in args.rooms:
        files = [path for path in sorted((ROOT / room).glob("*.py")) if path.stem != "__init__"]
        places = [(path, *site) for path in files for site in dict.fromkeys(sites(path))]
        wanted += [(room, *place) for place in drawn.sample(places, min(args.number, len(places)))]
    for room, path, line, start, end, new in tqdm(wanted, unit="mutation"):
        file, text = path.relative_to(ROOT), path.read_text(encoding="utf-8")
        if (str(file), line, start, new) in known:
            continue
        lines = text.splitlines(keepends=True)
        old = lines[line - 1]
        lines[line - 1] = old[:start] + new + old[end:]
        tests = tests_of(file, room)
        try:
            path.write_text("".join(lines), encoding="utf-8")
            found = "test" if is_found(tests, "not full", args.seconds) else ""
            found = found or ("test-full" if is_found(tests, "full", args.seconds) else "nothing")
        finally:
            path.write_text(text, encoding="utf-8")
        row = {"room": room, "file": str(file), "line": line, "start": start, "new": new, "found_by": found}
        row |= {"was": old.strip(), "is": lines[line - 1].strip()}
        done.append(row)
        with args.output.open("a", encoding="utf-8") as log:
            log.write(json.dumps(row) + "\n")
    for answer in ("test", "test-full", "nothing"):
        print(answer, sum(row["found_by"] == answer for row in done))


if __name__ == "__main__":
    main()
