import copy
import math
import pickle
import random
import re
from collections import Counter
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, strategies as st

from sublayers.configuration.order import (
    Order,
    compact,
    expand,
    interleaved,
    macaron,
    par,
    random_balanced,
    random_unbalanced,
    sandwich,
)
from sublayers.configuration.spelling import MAX_SUBLAYERS

expanded_orders = st.text("swcfdl", min_size=1, max_size=60)


@pytest.mark.parametrize(
    ("pattern", "canonical", "printed"),
    [
        # Sandwich, sections 2, 4, 5.2 and 5.3
        (interleaved(16), "(sf)16", "(sf)^{16}"),
        (sandwich(3, 0), "(sf)3", "sfsfsf"),
        (sandwich(3, 1), "s(sf)2f", "ssfsff"),
        (sandwich(16, 6), "s6(sf)10f6", "s^6 (sf)^{10} f^6"),
        (sandwich(16, 15), "s16f16", "s^{15} (sf) f^{15}"),
        (sandwich(16, 16), "s16f16", "s^{16} f^{16}"),
        (sandwich(24, 5), "s5(sf)19f5", "s^5 (sf)^{19} f^5"),
        (interleaved(3, decoder=True), "(scf)3", "scfscfscf"),
        # the paper prints one f too many for this one; its own rule gives nine sublayers
        (sandwich(3, 1, decoder=True), "sc(scf)2f", "scscfscff"),
        (sandwich(6, 0, decoder=True), "(scf)6", "(scf)^6"),
        (sandwich(6, 1, decoder=True), "sc(scf)5f", "(sc)^1 (scf)^5 f^1"),
        (sandwich(6, 5, decoder=True), "(sc)6f6", "(sc)^5 (scf)^1 f^5"),
        # Sandwich, as released for enwik8 and text8
        (sandwich(3, 1), "s(sf)2f", "s.sfsf.f"),
        (sandwich(3, 2), "s3f3", "s.s.sf.f.f"),
        (sandwich(24, 5), "s5(sf)19f5", "s." * 5 + "sf" * 19 + ".f" * 5),
        # PAR, tables 1, 2 and 3
        (par(32, 2), "(sf)16", "(sf)x16"),
        (par(32, 5), "(sfff)6f8", "(sfff)x6 (f)x8"),
        (par(24, 5), "(sff)5f9", "(sff)x5 (f)x9"),
        (sandwich(16, 6), "s6(sf)10f6", "(s)x6 (sf)x10 (f)x6"),
        # Macaron, section 3.3
        (macaron(6), "(fsf)6", "fsf fsf fsf fsf fsf fsf"),
        (macaron(6, decoder=True), "(fscf)6", "(fscf) * 6"),
    ],
)
def test_published_orders(pattern, canonical, printed):
    assert pattern == canonical
    assert compact(printed) == canonical
    assert expand(printed) == expand(canonical)


def test_an_order_is_a_value():
    order = Order("S2(SF)x2 f2")
    assert (str(order), len(order), [*order], order.kinds[0].name) == ("s2(sf)2f2", 8, [*"sssfsfff"], "self-attention")
    assert {order, Order("sssfsfff"), Order(order)} == {order}
    assert order != Order("sf")
    for copied in (pickle.loads(pickle.dumps(order)), copy.deepcopy(order)):
        assert (copied, copied.kinds) == (order, order.kinds)
    with pytest.raises(FrozenInstanceError):
        order.letters = "sf"


@pytest.mark.parametrize(
    ("p", "canonical"), [(1, "s32"), (3, "(sf)11f10"), (4, "(sff)8f8"), (6, "(sfff)5f12"), (32, "sf31")]
)
def test_par_at_other_ratios(p, canonical):
    assert par(32, p) == canonical


@given(st.integers(3, 200), st.floats(1, 200))
def test_par_keeps_the_length_and_the_ratio(num_sublayers, p):
    p = min(p, num_sublayers)
    order = expand(par(num_sublayers, p))
    assert len(order) == num_sublayers
    assert order[0] == "s"
    assert order.count("s") == math.floor(num_sublayers / p + 0.5)
    gaps = {len(gap) for gap in order.rstrip("f").split("s")[1:-1]}
    assert len(gaps) <= 1


@pytest.mark.parametrize(
    ("order", "letters"),
    [
        ("s", "s"),
        ("s6", "ssssss"),
        ("s0000006", "ssssss"),
        ("s6(sf)2f3", "sssssssfsffff"),
        (" s f\ts\nf ", "sfsf"),
        ("(sf)x3", "sfsfsf"),
        ("(sf)×3", "sfsfsf"),  # noqa: RUF001
        ("(sf)*3", "sfsfsf"),
        ("(sf)^3", "sfsfsf"),
        ("(sf)^{3}", "sfsfsf"),
        ("( s f ) ^ { 3 } c", "sfsfsfc"),
        ("(s) x 2 f", "ssf"),
        ("((sf)2f)2", "sfsffsfsff"),
        ("((s))", "s"),
        ("(df)x2 (dcf)^{2} l", "dfdfdcfdcfl"),
        ("S2(SF)X2", "sssfsf"),
        ("S⁶(sf)¹⁰F⁰²", "s" * 6 + "sf" * 10 + "ff"),
        ("s1024", "s" * 1024),
        ("s 1 " * 1024, "s" * 1024),
        ("((s32)8)4", "s" * 1024),
    ],
)
def test_expand(order, letters):
    assert expand(order) == letters


@pytest.mark.parametrize(
    ("call", "order"),
    [
        ("par(24,5)", par(24, 5)),
        ("par( 0024 , 5 )", par(24, 5)),
        ("PAR(24,5)", par(24, 5)),
        ("sandwich(16,6)", sandwich(16, 6)),
        (" sandwich (6, 3, decoder=True) ", sandwich(6, 3, decoder=True)),
        ("interleaved(16)", interleaved(16)),
        ("macaron(6,decoder = True)", macaron(6, decoder=True)),
    ],
)
def test_patterns_are_orders(call, order):
    assert compact(call) == order
    assert expand(call) == expand(order)
    assert Order(call).counts == Order(order).counts


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ("sandwich(16)", r"^'sandwich\(16\)' has too few .* or too many; write sandwich\(n, k, decoder\)$"),
        ("par(24,5,decoder=True)", r"write par\(num_sublayers, p\)$"),
        ("sandwich(16,17)", "^k=17 is out of range; give a number from 0 to 16$"),
        (f"macaron({'9' * 4000})", "^n=999999999 is out of range; give a number from 1 to 341$"),
    ],
)
def test_numbers_of_patterns_are_checked(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        expand(call)


@pytest.mark.parametrize("order", [" " * 10_000, "(" * 200_000, "s" + " " * 10_000, "s" + "9" * 10_000, "s" * 8193])
def test_the_length_of_an_order_is_bounded_before_it_is_read(order, monkeypatch):
    monkeypatch.setattr("sublayers.configuration.spelling._TOKEN", None)
    with pytest.raises(ValueError, match=f"of {len(order)} characters is too long; write it in at most 8192") as caught:
        compact(order)
    assert len(str(caught.value)) < 150


@given(st.text() | st.text("scfdl()^x⁶12 {},=._", max_size=30))
def test_whatever_is_written_is_an_order_or_a_value_error(written):
    try:
        canonical = compact(written)
    except ValueError:
        return
    assert compact(canonical) == canonical


def test_a_long_order_is_shown_around_the_character():
    for order, position in (("s" * 1000 + "q" + "f" * 1000, 50), ("s" * 20 + "q" + " " * 1000, 20)):
        with pytest.raises(ValueError, match="'q' is not a sublayer") as caught:
            expand(order)
        _, shown, caret = str(caught.value).split("\n")
        assert len(shown) <= 102
        assert shown[len(caret) - 1] == "q"
        assert caret == " " * (position + 2) + "^"


@pytest.mark.parametrize(
    ("order", "canonical"),
    [
        ("sf", "sf"),
        ("sfsffsfsff", "(sfsff)2"),
        ("sfffsfff", "(sfff)2"),
        ("s2s3", "s5"),
        ("(sf)4(sf)2", "(sf)6"),
        # the longer group wins against the one that covers more, then coverage, then the earlier start
        ("scfscf" + "sf" * 9, "(scf)2(sf)9"),
        ("fsfs" + "cfs" * 2, "fs(fsc)2fs"),
        ("sfs" + "fc" * 3, "sfs(fc)3"),
        ("sfs" + "fc" * 2, "(sf)2cfc"),
        ("sfs" + "fc" * 2 + "f", "(sf)2(cf)2"),
        ("ssffssffcc", "(ssff)2c2"),
        # and the tail of m is told apart
        ("sfsf" + "mf" * 4, "(sf)2(mf)4"),
        ("scfscf" + "mcf" * 2, "(scf)2(mcf)2"),
    ],
)
def test_compact(order, canonical):
    assert compact(order) == canonical


@given(expanded_orders)
def test_canonical_form_is_canonical(order):
    canonical = compact(order)
    assert expand(canonical) == order
    assert compact(canonical) == canonical


@st.composite
def spelled(draw, depth=2):
    """Return an order in some spelling, and the letters it stands for."""
    spelling = letters = ""
    for _ in range(draw(st.integers(1, 3))):
        inner, inner_letters = draw(st.sampled_from("scfdl").map(lambda letter: (letter, letter)))
        if depth and draw(st.booleans()):
            inner, inner_letters = draw(spelled(depth=depth - 1))
            inner = f"({inner})"
        number = draw(st.integers(1, 4))
        repeat = draw(st.sampled_from(["{}", "x{}", "×{}", "*{}", "^{}", "^{{{}}}", " x {}", " ^ {{ {} }} "]))  # noqa: RUF001
        spelling += inner + (repeat.format(number) if number > 1 else "") + draw(st.sampled_from(["", " ", "."]))
        letters += inner_letters * number
    return spelling, letters


@given(spelled())
def test_all_spellings_agree(spelling_and_letters):
    spelling, letters = spelling_and_letters
    assert expand(spelling) == letters
    assert compact(spelling) == compact(letters)


@given(expanded_orders)
def test_counts_and_tail(order):
    assert Order(order).counts == {letter: order.count(letter) for letter in "swcfdlmr"}
    start = Order(order).tail_start
    assert set(order[start:]) <= {"f"}
    assert start == 0 or order[start - 1] != "f"
    assert Order(compact(order)).tail_start == start


@pytest.mark.parametrize(
    ("order", "position", "problem"),
    [
        ("ssxb", 2, "is part of a repeat"),
        ("s6(sb)3", 4, "'b' is not a sublayer"),
        ("Q", 0, "'q' is not a sublayer"),
        ("s(6)", 2, "is part of a repeat"),
        ("sandwhich(16,6)", 1, "'a' is not a sublayer"),
        ("par(24,5)f", 0, "'p' is not a sublayer"),
        ("par(24 5)", 0, "'p' is not a sublayer"),
        ("dlg", 2, r"use the letters s \(self-attention\), .*, d \(dynamic convolution\), l \(lightweight"),
        ("s\tq", 2, "'q' is not a sublayer"),
        ("s-1", 1, "'-' is not a sublayer"),
        ("sf.(.)", 3, "group is empty"),
        ("..", 0, "empty; give at least one"),
        ("s.sq.f", 3, "'q' is not a sublayer"),
        ("s٣", 1, "is not a sublayer"),
        ("ss(sf", 2, "never closed"),
        ("((sf)2", 0, "never closed"),
        ("(sf))2", 4, "has no '\\(' before it"),
        ("s()f", 1, "group is empty"),
        ("s(( )2)", 2, "group is empty"),
        ("s0", 1, "repeat of zero"),
        ("(sf)x00f", 5, "repeat of zero"),
        ("6s", 0, "is part of a repeat"),
        ("s2 3", 3, "is part of a repeat"),
        ("s^", 1, "is part of a repeat"),
        ("s^{6", 1, "is part of a repeat"),
        ("s6}", 2, "is part of a repeat"),
        ("s_03f", 1, "is part of a name"),
        ("(sf)_0", 4, "is part of a name"),
        ("s_0m_0fm_0s_1", 10, "must not change"),
        ("", 0, "empty; give at least one of the letters s, w, c, f, d, l"),
        ("s1025", 1, "at most 1024"),
        ("s1000(sf)13", 9, "at most 1024"),
        ("(s64)(f64)16", 10, "at most 1024"),
        ("((s1000)1000)1000", 8, "at most 1024"),
        ("s" + "9" * 90, 1, "at most 1024"),
    ],
)
def test_errors_point_at_the_character(order, position, problem):
    with pytest.raises(ValueError, match=problem) as caught:
        expand(order)
    _, shown, caret = str(caught.value).split("\n")
    assert shown == "  " + re.sub(r"\s", " ", order.lower())
    assert caret == " " * (position + 2) + "^"
    with pytest.raises(ValueError, match=problem):
        compact(order)


@pytest.mark.parametrize("order", [None, 6, ["s", "f"], b"sf"])
def test_an_order_is_a_string(order):
    for read in (expand, compact, Order):
        with pytest.raises(TypeError, match="an order is a string"):
            read(order)


@pytest.mark.parametrize(
    ("make", "name", "bounds"),
    [
        (lambda: interleaved(0), "n=0", "1 to 512"),
        (lambda: interleaved(513), "n=513", "1 to 512"),
        (lambda: interleaved(342, decoder=True), "n=342", "1 to 341"),
        (lambda: sandwich(16, -1), "k=-1", "0 to 16"),
        (lambda: sandwich(16, 17), "k=17", "0 to 16"),
        (lambda: par(2, 2), "num_sublayers=2", "3 to 1024"),
        (lambda: par(32, 0), "p=0", "1 to 32"),
        (lambda: par(32, 33), "p=33", "1 to 32"),
        (lambda: par(32, math.nan), "p=nan", "1 to 32"),
        (lambda: macaron(0), "n=0", "1 to 341"),
        (lambda: macaron(257, decoder=True), "n=257", "1 to 256"),
        (lambda: random_balanced(0, seed=0), "n=0", "1 to 512"),
        (lambda: random_unbalanced(0, seed=0), "budget=0", "1 to 1024"),
    ],
)
def test_numbers_out_of_range(make, name, bounds):
    with pytest.raises(ValueError, match=f"^{name} is out of range; give a number from {bounds}$"):
        make()


def test_the_largest_patterns_fit():
    for order in (interleaved(512), sandwich(341, 7, decoder=True), macaron(256, decoder=True), par(1024, 5)):
        assert len(expand(order)) >= MAX_SUBLAYERS - 1


@given(st.integers(1, 40), st.integers())
def test_random_balanced(n, seed):
    order = random_balanced(n, seed)
    assert Order(order).counts == {"s": n, "w": 0, "c": 0, "f": n, "d": 0, "l": 0, "m": 0, "r": 0}
    assert order == compact(order) == random_balanced(n, seed)


@given(st.integers(1, 80), st.integers())
def test_random_unbalanced(budget, seed):
    order = random_unbalanced(budget, seed)
    number = Order(order).counts
    assert number["s"] + 2 * number["f"] == budget
    assert order == compact(order) == random_unbalanced(budget, seed)


def test_random_orders_leave_the_global_generator_alone():
    state = random.getstate()
    random_balanced(16, seed=1)
    random_unbalanced(48, seed=1)
    assert random.getstate() == state


def chi_squared(drawn, shares):
    total = sum(drawn.values())
    return sum((drawn[order] - total * share) ** 2 / (total * share) for order, share in shares.items())


def test_balanced_orders_are_uniform():
    drawn = Counter(expand(random_balanced(2, seed)) for seed in range(6000))
    # 5 degrees of freedom: 20.5 is passed once in a thousand times
    assert len(drawn) == 6
    assert chi_squared(drawn, dict.fromkeys(drawn, 1 / 6)) < 20.5


def test_unbalanced_orders_are_fair_draws():
    drawn = Counter(expand(random_unbalanced(3, seed)) for seed in range(6000))
    shares = {"fs": 1 / 2, "sf": 1 / 4, "sss": 1 / 4}
    # 2 degrees of freedom: 13.8 is passed once in a thousand times
    assert set(drawn) == set(shares)
    assert chi_squared(drawn, shares) < 13.8
