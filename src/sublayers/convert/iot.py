"""Conversion of the checkpoints of IOT's authors, who changed fairseq 0.6.2."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sublayers.convert.seq2seq import put_together, read_options, take_parts, upgrade
from sublayers.convert.weights import Pieces
from sublayers.modeling.modeling_iot_seq2seq import IOTSeq2SeqForConditionalGeneration

PREDICTOR = "encoder.embed_order"
# block orders by their code, which is the paper's (Table 11) minus 1
ENCODER_ORDERS = ("sf", "fs")
DECODER_ORDERS = ("scf", "fsc", "cfs", "csf", "sfc", "fcs")
# the codes of the paper's choice for each number of orders (A.3)
CHOICES = {2: (3, 5), 3: (0, 3, 5), 4: (0, 1, 3, 5), 5: (0, 1, 3, 4, 5), 6: range(6)}
# fields of the configuration, and what the authors call them
OPTIONS = {
    "clamp_gumbel": "gs_clamp",
    "min_order_probability": "clamp_value",
    "diversity_weight": "diversity",
    "sharpness_weight": "kl",
    "label_smoothing": "label_smoothing",
    "predictor_dropout": "dropout",
    "gumbel_temperature": "gumbel_softmax_max",
    "gumbel_temperature_min": "gumbel_softmax_min",
    "gumbel_temperature_decay": "gumbel_softmax_tau_r",
}


def name_orders(codes: Sequence[int], orders: Sequence[str], side: str) -> list[str]:
    """Find the block orders with these codes.

    Raises:
        ValueError: there is none.
    """
    if unknown := sorted(set(codes) - set(range(len(orders)))):
        raise ValueError(f"there is no {side} order {unknown[0]}; the codes are 0 to {len(orders) - 1}")
    return [orders[code] for code in codes]


def from_fairseq_iot(
    weights: Mapping[str, torch.Tensor],
    num_attention_heads: int,
    options: Mapping[str, Any] = {},
) -> tuple[IOTSeq2SeqForConditionalGeneration, Pieces]:
    """Convert a checkpoint of IOT's released code, which trains as that code does.

    `options` are flat as the command line's; `encoder_max_order` has to be among them, those that are not given have
    the paper's values. Their `decoder_orders` are the released codes, by default the paper's choice for their number.

    Raises:
        ValueError: an unknown order or number of encoder orders, more or fewer orders than the predictor has, or what
            `from_fairseq_seq2seq` refuses.
    """
    if "encoder_max_order" not in options:
        raise ValueError(
            "the file does not tell in how many orders its encoder runs; convert the authors' own .pt file, or call "
            "from_fairseq_iot with options={'encoder_max_order': 1} or 2"
        )
    state = upgrade(weights)
    predictor = state.take_piece(PREDICTOR)
    number = predictor.shape[0]
    codes = options.get("decoder_orders") or CHOICES.get(number, ())
    if len(codes) != number:
        raise ValueError(
            f"{PREDICTOR} chooses among {number} decoder orders, but {list(codes)} are {len(codes)}; give the "
            "codes with which it was trained as decoder_orders"
        )
    parts = take_parts(state)
    if number > 1:
        parts.others["model.encoder.decoder_order_predictor.weight"] = predictor
    return put_together(
        IOTSeq2SeqForConditionalGeneration,
        parts,
        num_attention_heads=num_attention_heads,
        encoder_orders=name_orders(range(options["encoder_max_order"]), ENCODER_ORDERS, "encoder"),
        decoder_orders=name_orders(codes, DECODER_ORDERS, "decoder"),
        num_encoder_blocks=len(parts.stacks[0][1]["s"]),
        num_decoder_blocks=len(parts.stacks[1][1]["s"]),
        order_paths="paired",
        shared_encoder=False,
        gumbel_per_pass=True,
        weighted_smoothing=False,
        **{field: options[name] for field, name in OPTIONS.items() if name in options},
        **read_options(options),
    )
