"""What Qwen3-Next has in the place of a decoder's attention: gated attention, and the gated delta rule."""

from typing import Any

import torch

from sublayers.convert.weights import Piece, Pieces, refuse_others


def recurrence(old: Any) -> dict[str, Any]:
    """Take the fields of recurrences.

    Raises:
        ValueError: an activation that no recurrence here has.
    """
    refuse_others(old.to_dict(), {"hidden_act": "silu"}, old.model_type)
    return {
        "recurrence": "gated_delta",
        "recurrence_num_heads": old.linear_num_value_heads,
        "recurrence_head_dim": old.linear_value_head_dim,
        "recurrence_n_groups": old.linear_num_key_heads,
        "recurrence_state_size": old.linear_key_head_dim,
        "recurrence_conv_kernel": old.linear_conv_kernel_dim,
    }


def join(views: tuple[torch.Tensor, ...], *pieces: Piece) -> Piece:
    """Put rows of some pieces, given in groups (groups, rows, ...), one after the other."""
    names = tuple(name for piece in pieces for name in piece.names)
    return Piece(torch.cat([view.flatten(0, 1) for view in views]), names, "rows in another order", views)


def divide(pieces: Pieces, old: Any) -> Pieces:
    """Tell the rows of queries from those of gates, which take turns, a head at a time."""
    divided = dict(pieces)
    for kind in ("weight", "bias"):
        if (joint := divided.pop(f"mixer.q_proj.{kind}", None)) is not None:
            parts = joint.tensor.unflatten(0, (old.num_attention_heads, 2, -1)).unbind(1)
            for name, part in zip(("q_proj", "gate_proj"), parts, strict=True):
                divided[f"mixer.{name}.{kind}"] = join((part,), joint)
    return divided


def arrange(pieces: Pieces, old: Any) -> Pieces:
    """Put the rows of a recurrence, which are in groups by the heads of keys, in the order that they have here."""
    arranged, groups = dict(pieces), old.linear_num_key_heads
    shared = old.linear_num_value_heads // groups
    key, value = old.linear_key_head_dim, shared * old.linear_value_head_dim
    channels, numbers = arranged.pop("mixer.in_proj_qkvz.weight"), arranged.pop("mixer.in_proj_ba.weight")
    asked, keys, values, gates = channels.tensor.unflatten(0, (groups, -1)).split([key, key, value, value], 1)
    rates, decays = numbers.tensor.unflatten(0, (groups, -1)).chunk(2, 1)
    arranged["mixer.in_proj.weight"] = join((gates, values, keys, asked, decays, rates), channels, numbers)
    kernel = arranged["mixer.conv1d.weight"]
    asked, keys, values = kernel.tensor[None].split([groups * key, groups * key, groups * value], 1)
    arranged["mixer.conv1d.weight"] = join((values, keys, asked), kernel)
    return arranged
