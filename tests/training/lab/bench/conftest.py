from argparse import Namespace

import pytest


@pytest.fixture
def tiny():
    """Make the flags of a tiny bench."""
    sizes = {"layers": 2, "hidden_size": 16, "heads": 2, "vocab_size": 50, "length": 12, "new_tokens": 3}
    others = {"device": "cpu", "dtype": "float32", "shapes": ["2x6"], "attention_window": 4, "recurrence": None}
    return lambda **flags: Namespace(**sizes | others | flags)
