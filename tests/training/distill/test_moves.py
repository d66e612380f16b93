from itertools import pairwise
from types import SimpleNamespace

import pytest
from families import small
from hypothesis import given, strategies as st

from sublayers import PARBertConfig, PARBertModel
from sublayers.configuration.order import expand, shuffled
from sublayers.training.distill.moves import MovesCallback, moves


def inversions(start, end):
    """Pairs of sublayers that stand the other way round, counted one by one."""
    places = [[(letter, order[:i].count(letter)) for i, letter in enumerate(order)] for order in (start, end)]
    before = {each: i for i, each in enumerate(places[1])}
    numbers = [before[each] for each in places[0]]
    return sum(a > b for i, a in enumerate(numbers) for b in numbers[i + 1 :])


def test_attention_moves_to_the_front_past_one_sublayer_at_a_time():
    assert moves("(sf)3", "s3f3") == ["sfsfsf", "ssffsf", "ssfsff", "sssfff"]
    assert moves("s2f", "s2f") == ["ssf"]
    assert len(moves("(sf)6", "s6f6")) == 1 + 15


def test_one_s_after_the_other_becomes_m_the_last_one_first():
    assert moves("(sf)3", "sf(mf)2") == ["sfsfsf", "sfsfmf", "sfmfmf"]
    assert moves("(sf)2", "smf2") == ["sfsf", "ssff", "smff"]


@given(st.text("sf", min_size=1, max_size=9), st.integers(0, 99))
def test_every_move_is_a_swap_of_neighbours_and_there_are_no_more_than_needed(start, seed):
    end = expand(shuffled(start, seed))
    orders = moves(start, end)
    assert (orders[0], orders[-1]) == (start, end)
    assert len(orders) - 1 == inversions(start, end)
    for one, other in pairwise(orders):
        (i, j) = (i for i in range(len(one)) if one[i] != other[i])
        assert j == i + 1
        assert one[i] + one[j] == other[j] + other[i]


def test_the_step_alone_decides_on_the_order():
    stack = PARBertModel(small(PARBertConfig, sublayer_order="s2f2")).layers
    callback = MovesCallback(stack, moves("sfsf", "ssff"), 3)
    callback.check(4)
    for number, expected in {3: [0, 1, 2, 3], 2: [0, 2, 1, 3], 0: [0, 2, 1, 3], 9: [0, 1, 2, 3]}.items():
        callback.on_step_begin(None, SimpleNamespace(global_step=number), None)
        assert [step.sublayer for step in stack.steps] == expected
    assert stack.tail == 2
    callback.on_step_begin(None, SimpleNamespace(global_step=0), None)
    assert stack.tail == 3
    callback.on_train_end(None, None, None)
    assert ([step.sublayer for step in stack.steps], stack.tail) == ([0, 1, 2, 3], 2)


def test_too_few_steps_and_other_sublayers_are_refused():
    stack = PARBertModel(small(PARBertConfig, sublayer_order="s2f2")).layers
    callback = MovesCallback(stack, moves("sfsf", "ssff"), 3)
    with pytest.raises(ValueError, match="1 moves, one every 3 steps, take more than 3 steps, and the training has 3"):
        callback.check(3)
    with pytest.raises(ValueError, match="'s3f' has other sublayers than 's2f2'"):
        stack.run_in("sssf")
