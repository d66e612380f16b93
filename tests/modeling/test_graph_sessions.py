"""Graphs compute padding, so rows of about the same length run together."""

import numpy as np
import pytest

from sublayers.modeling.graph_sessions import by_length


def graph(batch, shapes):
    """Give numbers for each token, for each row as many as it may have tokens, and one for each row."""
    mask = batch["attention_mask"]
    shapes.append(mask.shape)
    tokens = batch["input_ids"] * mask
    sums = tokens.sum(1).astype(np.float32)
    return {"states": tokens[..., None] * np.ones(3), "labels": sums[:, None] * np.ones(9), "scores": sums}


def padded(lengths, width):
    mask = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int64)
    return {"input_ids": np.arange(1, 1 + mask.size).reshape(mask.shape), "attention_mask": mask}


@pytest.mark.parametrize(
    ("lengths", "widths"),
    [
        ([3, 9, 8, 2, 9, 0], [(3, 9), (1, 3), (1, 2), (1, 1)]),
        ([9, 9, 9], [(3, 9)]),
        # what is saved would be less than another run costs
        ([9, 8, 8], [(3, 9)]),
        ([5, 2], [(1, 5), (1, 2)]),
    ],
)
def test_rows_of_about_the_same_length_run_together(lengths, widths):
    batch, shapes = padded(lengths, 9), []
    expected = graph(batch, [])
    found = by_length(lambda given: graph(given, shapes))(batch)
    assert shapes == widths
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.parametrize("change", ["left", "between", "decoder", "choices", "no mask"])
def test_other_batches_run_as_a_whole(change):
    batch = padded([9, 2, 5], 9)
    mask = batch["attention_mask"]
    changes = {
        "left": {"attention_mask": mask[:, ::-1].copy()},
        "between": {"attention_mask": mask | (np.arange(9) == 7)},
        "decoder": {"decoder_input_ids": mask},
        "choices": {name: rows[:, None] for name, rows in batch.items()},
        "no mask": {"attention_mask": None},
    }
    batch = {name: rows for name, rows in (batch | changes[change]).items() if rows is not None}
    asked = []
    by_length(lambda given: asked.append(given) or {})(batch)
    assert [id(given) for given in asked] == [id(batch)]
