"""Statements of the running Python's standard library, some of them shuffled, as a task like CoLA's."""

import ast
import random
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from tokenize import NAME, NUMBER, OP, generate_tokens

from datasets import Dataset
from tqdm.auto import tqdm

from sublayers.training.data.corpus import standard_library

# the least and most characters: shorter texts have no other order, longer ones are beyond a small model
LENGTHS = range(12, 61)


def syntax_nodes(source: str) -> Iterator[ast.AST]:
    """Iterate over the syntax tree of a module; there is none of files that the library keeps for its own tests."""
    with suppress(SyntaxError):
        yield from ast.walk(ast.parse(source))


def statements(source: str) -> Iterator[list[str]]:
    """Find the statements of a module that have a line of their own and no text in quotes, as their tokens."""
    # a form feed ends no line for the parser, which counts bytes
    lines = source.encode().split(b"\n")
    for node in syntax_nodes(source):
        if isinstance(node, ast.stmt) and node.lineno == node.end_lineno:
            line = lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()
            # texts are not Python
            if len(line) in LENGTHS and not {"'", '"'} & {*line}:
                tokens = generate_tokens(StringIO(line).readline)
                yield [token.string for token in tokens if token.type in (NAME, NUMBER, OP)]


def acceptable_statements(seed: int = 0) -> dict[str, Dataset]:
    """Ask whether Python accepts a statement, in the format of CoLA: rows with `sentence` and `label`.

    About half of the statements are as they were found (label 1), the tokens of the others are shuffled so that Python
    does not parse them (label 0); a space stands between two tokens. Each occurs once. The split `validation` is from
    the files that the language models' validation split has.
    """
    draw, seen = random.Random(seed), set[str]()
    splits = {}
    for split, texts in standard_library().items():
        rows: list[tuple[str, int]] = []
        bar = tqdm(texts["text"], f"finding statements, {split}", delay=2)
        for tokens in (found for text in bar for found in statements(text)):
            sentence = " ".join(tokens)
            if sentence not in seen and is_accepted(sentence):
                seen.add(sentence)
                draw.shuffle(tokens)
                shuffled = " ".join(tokens)
                if draw.random() < 0.5:
                    rows.append((sentence, 1))
                elif not is_accepted(shuffled):
                    rows.append((shuffled, 0))
        draw.shuffle(rows)
        splits[split] = Dataset.from_dict({"sentence": [row[0] for row in rows], "label": [row[1] for row in rows]})
    return splits


def is_accepted(code: str) -> bool:
    """Find out whether Python parses a piece of code."""
    try:
        ast.parse(code)
    except (SyntaxError, ValueError):
        return False
    return True
