"""Conversion of language models of attention and Mamba-2: Nemotron-H, Bamba and Granite 4."""

import math
from typing import Any

from transformers import PreTrainedModel

from sublayers.configuration.configuration_sandwich_lm import SandwichLMConfig
from sublayers.configuration.order import Order
from sublayers.convert.decoders import assemble_decoder, read_state
from sublayers.convert.llama import experts, read_number
from sublayers.convert.weights import SAME, Pieces, refuse_others

# the beginnings of class names, by model_type
HYBRIDS = {"bamba": "Bamba", "granitemoehybrid": "GraniteMoeHybrid", "nemotron_h": "NemotronH"}
# options that change their function, with the only values that are supported here
ONLY: dict[str, dict[str, Any]] = {
    # the activation is that of the convolution, too
    "bamba": {"mamba_conv_bias": True, "mamba_proj_bias": False, "hidden_act": "silu", "z_loss_coefficient": 0.0},
    "granitemoehybrid": {"mamba_conv_bias": True, "mamba_proj_bias": False, "hidden_act": "silu"},
    "nemotron_h": {"use_conv_bias": True, "use_bias": False, "mamba_hidden_act": "silu", "sliding_window": None},
}
# the names of sizes, by ours
MAMBA = {
    "recurrence_num_heads": "mamba_n_heads",
    "recurrence_head_dim": "mamba_d_head",
    "recurrence_n_groups": "mamba_n_groups",
    "recurrence_state_size": "mamba_d_state",
    "recurrence_conv_kernel": "mamba_d_conv",
}
RECURRENCE = {
    "bamba": MAMBA,
    "granitemoehybrid": MAMBA,
    "nemotron_h": {
        "recurrence_num_heads": "mamba_num_heads",
        "recurrence_head_dim": "mamba_head_dim",
        "recurrence_n_groups": "n_groups",
        "recurrence_state_size": "ssm_state_size",
        "recurrence_conv_kernel": "conv_kernel",
    },
}
# the letters of a layer, by its type
PAIRS = {"linear_attention": "rf", "full_attention": "sf"}
LAYERS = {
    "bamba": PAIRS,
    "granitemoehybrid": PAIRS,
    "nemotron_h": {"linear_attention": "r", "full_attention": "s", "mlp": "f"},
}
# where the parts of a layer's sublayers are, by letter
MIXERS = {
    "r": {"input_layernorm": "norm", "mamba": "mixer"},
    "s": {"input_layernorm": "norm", "self_attn": "mixer"},
}
PARTS: dict[str, dict[str, dict[str, str]]] = {
    "bamba": MIXERS
    | {
        "f": {
            "pre_ff_layernorm": "norm",
            "feed_forward.gate_proj": "mixer.gate",
            "feed_forward.up_proj": "mixer.fc1",
            "feed_forward.down_proj": "mixer.fc2",
        },
    },
    "granitemoehybrid": MIXERS
    | {
        "f": {"post_attention_layernorm": "norm", "shared_mlp.output_linear": "mixer.fc2"},
        "e": {
            "post_attention_layernorm": "norm",
            "block_sparse_moe": "mixer",
            "shared_mlp.output_linear": "mixer.shared_expert.down_proj",
        },
    },
    "nemotron_h": {
        "r": {"norm": "norm", "mixer": "mixer"},
        "s": {"norm": "norm", "mixer": "mixer"},
        "f": {"norm": "norm", "mixer.up_proj": "mixer.fc1", "mixer.down_proj": "mixer.fc2"},
    },
}
# what Granite's joint map of a gate is, by letter
GATES = {"f": ("mixer.gate", "mixer.fc1"), "e": ("mixer.shared_expert.gate_proj", "mixer.shared_expert.up_proj")}
# the maps whose results join the residual stream
OUTPUTS = {"o_proj", "out_proj", "fc2", "down_proj"}


def least_step(old: Any) -> float:
    """Find the least step of a source's recurrences.

    Raises:
        ValueError: there is a largest one, too.
    """
    # Nemotron-H ignores its limit (transformers 5.24)
    low, high = (old.time_step_min, math.inf) if old.model_type == "nemotron_h" else old.time_step_limit
    if high != math.inf:
        raise ValueError(f"time_step_limit={old.time_step_limit} cannot be converted; steps here have no upper limit")
    return low


def positions(old: Any) -> dict[str, Any]:
    """Take the fields of positions, which Nemotron-H and Granite 4 do without, or may."""
    if old.model_type == "nemotron_h" or getattr(old, "position_embedding_type", "rope") != "rope":
        return {"position_embedding_type": "none"}
    return {"position_embedding_type": "rotary", "rope_parameters": dict(old.rope_parameters)}


def multiply(old: Any, is_tied: bool, sublayers: dict[str, list[Pieces]], others: Pieces) -> None:
    """Multiply weights by Granite's factors of embeddings, scores, residuals and logits.

    Tied embeddings are those of the logits, so that the final norm divides by their factor.
    """
    head_dim = getattr(old, "head_dim", None) or old.hidden_size // old.num_attention_heads
    for pieces in (pieces for all_of_a_kind in sublayers.values() for pieces in all_of_a_kind):
        for name, piece in pieces.items():
            if not OUTPUTS.isdisjoint(name.split(".")):
                pieces[name] = piece.multiply(old.residual_multiplier)
            elif name.startswith("mixer.q_proj."):
                pieces[name] = piece.multiply(old.attention_multiplier * head_dim**0.5)
    factors = {"model.embed_tokens.weight": old.embedding_multiplier, "lm_head.weight": 1 / old.logits_scaling}
    if is_tied:
        factors["lm_head.weight"] = old.embedding_multiplier
        factors["model.norm.weight"] = 1 / (old.embedding_multiplier * old.logits_scaling)
    for name in factors.keys() & others.keys():
        others[name] = others[name].multiply(factors[name])


def from_hybrid(source: PreTrainedModel, sublayer_order: str | None = None) -> tuple[PreTrainedModel, Pieces]:
    """Convert one of `HYBRIDS` with its head; in its own order, the default, outputs are equal.

    Padding that stands between tokens changes the states of the source, but not those of the model here.

    Raises:
        ValueError: an order with other numbers of sublayers than the checkpoint, or a part that no model here has.
    """
    old: Any = source.config
    kind = old.model_type
    refuse_others(old.to_dict(), ONLY[kind], kind)
    if unknown := sorted({*old.layers_block_type} - LAYERS[kind].keys()):
        raise ValueError(f"layers_block_type with {unknown[0]!r} cannot be converted; no model here has such layers")
    own = [LAYERS[kind][each] for each in old.layers_block_type]
    if is_granite := kind == "granitemoehybrid":
        own = [each.replace("f", "e") if read_number(old) else each for each in own]
    order = Order(sublayer_order or "".join(own))
    state = read_state(source)
    recurrence: dict[str, Any] = {}
    if "r" in order:
        recurrence = {ours: getattr(old, theirs) for ours, theirs in RECURRENCE[kind].items()}
        recurrence |= {"recurrence": "mamba2", "recurrence_time_step_min": least_step(old)}
    names = {name.split(".", 3)[-1] for name in state if name.startswith("model.layers.")}
    is_gated = kind != "nemotron_h"
    fields: dict[str, Any] = {name: getattr(old, name) for name in (*SAME, "num_key_value_heads", "use_cache")}
    fields |= dict.fromkeys(("dropout", "activation_dropout"), 0.0)
    if (head := source.get_output_embeddings()) is not None:
        # Nemotron-H ties nothing, whatever it says (transformers 5.24)
        fields["tie_word_embeddings"] = head.weight is source.get_input_embeddings().weight  # type: ignore[union-attr]
    if is_granite:
        fields["intermediate_size"] = old.shared_intermediate_size
    if "e" in order:
        fields |= experts(old, head is not None)
        fields |= {"shared_expert_intermediate_size": old.shared_intermediate_size, "shared_expert_gate": False}
    config = SandwichLMConfig(
        **fields,
        **positions(old),
        **recurrence,
        sublayer_order=str(order),
        hidden_act=old.hidden_act if is_gated else old.mlp_hidden_act,
        gated_feed_forward=is_gated,
        head_dim=getattr(old, "head_dim", None),
        attention_bias=any(name.endswith("q_proj.bias") for name in names),
        attention_output_bias=any(name.endswith("o_proj.bias") for name in names),
        mlp_bias=any(name.endswith("up_proj.bias") for name in names),
        norm_type="rms",
        layer_norm_eps=old.rms_norm_eps if is_gated else old.layer_norm_epsilon,
        final_norm=True,
        scale_embedding=False,
    )
    sublayers: dict[str, list[Pieces]] = {letter: [] for letter in "".join(own)}
    for i, letters in enumerate(own):
        for letter in letters:
            pieces = state.take_below(PARTS[kind][letter], f"model.layers.{i}.")
            if is_granite and letter in GATES:
                pieces |= state.take_joint(f"model.layers.{i}.shared_mlp.input_linear", GATES[letter])
            sublayers[letter].append(pieces)
    others = state.take_below({"model.embeddings": "model.embed_tokens", "model.norm_f": "model.norm"})
    others |= state.take_below({"model.final_layernorm": "model.norm"})
    # the remaining names equal ours
    others |= state
    if is_granite:
        multiply(old, head is not None and config.tie_word_embeddings, sublayers, others)
    return assemble_decoder(source, config, sublayers, others)
