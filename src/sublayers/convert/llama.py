"""Conversion of Llama, and of the decoders that are made as it is."""

from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from sublayers.configuration.configuration_sandwich_lm import SandwichLMConfig
from sublayers.configuration.order import Order
from sublayers.convert.decoders import assemble_decoder, read_state
from sublayers.convert.qwen3_next import arrange, divide, recurrence
from sublayers.convert.weights import LETTERS, SAME, Pieces, refuse_others

# the beginnings of class names, by model_type
DECODERS = {
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "gemma": "Gemma",
    "gemma2": "Gemma2",
    "gemma3_text": "Gemma3Text",
    "stablelm": "StableLm",
    "mixtral": "Mixtral",
    "olmoe": "Olmoe",
    "qwen2_moe": "Qwen2Moe",
    "qwen3_moe": "Qwen3Moe",
    "qwen3_next": "Qwen3Next",
}
# models with other parts, and which parts these are
UNCOVERED = {
    "deberta": "attention to relative positions with queries and keys of their own",
    "deberta-v2": "attention to relative positions with queries and keys of their own",
    "gemma3": "images",
    "lfm2_moe": "experts with biases",
    "lfm2_vl": "images",
    "olmo_hybrid": "norms at other places in layers of attention than in those of recurrence",
    "smollm3": "layers without rotary positions",
}
ATTENTION = {"self_attn": "mixer", "linear_attn": "mixer", "input_layernorm": "norm"}
FEED_FORWARD = {"mlp.gate_proj": "mixer.gate", "mlp.up_proj": "mixer.fc1", "mlp.down_proj": "mixer.fc2"}
# what a layer with experts has in the place of these, by transformers' names, and of itself
FEED_FORWARD |= {"mlp.gate": "mixer.router", "mlp.experts": "mixer.experts", "mlp.shared_expert": "mixer.shared_expert"}
FEED_FORWARD |= {"mlp.shared_expert_gate": "mixer.shared_expert_gate"}
# the parts of a layer's attention and feed-forward sublayer, by where their norms stand
PARTS = {
    "pre": (ATTENTION, FEED_FORWARD | {"post_attention_layernorm": "norm"}),
    "both": (
        ATTENTION | {"post_attention_layernorm": "output_norm"},
        FEED_FORWARD | {"pre_feedforward_layernorm": "norm", "post_feedforward_layernorm": "output_norm"},
    ),
}
# fields without a counterpart here, with the values at which they change nothing
NEUTRAL = dict.fromkeys(("qk_layernorm", "use_bidirectional_attention", "use_parallel_residual"), False)


def own_order(old: PreTrainedConfig) -> str:
    """Write the order of a source's sublayers.

    Raises:
        ValueError: a layer is of a kind that none here is, or has a window without a size.
    """
    window = getattr(old, "sliding_window", None) or None
    kinds = getattr(old, "layer_types", None) or ["full_attention"] * old.num_hidden_layers
    if old.model_type in ("mistral", "mixtral", "qwen3_moe"):
        # they have their window in every layer, whatever layer_types says
        kinds = ["full_attention" if window is None else "sliding_attention"] * old.num_hidden_layers
    known = {"full_attention": "s", "linear_attention": "r"} if old.model_type == "qwen3_next" else LETTERS
    for kind in kinds:
        if kind not in known or (known[kind] == "w" and window is None):
            raise ValueError(f"layers of {kind} with sliding_window={window} cannot be converted")
    return "".join(known[kind] + ("e" if has_experts(old, layer) else "f") for layer, kind in enumerate(kinds))


def read_field(old: Any, name: str, other: Any) -> Any:
    """Read a field that not all kinds of sources have, or take another value; what else is told changes nothing."""
    return getattr(old, name) if name in old.__dataclass_fields__ else other


def has_experts(old: Any, layer: int) -> bool:
    """Say whether a layer of a source has experts."""
    is_sparse = (layer + 1) % read_field(old, "decoder_sparse_step", 1) == 0
    return is_sparse and layer not in read_field(old, "mlp_only_layers", ()) and read_number(old) > 0


def read_number(old: Any) -> int:
    """Read how many experts a source has."""
    return read_field(old, "num_local_experts", read_field(old, "num_experts", 0))


def experts(old: Any, is_language_model: bool) -> dict[str, Any]:
    """Take the fields of experts; only the head of a language model adds their loss to its own."""
    # Mixtral's router is as those that say so
    others = {"norm_topk_prob": True, "moe_intermediate_size": old.intermediate_size, "router_jitter_noise": 0.0}
    others |= {"shared_expert_intermediate_size": 0}
    taken = {name: read_field(old, name, other) for name, other in others.items()}
    return taken | {
        "num_experts": read_number(old),
        "num_experts_per_tok": old.num_experts_per_tok,
        "shared_expert_gate": taken["shared_expert_intermediate_size"] > 0,
        "output_router_logits": old.output_router_logits and is_language_model,
        "router_aux_loss_coef": old.router_aux_loss_coef,
    }


def positions(old: Any) -> dict[str, Any]:
    """Take the fields of rotary positions and of local attention.

    Raises:
        ValueError: positions that no model here has.
    """
    rope, window, local_rope_theta = old.rope_parameters, getattr(old, "sliding_window", None) or None, None
    if old.model_type == "gemma3_text":
        refuse_others(rope["sliding_attention"], {"rope_type": "default"}, "local attention")
        rope, local_rope_theta = rope["full_attention"], rope["sliding_attention"]["rope_theta"]
        # where tokens see both sides, it counts their own
        window = window and window - bool(old.use_bidirectional_attention)
    share = rope.get("partial_rotary_factor")
    # the other decoders ignore the field or fail, by their kind of scaling
    if old.model_type not in ("stablelm", "qwen3_next") and share not in (None, 1):
        raise ValueError(f"partial_rotary_factor={share} cannot be converted; {old.model_type} turns whole heads")
    return {
        "position_embedding_type": "rotary",
        # up to transformers 4, the kind of scaling had this name, too
        "rope_parameters": {name: value for name, value in rope.items() if name != "type"},
        "attention_window": window,
        "local_rope_theta": local_rope_theta,
    }


def from_llama(source: PreTrainedModel, sublayer_order: str | None = None) -> tuple[PreTrainedModel, Pieces]:
    """Convert one of `DECODERS` or EuroBERT with its head; in its own order, the default, outputs are equal.

    Raises:
        ValueError: an order with other numbers of sublayers than the checkpoint, or a part that no model here has.
    """
    old: Any = source.config
    is_gemma = old.model_type.startswith("gemma")
    told = {name: getattr(old, name, None) or False for name in NEUTRAL}
    if old.model_type == "gemma3_text":
        del told["use_bidirectional_attention"]
        # transformers ignores it
        refuse_others(old.to_dict(), {"attn_logit_softcapping": None}, old.model_type)
    refuse_others(told, NEUTRAL, old.model_type)
    refuse_others(old.to_dict(), {"clip_qkv": None}, old.model_type)
    # by which attention's scores are divided
    refuse_others(old.to_dict(), {"query_pre_attn_scalar": getattr(old, "head_dim", None)}, old.model_type)
    own = own_order(old)
    order = Order(sublayer_order or own).letters
    state = read_state(source)
    layer_norm = "model.norm.bias" in state
    parts = {name.split(".", 3)[-1] for name in state if name.startswith("model.layers.")}
    is_next = old.model_type == "qwen3_next"
    norm_position: Any = "both" if "pre_feedforward_layernorm.weight" in parts else "pre"
    fields = {name: getattr(old, name) for name in (*SAME, "num_key_value_heads", "use_cache")}
    fields |= {name: getattr(old, name, None) for name in ("attn_logit_softcapping", "final_logit_softcapping")}
    fields |= positions(old)
    if "w" not in order:
        fields |= dict.fromkeys(("attention_window", "local_rope_theta"))
    if "e" in order:
        fields |= experts(old, "score.weight" not in state)
    if "r" in order:
        fields |= recurrence(old)
    # StableLM has a dropout of what feed-forward sublayers add
    dropout = getattr(old, "hidden_dropout", 0.0)
    config = SandwichLMConfig(
        **fields,
        sublayer_order=order,
        hidden_act=getattr(old, "hidden_activation", None) or old.hidden_act,
        head_dim=getattr(old, "head_dim", None),
        qk_norm="self_attn.q_norm.weight" in parts,
        qk_norm_per_head=old.model_type != "olmoe",
        attention_output_gate=is_next,
        attention_bias="self_attn.q_proj.bias" in parts,
        attention_output_bias="self_attn.o_proj.bias" in parts,
        mlp_bias="mlp.up_proj.bias" in parts,
        gated_feed_forward=True,
        dropout=dropout,
        **dict.fromkeys(("embedding_dropout", "attention_output_dropout"), 0.0 if dropout else None),
        activation_dropout=0.0,
        norm_position=norm_position,
        norm_type="layer" if layer_norm else "rms",
        norm_unit_offset=is_gemma or is_next,
        layer_norm_eps=old.layer_norm_eps if layer_norm else old.rms_norm_eps,
        final_norm=True,
        scale_embedding=is_gemma,
    )
    sublayers: dict[str, list[Pieces]] = {letter: [] for letter in own}
    for place, letter in enumerate(own):
        names = PARTS[norm_position][letter in "fe"]
        pieces = state.take_below(names, f"model.layers.{place // 2}.")
        if is_next and letter in "rs":
            pieces = (arrange if letter == "r" else divide)(pieces, old)
        sublayers[letter].append(pieces)
    # the remaining names equal ours
    return assemble_decoder(source, config, sublayers, state)
