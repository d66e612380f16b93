import numpy as np
import pytest
from hypothesis import given, strategies as st

from sublayers.training.data.token_batches import TokenBatchSampler

PAIRS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=80)
LIMITS = st.integers(30, 200)


def cost(pairs, batch):
    return len(batch) * max(max(pairs[row]) for row in batch)


def random_pairs(number=3000):
    draw = np.random.default_rng(0)
    source = np.clip(draw.lognormal(3, 0.5, number), 2, 120).astype(int)
    return source, np.clip(source * draw.lognormal(0, 0.25, number), 2, 120).astype(int)


@given(PAIRS, LIMITS, st.integers(0, 5), st.booleans())
def test_every_row_is_once_in_an_epoch_and_no_batch_is_above_the_limit(pairs, limit, seed, shuffle):
    sampler = TokenBatchSampler(*zip(*pairs, strict=True), limit, seed, shuffle)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert sorted(row for batch in batches for row in batch) == list(range(len(pairs)))
        assert all(type(row) is int for batch in batches for row in batch)
        assert max(cost(pairs, batch) for batch in batches) <= limit
        assert len(sampler) == len(batches)


@given(PAIRS, LIMITS)
def test_a_batch_has_no_room_for_the_next_row(pairs, limit):
    sampler = TokenBatchSampler(*zip(*pairs, strict=True), limit, shuffle=False)
    batches = list(sampler)
    sampler.set_epoch(3)
    assert list(sampler) == batches
    for i in range(len(batches) - 1):
        assert cost(pairs, [*batches[i], batches[i + 1][0]]) > limit
        # from short to long
        assert max(max(pairs[row]) for row in batches[i]) <= min(max(pairs[row]) for row in batches[i + 1])


def test_little_is_padding():
    source, target = random_pairs(20000)
    sampler = TokenBatchSampler(source, target, 500)
    padded = sum(len(rows) * (source[rows].max() + target[rows].max()) for rows in sampler)
    # sorted by one side, or by the longer one alone, it would be more
    assert 1 - (source.sum() + target.sum()) / padded < 0.035
    full = [len(rows) * max(source[rows].max(), target[rows].max()) for rows in sampler]
    assert np.mean(full) > 0.95 * 500


def test_the_seed_decides_on_batches_and_the_epoch_on_their_order():
    first, again, other = (TokenBatchSampler(*random_pairs(), 500, seed) for seed in (0, 0, 1))
    assert list(first) == list(again) == list(first)
    assert sorted(first) != sorted(other)
    orders = []
    for epoch in (0, 1, 2, 1):
        first.set_epoch(epoch)
        orders.append(list(first))
        assert sorted(first) == sorted(again)
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert orders[3] == orders[1]


def test_a_row_that_fits_no_batch_is_named():
    with pytest.raises(ValueError, match=r"row 2 has 41 tokens, more than max_tokens=40; raise it, or leave out"):
        TokenBatchSampler([1, 40, 3, 50], [2, 1, 41, 1], 40)
