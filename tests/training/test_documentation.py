from datasets import Dataset

from sublayers.training import documentation

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


def test_finds_documentation_and_code_without_it():
    assert dict(documentation.documented_functions(MODULE)) == {
        "Add two numbers.": "def plain(a, b):\n    return a + b",
        "Wait.": "async def method(self):\n    await other()\n\n    return 1",
    }
    assert not [*documentation.documented_functions("def broken(:\n")]


def test_half_of_the_pairs_come_from_another_file(monkeypatch):
    files = [
        "".join(f'def f{file}_{i}():\n    """Doc {file}."""\n    return {i}\n' for i in range(40)) for file in range(5)
    ]
    monkeypatch.setattr(documentation, "standard_library", lambda: {"train": Dataset.from_dict({"text": files})})
    pairs = documentation.documentation_pairs()
    assert len(pairs["train"]) + len(pairs["validation"]) == 2 * 200
    assert 10 < len(pairs["validation"]) < 80
    for rows in pairs.values():
        assert rows["label"] == [1, 0] * (len(rows) // 2)
        for row in rows:
            assert row["label"] == (row["sentence1"][4] == row["sentence2"][5])
    assert not set(pairs["train"]["sentence2"]) & set(pairs["validation"]["sentence2"])
    assert documentation.documentation_pairs()["train"][:] == pairs["train"][:]
    assert documentation.documentation_pairs(seed=1)["train"][:] != pairs["train"][:]
