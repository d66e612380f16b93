"""Conversion of LFM2, whose layers have attention or a gated short convolution before each feed-forward sublayer."""

from typing import Any

from transformers import PreTrainedModel

from sublayers.configuration.configuration_sandwich_lm import SandwichLMConfig
from sublayers.configuration.order import Order
from sublayers.convert.decoders import assemble_decoder, read_state
from sublayers.convert.llama import positions
from sublayers.convert.weights import SAME, Pieces, refuse_others

LETTERS = {"full_attention": "s", "conv": "g"}
# a layer's weights, by its letter
NAMES = {
    "s": {f"self_attn.{name}_proj": f"mixer.{name}_proj" for name in "qkv"}
    | {"self_attn.out_proj": "mixer.o_proj", "operator_norm": "norm"}
    | {f"self_attn.{name}_layernorm": f"mixer.{name}_norm" for name in "qk"},
    "g": {f"conv.{name}_proj": f"mixer.{name}_proj" for name in ("in", "out")} | {"operator_norm": "norm"},
    "f": {"feed_forward.w1": "mixer.gate", "feed_forward.w3": "mixer.fc1", "feed_forward.w2": "mixer.fc2"}
    | {"ffn_norm": "norm"},
}


def from_lfm2(source: PreTrainedModel, sublayer_order: str | None = None) -> tuple[PreTrainedModel, Pieces]:
    """Convert LFM2 with its head; in its own order, the default, the outputs are equal.

    Raises:
        ValueError: an order with other numbers of sublayers than the checkpoint, or a part that no model here has.
    """
    old: Any = source.config
    # padding would have the biases, and what stands outside of a text would not
    refuse_others(old.to_dict(), {"conv_bias": False}, old.model_type)
    if unknown := [kind for kind in old.layer_types if kind not in LETTERS]:
        raise ValueError(f"layers of {unknown[0]} cannot be converted; only {' and '.join(LETTERS)} can")
    own = "".join(f"{LETTERS[kind]}f" for kind in old.layer_types)
    order = Order(sublayer_order or own).letters
    if "g" in own and old.conv_L_cache < 2:
        raise ValueError(f"conv_L_cache={old.conv_L_cache} cannot be converted; kernels here have 2 places or more")
    state = read_state(source)
    others = {"intermediate_size", "attention_dropout"}
    fields: dict[str, Any] = {name: getattr(old, name) for name in SAME if name not in others} | positions(old)
    fields |= dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias", "scale_embedding"), False)
    fields |= dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    config = SandwichLMConfig(
        **fields,
        sublayer_order=order,
        intermediate_size=state["model.layers.0.feed_forward.w1.weight"].shape[0],
        short_kernel_size=old.conv_L_cache if "g" in order else None,
        num_key_value_heads=old.num_key_value_heads,
        head_dim=getattr(old, "head_dim", None),
        use_cache=old.use_cache,
        hidden_act="silu",
        gated_feed_forward=True,
        qk_norm=True,
        norm_type="rms",
        layer_norm_eps=old.norm_eps,
        final_norm=True,
    )
    sublayers: dict[str, list[Pieces]] = {letter: [] for letter in own}
    for place, letter in enumerate(own):
        layer = f"model.layers.{place // 2}."
        pieces = state.take_below(NAMES[letter], layer)
        if letter == "g":
            kernel = state.take_piece(f"{layer}conv.conv.weight")
            pieces["mixer.kernel"] = kernel.reshape(kernel.shape[0], kernel.shape[-1])
        sublayers[letter].append(pieces)
    norm = state.take_below({"model.embedding_norm": "model.norm"})
    return assemble_decoder(source, config, sublayers, norm | state)
