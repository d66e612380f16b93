"""Widths that change with depth."""

import math

import pytest

from sublayers import Order, SandwichLMConfig, tapered


@pytest.mark.parametrize(("n", "width"), [(1, 96), (2, 100), (8, 1024), (12, 768), (13, 344)])
@pytest.mark.parametrize("shares", [(1.5, 0.5), (0.5, 1.5), (2.0, 0.25)])
def test_follows_a_cosine_with_the_mean_of_the_plain_width(n, width, shares):
    first, last = shares
    found = tapered(n, width, first, last)
    assert sum(found) == 8 * round(n * width / 8)
    assert found == sorted(found, reverse=first > last)
    for i, each in enumerate(found):
        middle, swing = (first + last) / 2, (first - last) / 2 * (math.cos(math.pi * i / (n - 1)) if n > 1 else 0)
        assert each % 8 == 0
        assert abs(each - width * (middle + swing) / middle) < 8


def test_no_width_is_nothing():
    with pytest.raises(ValueError, match="has a width of 0; give a larger width"):
        tapered(4, 8)
    with pytest.raises(ValueError, match="needs positive numbers"):
        tapered(0, 8)


def test_equal_widths_are_one_number():
    config = SandwichLMConfig(sublayer_order="(sf)3", intermediate_size=[64, 64, 64])
    assert config.intermediate_size == 64
    assert SandwichLMConfig(sublayer_order="(sf)3", intermediate_size=tapered(3, 64)).intermediate_size == [96, 64, 32]


def test_widths_follow_the_sublayers_of_an_order():
    assert Order("fsf_0sf_0f").widths([3, 5, 7]) == {0: 3, 2: 5, 4: 5, 5: 7}
    assert Order("fsf_0sf_0f").widths(4) == dict.fromkeys((0, 2, 4, 5), 4)
