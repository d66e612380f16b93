import pytest

from sublayers import Order, PARBertConfig, expand, random_balanced, random_unbalanced
from sublayers.configuration.order import shuffled
from sublayers.training.lab.search.draw import draw, draw_at_cost, draw_within, patterns, read_orders
from sublayers.training.lab.search.price import price
from sublayers.training.lab.search.report import halves

CONFIG = PARBertConfig(hidden_size=16, intermediate_size=64, num_attention_heads=2)
PRICE = price(CONFIG, "sf", "flops", 128, "one")


def test_balanced_orders_are_permutations_whose_seeds_are_told():
    found = draw("(sf)8", 5, seed=3)
    assert [candidate.draw_seed for candidate in found] == [3, 4, 5, 6, 7]
    assert all(candidate.order == random_balanced(8, candidate.draw_seed) for candidate in found)
    assert all(sorted(expand(candidate.order)) == sorted("scf" * 3) for candidate in draw("(scf)3", 4, seed=0))


@pytest.mark.parametrize(("order", "number"), [("(sf)8", 24), ("(scf)3", 12), ("f(ls)2c", 7)])
def test_unbalanced_orders_have_the_same_number_of_parameters(order, number):
    found = draw(order, 6, seed=0, unbalanced=True)
    # a feed-forward sublayer has two units
    expanded = [expand(candidate.order) for candidate in found]
    assert {len(letters) + letters.count("f") for letters in expanded} == {Order(order).units} == {number}
    assert len({*map(len, expanded)}) > 1
    assert {*"".join(expanded)} == {*expand(order)}
    assert Order("f(ls)2c").alphabet == "scfl"
    assert draw("(sf)8", 1, seed=0, unbalanced=True)[0].order == random_unbalanced(24, 0)


def test_no_order_is_drawn_twice_and_none_is_invented():
    drawn = [candidate.order for candidate in draw("(sf)2", 6, seed=0)]
    assert sorted(drawn) == sorted({shuffled("(sf)2", seed) for seed in range(100)})
    with pytest.raises(ValueError, match=r"there seem to be only 6 orders like '\(sf\)2', not 7"):
        draw("(sf)2", 7, seed=0)


def test_every_m_is_drawn_behind_all_that_mixes_tokens():
    # four letters have 12 permutations, in half of which s comes first
    assert sorted(candidate.order for candidate in draw("sfmf", 6, seed=0)) == sorted(
        ["smf2", "sfmf", "sf2m", "fsmf", "fsfm", "f2sm"]
    )
    with pytest.raises(ValueError, match="only 6 orders"):
        draw("sfmf", 7, seed=0)
    for unbalanced in (False, True):
        found = [expand(candidate.order) for candidate in draw("(sf)12(mf)12", 5, 0, unbalanced)]
        assert all("m" in letters and "s" not in letters[letters.index("m") :] for letters in found)


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


def test_orders_within_a_budget_are_new_have_any_length_and_can_be_run():
    budget = PRICE.cost("(sf)6")
    found = [expand(each.order) for each in draw_within("(sf)12", PRICE, budget, 9, 0, lambda order: "s" in order)]
    assert len({*found}) == 9 < sum(map(len, found))
    assert all(PRICE.cost(letters) <= budget and "s" in letters for letters in found)
    assert len({*map(len, found)}) > 3
    assert sorted(each.order for each in draw_within("f", PRICE, budget, 2, 0, bool)) == ["f", "f2"]
    with pytest.raises(ValueError, match="there seem to be only 2 orders within the budget, not 3; give another"):
        draw_within("f", PRICE, budget, 3, 0, bool)


def test_the_papers_patterns_are_chosen_by_cost():
    table = price(CONFIG, "sf", "parameters", 128, "all")
    found = {candidate.name: candidate.order for candidate in patterns("sf", table, table.cost("(sf)16"))}
    # a par order of 32 sublayers has more parameters: fewer of its sublayers are attention
    assert found["interleaved"] == "(sf)16"
    assert found["sandwich"] == "s6(sf)10f6"
    assert table.cost(found["par"]) == pytest.approx(table.cost("(sf)16"), rel=0.05)
    decoder = {candidate.name for candidate in patterns("scf", price(CONFIG, "scf", "flops", 9, "all"), 1e6)}
    assert decoder == {"interleaved", "sandwich"}


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
        ("(sf)2(mf)2", "sfsf", "mfmf"),
    ],
)
def test_halves_have_half_of_the_parameters(order, bottom, top):
    assert halves(order) == (bottom, top)


def test_orders_are_read_from_a_file(tmp_path):
    file = tmp_path / "orders.txt"
    file.write_text("s6(sf)10f6\n\nsandwich(16, 6)\n  ssff\n")
    assert [candidate[:2] for candidate in read_orders(file)] == [("s6(sf)10f6", "sandwich(16, 6)"), ("s2f2", "ssff")]
    for text, message in (("\n", "has no orders; write one in each line"), ("sfq", "'q' is not a sublayer")):
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_orders(file)
