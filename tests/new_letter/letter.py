"""`y`: a moving average, whose state has a fixed size."""

from sublayers.configuration.letters.letter import Letter, Sizes, Work


def _channels(sizes: Sizes) -> int:
    return sizes.letter_fields["state_size"]


def _multiply_adds(sizes: Sizes, work: Work) -> int:
    return _channels(sizes) * (work.length * (sizes.hidden_size + 1) + work.read * sizes.hidden_size)


LETTER = Letter(
    name="moving average",
    colour="#000000",
    square="⬛",
    group="recurrence",
    cache="self",
    fields={"state_size": 2},
    parameters=lambda sizes: _channels(sizes) * (2 * sizes.hidden_size + 1),
    multiply_adds=_multiply_adds,
    # the state, and for each token the number that counts it
    cache_width=lambda sizes: 1,
    cached_tokens=lambda sizes, length: _channels(sizes) // 2 + length,
    slot_type="hybrid",
)
