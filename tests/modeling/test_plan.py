import torch
from hypothesis import given, strategies as st

from sublayers.modeling.plan import Packing, Plan

masks = st.integers(1, 5).flatmap(
    lambda length: st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=1, max_size=4)
)


def places_of(real: torch.Tensor) -> list[tuple[int, int]]:
    """Rows and positions of the true ones, in reading order."""
    return [(row, i) for row in range(len(real)) for i in range(real.shape[1]) if real[row, i]]


def packing_by(real: torch.Tensor) -> Packing:
    index = [row * real.shape[1] + i for row, i in places_of(real)]
    return Packing(*real.shape, torch.tensor(index, dtype=torch.long))


@given(masks)
def test_packs_the_tokens_and_puts_them_back_between_zeros(rows):
    real = torch.tensor(rows)
    states = torch.randn(*real.shape, 2)
    packing = packing_by(real)
    packed = packing.pack(states)
    assert packed.shape == (1, len(places_of(real)), 2)
    for token, (row, i) in enumerate(places_of(real)):
        assert torch.equal(packed[0, token], states[row, i])
    padded = packing.pad(packed)
    assert padded.shape == states.shape
    for row in range(len(real)):
        for i in range(real.shape[1]):
            assert torch.equal(padded[row, i], states[row, i] if real[row, i] else torch.zeros(2))


@given(masks)
def test_a_full_rectangle_needs_no_index(rows):
    length = len(rows[0])
    states = torch.randn(len(rows), length, 2)
    packing = Packing(len(rows), length, None)
    assert torch.equal(packing.pack(states)[0], torch.stack([state for row in states for state in row]))
    assert torch.equal(packing.pad(packing.pack(states)), states)
    # one row for all, as positions are
    assert torch.equal(packing.pack(states[:1])[0], torch.stack([state for _ in rows for state in states[0]]))
    mask = torch.tensor(rows)
    assert packing.locate(mask)[0].tolist() == [row * length + i for row, i in places_of(mask)]


@given(st.data())
def test_finds_positions_and_moves_them_to_the_left(data):
    real = torch.tensor(data.draw(masks))
    places = places_of(real)
    packing = packing_by(real)
    kept = data.draw(st.lists(st.sampled_from(places), unique=True)) if places else []
    mask = torch.zeros_like(real)
    for place in kept:
        mask[place] = True
    located = packing.locate(mask)
    assert located.shape == (1, len(kept))
    assert [places[token] for token in located[0]] == sorted(kept)

    shorter, positions = packing.only(located)
    in_rows = [sorted(i for r, i in kept if r == row) for row in range(len(real))]
    length = max(1, *map(len, in_rows), 1)
    assert (shorter.batch, shorter.length) == (len(real), length)
    assert positions.tolist() == [found + [0] * (length - len(found)) for found in in_rows]
    states = torch.randn(1, len(kept), 2)
    padded, given_states = shorter.pad(states), iter(states[0])
    for row, found in enumerate(in_rows):
        for i in range(length):
            assert torch.equal(padded[row, i], next(given_states) if i < len(found) else torch.zeros(2))
    assert torch.equal(shorter.pack(padded), states)


@given(st.data())
def test_finds_positions_that_each_row_chooses_in_its_own_order(data):
    real = torch.tensor(data.draw(masks))
    real[:, data.draw(st.integers(0, real.shape[1] - 1))] = True
    choices = [[i for i in range(real.shape[1]) if row[i]] for row in real]
    number = data.draw(st.integers(1, 4))
    positions = [data.draw(st.lists(st.sampled_from(row), min_size=number, max_size=number)) for row in choices]
    for packing, places in [
        (packing_by(real), places_of(real)),
        (Packing(*real.shape, None), places_of(torch.ones_like(real))),
    ]:
        located = packing.locate(torch.tensor(positions))
        expected = [(row, i) for row, chosen in enumerate(positions) for i in chosen]
        assert [places[token] for token in located[0]] == expected
        shorter, moved = packing.only(located)
        assert shorter.length == number
        assert moved.tolist() == positions


def test_packs_only_where_that_saves_something():
    tokens, mask = torch.randn(2, 3, 4), torch.ones(2, 3, dtype=torch.long)
    first, ragged = torch.tensor([[0]]), torch.tensor([[True, False, True], [False, True, False]])
    assert Plan.of(tokens, None).packing is None
    assert Plan.of(tokens, mask).packing is None
    assert Plan.of(tokens, mask, first).packing is None
    assert Plan.of(tokens, mask, ragged).packing.index is None
    mask[1, 1:] = 0
    assert Plan.of(tokens, mask[:, None, None].bool()).packing is None
    assert Plan.of(tokens[:, :1], mask[:, :1]).packing is None
    assert Plan.of(tokens, mask).packing.index.tolist() == [0, 1, 2, 3]


def test_a_little_padding_stays_and_is_zeroed():
    tokens, mask = torch.randn(2, 32, 4), torch.ones(2, 32, dtype=torch.long)
    mask[1, 31] = 0
    plan = Plan.of(tokens, mask)
    assert plan.packing is None
    assert torch.equal(plan.leave(plan.enter(tokens)), tokens * mask[..., None])
    assert Plan.of(tokens, mask, torch.tensor([[0]])).padding is None
    mask[0, 0] = 0
    assert Plan.of(tokens, mask).packing.index.tolist() == [*range(1, 63)]


def test_reads_the_mask_of_the_present_tokens():
    past_and_present = torch.tensor([[0, 1, 1, 1], [0, 0, 0, 1]])
    assert Plan.of(torch.randn(2, 2, 4), past_and_present).packing.index.tolist() == [0, 1, 3]


def test_padding_that_is_read_counts_as_a_token():
    mask = torch.tensor([[1, 1, 0], [0, 0, 1]])
    tokens = torch.randn(2, 3, 4)
    ragged = torch.tensor([[False, False, True], [False, False, False]])
    assert Plan.of(tokens, mask, ragged).packing.index.tolist() == [0, 1, 2, 5]
    assert Plan.of(tokens, mask, torch.tensor([[1]])).packing.index.tolist() == [0, 1, 4, 5]
    assert Plan.of(tokens, mask, torch.tensor([[2], [0]])).packing.index.tolist() == [0, 1, 2, 3, 5]
