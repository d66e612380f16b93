"""Dynamic and lightweight convolutions (Wu et al. 2019) in the layers of fairseq's encoder-decoders."""

from itertools import zip_longest
from typing import Any

from sublayers.convert.weights import Pieces, State

CONVOLUTION = {"linear1": "mixer.in_proj", "linear2": "mixer.out_proj"}
# the names of a convolution's norm; `upgrade` handles those of the Transformer
NORMS = {"encoder": "self_attn_layer_norm", "decoder": "conv_layer_norm"}
KERNELS = {"d": "conv.weight_linear.weight", "l": "conv.weight"}
OURS = "mixer.weight_proj.weight"


def take_convolution(state: State, side: str, layer: str) -> tuple[str, Pieces]:
    """Take the convolution of a layer of the encoder or the decoder, and say of which kind it is.

    Raises:
        ValueError: a weight that is missing.
    """
    letter = "d" if layer + KERNELS["d"] in state else "l"
    kernels = state.take_piece(layer + KERNELS[letter])
    # one row for each head and place under its kernel; lightweight kernels depend on nothing
    kernels = kernels if letter == "d" else kernels.reshape(-1, 1)
    return letter, state.take_all(CONVOLUTION | {NORMS[side]: "norm"}, layer) | {OURS: kernels}


def kernel_widths(order: str, sublayers: dict[str, list[Pieces]], num_attention_heads: int) -> list[int]:
    """Read how many tokens each convolution of a stack reads."""
    remaining = {letter: iter(sublayers[letter]) for letter in KERNELS}
    return [next(remaining[kind])[OURS].shape[0] // num_attention_heads for kind in order if kind in KERNELS]


def read_convolutions(stacks: list[tuple[str, dict[str, list[Pieces]]]], num_attention_heads: int) -> dict[str, Any]:
    """Read the fields of convolutions from an encoder and a decoder.

    Raises:
        ValueError: other widths at the same depth, or gates in one of them only.
    """
    encoder, decoder = (kernel_widths(*stack, num_attention_heads) for stack in stacks)
    if any(len({*pair} - {None}) > 1 for pair in zip_longest(encoder, decoder)):
        raise ValueError(f"kernels of widths {encoder} and {decoder} cannot be converted; they must agree")
    convolutions = [pieces for _, sublayers in stacks for letter in KERNELS for pieces in sublayers[letter]]
    # a gate has as many rows as what it opens
    gated = {each["mixer.in_proj.bias"].shape[0] > each["mixer.out_proj.weight"].shape[1] for each in convolutions}
    if len(gated) > 1:
        raise ValueError("gates in only some convolutions, fairseq's encoder_glu and decoder_glu, cannot be converted")
    return {"kernel_sizes": max(encoder, decoder, key=len), "gated_convolutions": gated.pop()} if gated else {}
