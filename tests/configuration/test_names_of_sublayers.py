"""Sublayers that run at several places of an order."""

import copy
import itertools
import pickle

import pytest
from families import small
from hypothesis import given, strategies as st

from sublayers import IOTSeq2SeqConfig, Order, PARBertConfig, SandwichLMConfig, expand
from sublayers.configuration.order import shuffled
from sublayers.configuration.sublayer_cost import cache_bytes, flops, parameters


@pytest.mark.parametrize(
    ("spelling", "canonical", "sublayers"),
    [
        ("(s_0f_0)3", "(s_0f_0)3", (0, 1, 0, 1, 0, 1)),
        # names are those of a letter, and numbered as they come
        ("s_5f_7 s_{5} F_7", "(s_0f_0)2", (0, 1, 0, 1)),
        ("s_1s_0f s_0s_1", "s_0s_1fs_1s_0", (0, 1, 2, 1, 0)),
        # what runs once needs no name
        ("s_0f_0s_1f_1(s_0f_0)3", "s_0f_0sf(s_0f_0)3", (0, 1, 2, 3, 0, 1, 0, 1, 0, 1)),
        ("s_1f_0s_0f_1", "(sf)2", (0, 1, 2, 3)),
        # a digit after a name is the name's
        ("s_1x2f", "(s_0)2f", (0, 0, 1)),
        ("s_{12}3f_10^2", "(s_0)3(f_0)2", (0, 0, 0, 1, 1)),
        ("(s_0f)3(m_0f_0)2", "(s_0f)3(m_0f_0)2", (0, 1, 0, 2, 0, 3, 4, 5, 4, 5)),
    ],
)
def test_letters_of_one_name_are_one_sublayer(spelling, canonical, sublayers):
    order = Order(spelling)
    assert (str(order), order.sublayers) == (canonical, sublayers)
    assert Order(canonical) == Order("".join(order.labels)) == Order(expand(spelling)) == order
    assert order.first_places == tuple(sublayers.index(number) for number in {*sublayers})
    assert order.shares_sublayers == (len({*sublayers}) < len(order))


def test_costs_of_sublayers_that_are_shared():
    shared, own = Order("(s_0f_0)12"), Order("(sf)12")
    assert (len(shared), shared.counts, shared.units) == (len(own), own.counts, 3)
    assert shared.slots("self") == own.slots("self")
    assert Order(shuffled(shared, seed=1)).first_places != own.first_places
    assert Order(shuffled(shared, seed=1)).units == 3


@given(st.lists(st.sampled_from(["s", "f", "s_0", "s_1", "f_3"]), min_size=1, max_size=30))
def test_canonical_form_of_names(places):
    order = Order("".join(places))
    assert Order(str(order)) == order
    assert str(Order(str(order))) == str(order)
    # the same places are the same sublayer
    for (a, x), (b, y) in itertools.combinations(zip(places, order.sublayers, strict=True), 2):
        assert (x == y) == (a == b and "_" in a)


def test_names_are_part_of_the_value():
    shared = Order("(s_0f_0)12")
    assert {shared, Order("s_7f_1" * 12), pickle.loads(pickle.dumps(shared)), copy.deepcopy(shared)} == {shared}
    assert shared != Order("(sf)12")


def test_what_an_order_with_names_costs():
    shared, own = "(s_0f_0)12", "(sf)12"
    assert parameters(shared, 16, 24) == parameters("sf", 16, 24) == parameters(own, 16, 24) // 12
    assert cache_bytes(shared, 16, 9) == cache_bytes(own, 16, 9)
    for read in (1, 9):
        assert flops(shared, 16, 24, 9, read) == flops(own, 16, 24, 9, read)
    config = small(PARBertConfig, sublayer_order=shared)
    assert (config.num_sublayers, config.num_hidden_layers) == (24, 12)


def test_what_differs_by_place_is_refused():
    for options in ({"first_norm": False, "norm_position": "pre"}, {"pre_attention_act": "tanh"}):
        with pytest.raises(
            ValueError, match=r"^(first_norm|pre_attention_act)=.* in '\(s_0f\)2' do not; leave it out$"
        ):
            small(SandwichLMConfig, sublayer_order="(s_0f)2", **options)
        small(SandwichLMConfig, sublayer_order="(sf)2", **options)
    with pytest.raises(ValueError, match=r"^iot_seq2seq has no names .* in its decoder_orders, here 's_0cf'"):
        small(IOTSeq2SeqConfig, decoder_orders=["scf", "s_0cf"])
