import ast

import pytest
from datasets import Dataset

from sublayers.training.data import functions as documentation

MODULE = '''
"""Not a function."""

def plain(a, b):
    """Add two numbers.

    More about it.
    """
    return a + b

class Holder:
    async def method(self):
        "  Wait."
        await other()

        return 1

    def undocumented(self):
        return 2

def only_documented():
    """Nothing else here."""

def blank():
    """ """
    return 3
'''


@pytest.mark.parametrize("before", ["", "\f\n"])
def test_finds_documentation_and_code_without_it(before):
    assert dict(documentation.documented_functions(before + MODULE)) == {
        "Add two numbers.": "def plain(a, b):\n    return a + b",
        "Wait.": "async def method(self):\n    await other()\n\n    return 1",
    }
    assert not [*documentation.documented_functions("def broken(:\n")]


def function(name, documentation="Do it.", body="return 1"):
    return f'def {name}():\n    """{documentation}\n\n    More.\n    """\n    {body}\n'


def test_code_is_paired_with_its_documentation_and_split_by_file(monkeypatch):
    # files of five functions each, and what is to be left out: long, unparsable or found before
    long = function("long", body="return " + "1 + " * 100 + "1")
    # without its indentation the text is another one, and the function is not cut free
    unparsable = 'class A:\n    def broken(self):\n        """Do it."""\n        x = """\nmargin"""\n        return x\n'
    files = [
        "".join(function(f"f{file}_{i}", f"Doc {file}.") for i in range(5)) + function("shared") + long + unparsable
        for file in range(60)
    ]
    splits = {"train": files[:30], "validation": files[30:]}
    library = {split: Dataset.from_dict({"text": texts}) for split, texts in splits.items()}
    monkeypatch.setattr(documentation, "standard_library", lambda: library)
    pairs = documentation.docstring_to_code()
    assert list(pairs) == ["train", "validation", "test"]
    names = {}
    for split, rows in pairs.items():
        assert rows.column_names == ["source", "target"]
        found = [(ast.parse(code).body[0].name, source) for source, code in zip(*rows[:].values(), strict=True)]
        names[split] = [name for name, _ in found]
        assert all(source == f"Doc {name[1:].split('_')[0]}." for name, source in found if name != "shared")
        assert not any("Do" in code or "More" in code for code in rows["target"])
    expected = ["shared", *(f"f{f}_{i}" for f in range(60) for i in range(5))]
    assert sorted(name for found in names.values() for name in found) == sorted(expected)
    assert names["train"][:6] == [f"f0_{i}" for i in range(5)] + ["shared"]
    files = {split: {name.split("_")[0] for name in found} - {"shared"} for split, found in names.items()}
    assert files["train"] == {f"f{n}" for n in range(30)}
    assert not files["validation"] & files["test"]
    assert min(len(files["validation"]), len(files["test"])) >= 8
    again = documentation.docstring_to_code()
    assert {split: rows[:] for split, rows in again.items()} == {split: rows[:] for split, rows in pairs.items()}


@pytest.mark.slow
@pytest.mark.full
def test_pairs_of_the_standard_library():
    pairs = documentation.docstring_to_code()
    assert len(pairs["train"]) > 2000
    assert min(len(pairs["validation"]), len(pairs["test"])) > 50
    for source, code in [(row["source"], row["target"]) for rows in pairs.values() for row in rows]:
        assert source.strip()
        assert "\n" not in source
        assert isinstance(ast.parse(code).body[0], ast.FunctionDef | ast.AsyncFunctionDef)
