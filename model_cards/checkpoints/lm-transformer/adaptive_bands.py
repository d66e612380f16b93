"""How adaptive vocabularies are divided into bands: the rarer a word, the narrower its vector."""

from itertools import pairwise


def divide(cutoffs: list[int] | None, vocab_size: int, width: int, factor: int) -> list[tuple[int, int]]:
    """Say how many words each band has, and how wide their vectors are.

    Raises:
        ValueError: the vocabulary ends before the last band begins.
    """
    cutoffs = cutoffs or []
    # not a check of the configuration: the vocabulary may be set later, when its tokenizer is known
    if cutoffs and cutoffs[-1] >= vocab_size:
        raise ValueError(
            f"adaptive_cutoffs={cutoffs} leave no word of vocab_size={vocab_size} for the last band; give smaller ones"
        )
    ends = pairwise([0, *cutoffs, vocab_size])
    return [(end - start, width // factor**i) for i, (start, end) in enumerate(ends)]


def check_cutoffs(cutoffs: list[int] | None, name: str, width: int, factor: int) -> None:
    """Check the cutoffs, and that a width, of that name, can be divided for every band.

    Raises:
        ValueError: cutoffs that do not increase from above 0, or a width that cannot be divided.
    """
    if cutoffs is None:
        return
    if not cutoffs or any(start >= end for start, end in pairwise([0, *cutoffs])):
        raise ValueError(f"adaptive_cutoffs={cutoffs} must increase from above 0; leave them out for a single table")
    if width % factor ** len(cutoffs):
        raise ValueError(
            f"{name}={width} cannot be divided by adaptive_factor={factor} for each of adaptive_cutoffs={cutoffs}; "
            "give a smaller factor or fewer cutoffs"
        )
