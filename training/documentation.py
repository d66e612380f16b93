"""Documented functions of the running Python's standard library, and a sentence-pair task made from them."""

import ast
import random
from collections.abc import Iterator
from inspect import cleandoc

from datasets import Dataset

from sublayers.training.corpus import standard_library


def documented_functions(source: str) -> Iterator[tuple[str, str]]:
    """Find the functions of a module that have a documentation string, as pairs of its first line and their code."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        # files that the library keeps for its own tests
        return
    lines = source.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        documentation, first = ast.get_docstring(node, clean=False), node.body[0]
        if documentation and documentation.strip() and len(node.body) > 1:
            # what stands before the documentation string, and behind it
            code = lines[node.lineno - 1 : first.lineno - 1] + lines[first.end_lineno : node.end_lineno]
            yield cleandoc(documentation).splitlines()[0], cleandoc("\n".join(["", *code]))


def documentation_pairs(seed: int = 0) -> dict[str, Dataset]:
    """Ask whether a documentation string belongs to a function, in the format of a GLUE task such as MRPC.

    Of each function there are two rows: with its own documentation (label 1) and with that of a function in another
    file (label 0). Every tenth function is in the split `validation`, the others are in `train`.
    """
    draw = random.Random(seed)
    files = [[*documented_functions(text)] for text in standard_library()["train"]["text"]]
    files = [functions for functions in files if functions]
    rows: dict[str, list[tuple[str, str, int]]] = {"train": [], "validation": []}
    for i, functions in enumerate(files):
        for documentation, code in functions:
            elsewhere = draw.choice(files[(i + draw.randrange(1, len(files))) % len(files)])[0]
            split = "train" if draw.randrange(10) else "validation"
            rows[split] += [(documentation, code, 1), (elsewhere, code, 0)]
    names = ("sentence1", "sentence2", "label")
    return {
        split: Dataset.from_dict({name: [row[k] for row in found] for k, name in enumerate(names)})
        for split, found in rows.items()
    }
