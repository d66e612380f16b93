"""Conversion of Llama, and of the decoders that are made as it is."""

from transformers import PreTrainedConfig, PreTrainedModel

from sublayers.configuration.configuration_sandwich_lm import SandwichLMConfig
from sublayers.configuration.sublayer_order import expand
from sublayers.convert.decoders import assemble_decoder
from sublayers.convert.weights import LETTERS, SAME, Pieces, State, refuse_others

# the beginnings of class names, by model_type
DECODERS = {
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "gemma": "Gemma",
    "stablelm": "StableLm",
}
# models with other parts, and which parts these are
UNCOVERED = {
    "deberta": "attention to relative positions with queries and keys of their own",
    "deberta-v2": "attention to relative positions with queries and keys of their own",
    "gemma2": "norms behind its sublayers",
    "gemma3": "norms behind its sublayers",
    "gemma3_text": "norms behind its sublayers",
    "mixtral": "experts",
    "qwen2_moe": "experts",
    "qwen3_moe": "experts",
    "smollm3": "layers without rotary positions",
}
# the parts of a layer, by the letter of the sublayer that they belong to
PARTS = {
    "s": {"self_attn": "mixer", "input_layernorm": "norm"},
    "f": {
        "mlp.gate_proj": "mixer.gate",
        "mlp.up_proj": "mixer.fc1",
        "mlp.down_proj": "mixer.fc2",
        "post_attention_layernorm": "norm",
    },
}
# fields without a counterpart here, with the values at which they change nothing
NEUTRAL = dict.fromkeys(("qk_layernorm", "use_bidirectional_attention", "use_parallel_residual"), False)


def own_order(old: PreTrainedConfig) -> str:
    """Say in which order the sublayers of a source run.

    Raises:
        ValueError: a layer is of a kind that none here is, or has a window without a size.
    """
    window = getattr(old, "sliding_window", None)
    kinds = getattr(old, "layer_types", None) or ["full_attention"] * old.num_hidden_layers
    if old.model_type == "mistral":
        # Mistral has its window in every layer, whatever layer_types says
        kinds = ["full_attention" if window is None else "sliding_attention"] * old.num_hidden_layers
    order = ""
    for kind in kinds:
        if kind not in LETTERS or (LETTERS[kind] == "w" and window is None):
            raise ValueError(f"layers of {kind} with sliding_window={window} cannot be converted")
        order += f"{LETTERS[kind]}f"
    return order


def from_llama(source: PreTrainedModel, sublayer_order: str | None = None) -> tuple[PreTrainedModel, Pieces]:
    """Convert one of `DECODERS` or EuroBERT with its head; in the interleaved order, the default, outputs are equal.

    Raises:
        ValueError: an order with other numbers of sublayers than the checkpoint, or a part that no model here has.
    """
    old = source.config
    told = {name: getattr(old, name, None) or False for name in NEUTRAL}
    refuse_others(told, NEUTRAL, old.model_type)
    share = old.rope_parameters.get("partial_rotary_factor")
    # the other decoders ignore the field or fail, by their kind of scaling
    if old.model_type != "stablelm" and share not in (None, 1):
        raise ValueError(f"partial_rotary_factor={share} cannot be converted; {old.model_type} turns whole heads")
    order = expand(sublayer_order or own_order(old))
    body = "" if source.base_model is source else f"{source.base_model_prefix}."
    state = State(
        source.state_dict(), lambda name: f"model.{name.removeprefix(body)}" if name.startswith(body) else name
    )
    layer_norm = "model.norm.bias" in state
    # StableLM has a dropout of what feed-forward sublayers add
    dropout = getattr(old, "hidden_dropout", 0.0)
    config = SandwichLMConfig(
        **{name: getattr(old, name) for name in (*SAME, "hidden_act", "num_key_value_heads", "use_cache")},
        sublayer_order=order,
        attention_window=old.sliding_window if "w" in order else None,
        head_dim=getattr(old, "head_dim", None),
        qk_norm="model.layers.0.self_attn.q_norm.weight" in state,
        attention_bias="model.layers.0.self_attn.q_proj.bias" in state,
        attention_output_bias="model.layers.0.self_attn.o_proj.bias" in state,
        mlp_bias="model.layers.0.mlp.up_proj.bias" in state,
        gated_feed_forward=True,
        dropout=dropout,
        **dict.fromkeys(("embedding_dropout", "attention_output_dropout"), 0.0 if dropout else None),
        activation_dropout=0.0,
        norm_type="layer" if layer_norm else "rms",
        norm_unit_offset=old.model_type == "gemma",
        layer_norm_eps=old.layer_norm_eps if layer_norm else old.rms_norm_eps,
        final_norm=True,
        position_embedding_type="rotary",
        # up to transformers 4, the kind of scaling had this name, too
        rope_parameters={name: value for name, value in old.rope_parameters.items() if name != "type"},
        scale_embedding=old.model_type == "gemma",
    )
    letters = [letter for letter in expand(own_order(old)) if letter != "f"]
    sublayers: dict[str, list[Pieces]] = {letter: [] for letter in dict.fromkeys([*letters, "f"])}
    for i, mixer in enumerate(letters):
        for letter, names in ((mixer, PARTS["s"]), ("f", PARTS["f"])):
            sublayers[letter].append(state.take_below(names, f"model.layers.{i}."))
    # the remaining names equal ours
    return assemble_decoder(source, config, sublayers, state)
