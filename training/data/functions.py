"""Documented functions of the running Python's standard library."""

import ast
import hashlib
from collections.abc import Iterator
from inspect import cleandoc

from datasets import Dataset
from tqdm.auto import tqdm

from sublayers.training.data.corpus import standard_library
from sublayers.training.data.statements import is_accepted, syntax_nodes

# longer functions are beyond a small model
LONGEST_FUNCTION = 400


def documented_functions(source: str) -> Iterator[tuple[str, str]]:
    """Find the functions of a module that have a documentation string, as pairs of its first line and their code."""
    # a form feed ends no line for the parser
    lines = source.split("\n")
    for node in syntax_nodes(source):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        documentation, first = ast.get_docstring(node, clean=False), node.body[0]
        if documentation and documentation.strip() and len(node.body) > 1:
            # what stands before the documentation string, and after it
            code = lines[node.lineno - 1 : first.lineno - 1] + lines[first.end_lineno : node.end_lineno]
            yield cleandoc(documentation).splitlines()[0], cleandoc("\n".join(["", *code]))


def docstring_to_code() -> dict[str, Dataset]:
    """Pair the first line of a documentation string (`source`) with its function's code without it (`target`).

    Only functions of at most 400 characters that parse by themselves, each pair once. `validation` and `test` have
    the files that the language models' validation split has, so that no file is in two splits.
    """
    texts = standard_library()
    files: dict[str, list[str]] = {"train": texts["train"]["text"], "validation": [], "test": []}
    for text in texts["validation"]["text"]:
        files["test" if hashlib.sha256(text.encode()).digest()[0] % 2 else "validation"].append(text)
    seen: set[tuple[str, str]] = set()
    splits = {}
    for split, found in files.items():
        progress = tqdm(found, f"finding functions, {split}", delay=2)
        functions = (pair for text in progress for pair in documented_functions(text))
        # a text that spans lines may hold the indentation that is cut
        short = (pair for pair in functions if len(pair[1]) <= LONGEST_FUNCTION and is_accepted(pair[1]))
        # dict.fromkeys keeps the order and drops repetitions
        pairs = [pair for pair in dict.fromkeys(short) if pair not in seen]
        seen.update(pairs)
        columns = {"source": [source for source, _ in pairs], "target": [code for _, code in pairs]}
        splits[split] = Dataset.from_dict(columns)
    return splits
