"""`g`: a short convolution of each channel between two gates."""

from .letters_letter import Letter, Sizes, Work

# of the configuration
KERNEL = "short_kernel_size"


def _parameters(sizes: Sizes) -> int:
    return 4 * sizes.hidden_size**2 + sizes.letter_fields[KERNEL] * sizes.hidden_size


def _multiply_adds(sizes: Sizes, work: Work) -> int:
    per_token = 3 * sizes.hidden_size + sizes.letter_fields[KERNEL]
    return sizes.hidden_size * (work.length * per_token + work.read * sizes.hidden_size)


LETTER = Letter(
    name="gated short convolution",
    colour="#e8a0bf",
    square="🔶",
    group="convolution",
    stacks=("single", "bidirectional"),
    cache="self",
    fields={KERNEL: 2},
    parameters=_parameters,
    multiply_adds=_multiply_adds,
    # what the next token needs, once and not as keys and values
    cache_width=lambda sizes: sizes.hidden_size // 2,
    cached_tokens=lambda sizes, length: sizes.letter_fields[KERNEL] - 1,
    slot_type="conv",
)
