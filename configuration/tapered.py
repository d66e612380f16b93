"""Widths of feed-forward sublayers that become narrower, or wider, with depth."""

from math import cos, pi


def tapered(n: int, width: int, first: float = 1.5, last: float = 0.5, multiple: int = 8) -> list[int]:
    """Widths of `n` sublayers along a cosine from `first` to `last` times a width, with that width as their mean.

    For `intermediate_size`; the defaults are those of "Tapered LMs" (arXiv 2606.23670). Each is a multiple of
    `multiple`, and their sum is as near to that of `n` widths as this allows.

    Raises:
        ValueError: a number that is too small.
    """
    if n < 1 or multiple < 1 or min(first, last) <= 0:
        raise ValueError(f"tapered({n}, {width}, {first}, {last}, {multiple}) needs positive numbers; give larger ones")
    # where they are along the way, 0 to 1; a single one is in its middle
    ways = [(1 - cos(pi * i / (n - 1))) / 2 for i in range(n)] if n > 1 else [0.5]
    exact = [2 * width * (first + (last - first) * way) / (first + last) / multiple for way in ways]
    units = [int(each) for each in exact]
    # the sum of what was cut off goes to those that lost most
    rest = round(n * width / multiple) - sum(units)
    for i in sorted(range(n), key=lambda i: units[i] - exact[i])[:rest]:
        units[i] += 1
    if min(units) < 1:
        raise ValueError(f"tapered({n}, {width}, {first}, {last}, {multiple}) has a width of 0; give a larger width")
    return [multiple * unit for unit in units]
