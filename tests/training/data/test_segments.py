import numpy as np
import pytest
from hypothesis import given, strategies as st

from sublayers.training.data.segments import training_segments, whole_text


def read(segments, row):
    """All inputs and labels of a row, as lists."""
    items = [segments[index] for index in range(row, len(segments), segments.rows)]
    assert [item["segment"] for item in items] == list(range(len(items)))
    assert all(item["labels"].equal(item["shift_labels"]) for item in items)
    joined = [[token for item in items for token in item[name].tolist()] for name in ("input_ids", "labels")]
    return (*joined, [len(item["input_ids"]) for item in items])


@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 60))
def test_each_row_reads_its_part_of_the_stream_to_its_end(rows, length, more):
    tokens = np.arange(100, 101 + rows * length + more, dtype=np.int32)
    segments = training_segments(tokens, length, rows)
    part = (len(tokens) - 1) // rows
    for row in range(rows):
        ids, labels, lengths = read(segments, row)
        assert ids == tokens[row * part : (row + 1) * part].tolist()
        assert labels == [token + 1 for token in ids]
        assert lengths == [length] * (part // length) + [part % length] * (part % length > 0)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 6), st.integers(0, 5))
def test_a_divided_text_scores_every_token_but_the_first_once_and_after_its_warm_up(targets, length, rows, warm_up):
    tokens = np.arange(100, 101 + targets, dtype=np.int32)
    divided = whole_text(tokens, length).divide(rows, warm_up)
    scored = []
    for row in range(rows):
        ids, labels, lengths = read(divided, row)
        assert {*lengths} == {length}
        here = [position for position, label in enumerate(labels) if label != -100]
        assert [labels[position] for position in here] == [ids[position] + 1 for position in here]
        if row and here:
            assert here[0] == warm_up * length
        scored += [labels[position] for position in here]
    assert scored == tokens[1:].tolist()
    # rows share the work
    assert len(divided) // rows <= -(-max(0, -(-targets // length) - warm_up) // rows) + warm_up + 1


@pytest.mark.parametrize("targets", [1, 3, 4, 5])
def test_a_text_is_scored_to_its_last_token(targets):
    ids, labels, _ = read(whole_text(np.arange(targets + 1, dtype=np.int32), 3), 0)
    assert [label for label in labels if label != -100] == [*range(1, targets + 1)]
    assert len(ids) == -(-targets // 3) * 3


def test_a_stream_shorter_than_a_batch_is_refused():
    with pytest.raises(ValueError, match="has 12 tokens, too few for 3 rows with segments of 4; give more text, or a"):
        training_segments(np.arange(12), 4, 3)
    training_segments(np.arange(13), 4, 3)
    with pytest.raises(ValueError, match="no tokens to predict"):
        whole_text(np.arange(1), 4)
