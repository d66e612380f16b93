"""Conversion of fairseq's models of dynamic and lightweight convolutions (Wu et al. 2019)."""

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import torch

from sublayers.modeling.modeling_sandwich_seq2seq import SandwichSeq2SeqForConditionalGeneration
from sublayers.training.convert.seq2seq import LAYER, SIDES, put_together, read_options, take_parts, upgrade
from sublayers.training.convert.weights import Pieces, State

CONVOLUTION = {"linear1": "mixer.in_proj", "linear2": "mixer.out_proj"}
# the names of a convolution's norm; `upgrade` handles those of the Transformer
NORMS = {"encoder": "self_attn_layer_norm", "decoder": "conv_layer_norm"}
KERNELS = {"d": "conv.weight_linear.weight", "l": "conv.weight"}


def take_stack(state: State, side: str, num_attention_heads: int) -> tuple[str, dict[str, list[Pieces]], list[int]]:
    """Take the layers of the encoder or the decoder: their order, their weights by kind, the widths of their kernels.

    Raises:
        ValueError: a weight that is missing.
    """
    others = [(letter, names) for letter, names in LAYER[2:] if letter != "c" or side == "decoder"]
    order = ""
    widths: list[int] = []
    sublayers: dict[str, list[Pieces]] = {}
    while any(key.startswith(layer := f"{side}.layers.{len(widths)}.") for key in state):
        letter = "d" if layer + KERNELS["d"] in state else "l"
        kernels = state.take_piece(layer + KERNELS[letter])
        # one row for each head and place under its kernel; lightweight kernels depend on nothing
        kernels = kernels if letter == "d" else kernels.reshape(-1, 1)
        widths.append(kernels.shape[0] // num_attention_heads)
        names = CONVOLUTION | {NORMS[side]: "norm"}
        convolution = state.take_all({layer + theirs: ours for theirs, ours in names.items()})
        sublayers.setdefault(letter, []).append(convolution | {"mixer.weight_proj.weight": kernels})
        for other, names in others:
            taken = state.take_all({layer + theirs: ours for theirs, ours in names.items()})
            sublayers.setdefault(other, []).append(taken)
        order += letter + "".join(other for other, _ in others)
    return order, sublayers, widths


def from_fairseq_lightconv(
    weights: Mapping[str, torch.Tensor],
    num_attention_heads: int,
    encoder_sublayer_order: str | None = None,
    decoder_sublayer_order: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[SandwichSeq2SeqForConditionalGeneration, Pieces]:
    """Convert fairseq's LightConv or DynamicConv, in its own order, such as (df)7 and (dcf)6, or in another.

    `options` are those of `from_fairseq_seq2seq`. Attention and kernels have one dropout here; it is the kernels'.
    Dropout in front of convolutions, their `input_dropout`, is left out.

    Raises:
        ValueError: encoder and decoder with other widths at the same depth or gates in one of them only, kernels
            without a softmax, or what `from_fairseq_seq2seq` refuses.
    """
    options = options or {}
    if not options.get("weight_softmax", True):
        raise ValueError("kernels without a softmax, fairseq's weight_softmax=False, cannot be converted")
    state = upgrade(weights)
    encoder, decoder = (take_stack(state, side, num_attention_heads) for side in SIDES)
    widths = [{*pair} - {None} for pair in zip_longest(encoder[2], decoder[2])]
    if any(len(pair) > 1 for pair in widths):
        raise ValueError(f"kernels of widths {encoder[2]} and {decoder[2]} cannot be converted; they must agree")
    convolutions = [pieces for stack in (encoder, decoder) for letter in "dl" for pieces in stack[1].get(letter, ())]
    # a gate has as many rows as what it opens
    gated = {each["mixer.in_proj.bias"].shape[0] > each["mixer.out_proj.weight"].shape[1] for each in convolutions}
    if len(gated) > 1:
        raise ValueError("gates in only some convolutions, fairseq's encoder_glu and decoder_glu, cannot be converted")
    fields = read_options(options)
    if "weight_dropout" in options:
        fields["attention_dropout"] = options["weight_dropout"]
    return put_together(
        SandwichSeq2SeqForConditionalGeneration,
        take_parts(state, stacks=(encoder[1], decoder[1])),
        encoder_sublayer_order=encoder_sublayer_order or encoder[0],
        decoder_sublayer_order=decoder_sublayer_order or decoder[0],
        num_attention_heads=num_attention_heads,
        kernel_sizes=max(encoder[2], decoder[2], key=len),
        gated_convolutions=gated.pop(),
        **fields,
    )
