import pytest

from sublayers import PARBertConfig, expand, random_balanced, random_unbalanced
from sublayers.configuration.sublayer_order import shuffled
from sublayers.training.lab.search.draw import draw, draw_at_cost, letters_of, patterns, read_orders, units
from sublayers.training.lab.search.price import price
from sublayers.training.lab.search.report import halves

CONFIG = PARBertConfig(hidden_size=16, intermediate_size=64, num_attention_heads=2)
PRICE = price(CONFIG, "sf", "flops", 128, "one")


def test_balanced_orders_are_permutations_whose_seeds_are_told():
    found = draw("(sf)8", 5, seed=3)
    assert [candidate.draw_seed for candidate in found] == [3, 4, 5, 6, 7]
    assert all(candidate.order == random_balanced(8, candidate.draw_seed) for candidate in found)
    decoder = draw("(scf)3", 4, seed=0)
    assert all(sorted(expand(candidate.order)) == sorted("scf" * 3) for candidate in decoder)


def test_unbalanced_orders_have_the_same_number_of_parameters():
    found = draw("(sf)8", 6, seed=0, unbalanced=True)
    assert {units(candidate.order) for candidate in found} == {24}
    assert len({len(expand(candidate.order)) for candidate in found}) > 1
    assert found[0].order == random_unbalanced(24, 0)
    decoder = draw("(scf)3", 6, seed=0, unbalanced=True)
    assert {units(candidate.order) for candidate in decoder} == {12}
    assert {letter for candidate in decoder for letter in expand(candidate.order)} == {*"scf"}


def test_no_order_is_drawn_twice_and_none_is_invented():
    assert sorted(candidate.order for candidate in draw("(sf)2", 6, seed=0)) == sorted(
        {shuffled("(sf)2", seed) for seed in range(100)}
    )
    with pytest.raises(ValueError, match=r"there seem to be only 6 orders like '\(sf\)2', not 7"):
        draw("(sf)2", 7, seed=0)


def test_orders_of_equal_cost_cost_as_much():
    cost = PRICE.cost("(sff)5f9")
    found = draw_at_cost("(sf)12", PRICE, cost, 8, seed=0)
    assert len({candidate.order for candidate in found}) == 8
    for candidate in found:
        assert PRICE.cost(candidate.order) == pytest.approx(cost, rel=0.05)
    assert draw_at_cost("(sf)12", PRICE, cost, 0, seed=0) == []
    # nothing costs as little, but something costs the least
    (least,) = draw_at_cost("(sf)12", PRICE, 1.0, 1, seed=0)
    assert PRICE.cost(least.order) == min(PRICE.read.values())


def test_the_papers_patterns_are_chosen_by_cost():
    table = price(CONFIG, "sf", "parameters", 128, "all")
    found = {candidate.name: candidate.order for candidate in patterns("sf", table, table.cost("(sf)16"))}
    # a par order of 32 sublayers has more parameters: fewer of its sublayers are attention
    assert found["interleaved"] == "(sf)16"
    assert found["sandwich"] == "s6(sf)10f6"
    assert table.cost(found["par"]) == pytest.approx(table.cost("(sf)16"), rel=0.05)
    decoder = {candidate.name for candidate in patterns("scf", price(CONFIG, "scf", "flops", 9, "all"), 1e6)}
    assert decoder == {"interleaved", "sandwich"}


def test_letters_and_units():
    assert letters_of("f(ls)2c") == "scfl"
    assert units("s2f3c") == 9


@pytest.mark.parametrize(
    ("order", "bottom", "top"),
    [
        # 6 units each
        ("(sf)4", "sfsf", "sfsf"),
        # the third sublayer lies in the middle, and counts below
        ("fff", "ff", "f"),
        ("s6f3", "ssssss", "fff"),
        ("f3s6", "fff", "ssssss"),
        ("s", "s", ""),
    ],
)
def test_halves_have_half_of_the_parameters(order, bottom, top):
    assert halves(order) == (bottom, top)


def test_orders_are_read_from_a_file(tmp_path):
    file = tmp_path / "orders.txt"
    file.write_text("s6(sf)10f6\n\nsandwich(16, 6)\n  ssff\n")
    assert [(candidate.order, candidate.name) for candidate in read_orders(file)] == [
        ("s6(sf)10f6", "sandwich(16, 6)"),
        ("s2f2", "ssff"),
    ]
    file.write_text("\n")
    with pytest.raises(ValueError, match="has no orders; write one in each line"):
        read_orders(file)
    file.write_text("sfq")
    with pytest.raises(ValueError, match="'q' is not a sublayer"):
        read_orders(file)
