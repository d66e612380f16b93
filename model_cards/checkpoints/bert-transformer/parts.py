"""Which parts of sublayers go together."""

from collections.abc import Sequence
from typing import Any

from .letters_letter import Letter


def check_parts(config: Any, kinds: Sequence[Letter]) -> None:
    """Check that the parts of a configuration fit each other, and the kinds of its sublayers.

    Raises:
        ValueError: some do not.
    """
    by_place = {"first_norm": (True,), "pre_attention_act": (None, config.hidden_act)}
    for name in [name for name, fitting in by_place.items() if getattr(config, name) not in fitting]:
        if shared := [str(order) for order in config.orders.values() if order.shares_sublayers]:
            raise ValueError(
                f"{name}={getattr(config, name)!r} makes sublayers differ by place, and those of one name in "
                f"{shared[0]!r} do not; leave it out"
            )
    if config.local_rope_theta is not None and (config.position_embedding_type != "rotary" or not config.has_windows):
        raise ValueError(
            f"local_rope_theta={config.local_rope_theta} is used only by w with rotary positions; leave it out"
        )
    # those of convolutions have the whole width
    divided = config.head_dim is None or any(kind.group == "convolution" for kind in kinds)
    if divided and config.hidden_size % config.num_attention_heads:
        raise ValueError(
            f"hidden_size={config.hidden_size} is not a multiple of num_attention_heads={config.num_attention_heads}; "
            "give another number of heads"
        )
    if config.num_attention_heads % config.key_value_heads:
        raise ValueError(
            f"num_attention_heads={config.num_attention_heads} is not a multiple of "
            f"num_key_value_heads={config.num_key_value_heads}, but equally many must share each; give another number"
        )
    if config.position_embedding_type == "rotary":
        rope = config.rope_parameters or {}
        width = int(config.head_width * (rope.get("partial_rotary_factor") or 1))
        # the formula of dynamic scaling divides by one pair less
        least = 4 if rope.get("rope_type") == "dynamic" else 2
        if width % 2 or width < least:
            raise ValueError(
                f"rotary positions turn {width} of the {config.head_width} channels of a head, but need an even "
                f"number, {least} or more; give another head_dim or partial_rotary_factor"
            )
    if not (config.qk_norm or config.qk_norm_per_head):
        raise ValueError("qk_norm_per_head=False says how queries and keys are normalised; give qk_norm=True, too")
    if not config.first_norm and config.norm_position == "post":
        raise ValueError("first_norm=False needs norms before sublayers; give norm_position='pre'")
    if config.norm_unit_offset and (config.norm_type != "rms" or not config.norm_affine):
        raise ValueError("norm_unit_offset=True needs RMS norms with a gain; give norm_type='rms' and norm_affine=True")
    if config.relative_key_distance is not None:
        others = {
            f"the sublayers of {[*map(str, config.orders.values())]}, of which only s knows distances": any(
                kind.is_local or kind.reads_fixed_states for kind in kinds
            ),
            "position_embedding_type='rotary'": config.position_embedding_type == "rotary",
            f"attn_logit_softcapping={config.attn_logit_softcapping}": config.attn_logit_softcapping is not None,
        }
        for other, is_there in others.items():
            if is_there:
                raise ValueError(
                    f"relative_key_distance={config.relative_key_distance} does not go together with {other}; leave "
                    "one of them out"
                )
