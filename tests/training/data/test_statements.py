import ast
from contextlib import nullcontext

import pytest
from datasets import Dataset

from sublayers.training.data import statements
from sublayers.training.data.statements import acceptable_statements

SOURCE = """
def function(first, second):
    total = first + second
    x = 1
    é = maximum[0]; text = "a text of a size"; raise ValueError(total)
    if (first and
            second): return [total, 2.5]
    return total
\f
class Broad:
    a_name_that_is_long = another_name_that_is_long(with_more, of_them, and_more)
"""


def test_statements_are_the_tokens_of_whole_lines():
    assert [" ".join(tokens) for tokens in statements.statements(SOURCE)] == [
        "total = first + second",
        "é = maximum [ 0 ]",
        "raise ValueError ( total )",
        "return total",
        "return [ total , 2.5 ]",
    ]
    assert not [*statements.statements("def broken(:\n")]


def test_half_of_the_statements_are_shuffled_and_python_refuses_these(monkeypatch):
    def file(number):
        return "".join(f"name_{number}_{i} = other({i}, [{number}])\nshared = other(0)\n" for i in range(40))

    texts = {"train": [file(n) for n in range(20)], "validation": [file(n) for n in range(20, 24)]}
    found = {split: Dataset.from_dict({"text": text}) for split, text in texts.items()}
    monkeypatch.setattr(statements, "standard_library", lambda: found)
    splits = acceptable_statements()
    originals = set()
    for rows in splits.values():
        for sentence, label in zip(rows["sentence"], rows["label"], strict=True):
            with nullcontext() if label else pytest.raises(SyntaxError):
                ast.parse(sentence)
            originals.add(frozenset(sentence.split()))
        # about half of 800, and of 160
        assert 0.4 < sum(rows["label"]) / len(rows) < 0.6
    # none twice, in any order
    assert len(originals) == sum(map(len, splits.values()))
    # but for the few that are accepted by chance
    assert 900 < len(originals) <= 961
    words = [{word for text in rows["sentence"] for word in text.split()} for rows in splits.values()]
    files = [{word.split("_")[1] for word in found if "_" in word} for found in words]
    assert not files[0] & files[1]
    assert acceptable_statements()["train"][:] == splits["train"][:]
    assert acceptable_statements(seed=1)["train"][:] != splits["train"][:]
