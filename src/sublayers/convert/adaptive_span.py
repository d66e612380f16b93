"""Conversions into the sandwich character model: the releases of adaptive span and of the sandwich Transformer."""

from collections.abc import Mapping
from typing import Any

import torch

from sublayers.configuration.configuration_sandwich_char_lm import SandwichCharLMConfig
from sublayers.convert.weights import Pieces, State, Weights, are_weights, assemble
from sublayers.modeling.modeling_sandwich_char_lm import SandwichCharLMForCausalLM

PROJECTIONS = {"query": "q", "key": "k", "val": "v", "out": "o"}
# the names of the shares of the longest span that heads read
SPAN = "attn.attn.adaptive_span._mask.current_val"
# fields of our configuration, by the names of settings
TOLD = {
    "adapt_span_ramp": "span_ramp_size",
    "adapt_span_loss": "span_loss",
    "adapt_span_init": "initial_span_share",
}


def find_adaptive_span(checkpoint: Any) -> Weights | None:
    """Find the weights in a checkpoint of adaptive span, or in a dictionary of weights alone; None in all others."""
    candidates = (checkpoint, checkpoint.get("model")) if isinstance(checkpoint, dict) else ()
    found = (weights for weights in candidates if are_weights(weights) and {"key_pe", "module.key_pe"} & weights.keys())
    return next(found, None)


def take_layers(state: State) -> tuple[str, dict[str, list[Pieces]]]:
    """Take the sublayers, and say in which order they stand; a layer may lack one of its two, but not the norm of it.

    Norms of what a layer lacks are dropped.
    """
    order, number = "", 0
    sublayers: dict[str, list[Pieces]] = {"s": [], "f": []}
    while any(name.startswith(layer := f"layers.{number}.") for name in state):
        if f"{layer}attn.proj_query.weight" in state:
            pieces = {
                f"mixer.{ours}_proj.weight": state.take_piece(f"{layer}attn.proj_{theirs}.weight")
                for theirs, ours in PROJECTIONS.items()
            }
            if f"{layer}{SPAN}" in state:
                pieces["mixer.span"] = state.take_piece(f"{layer}{SPAN}").reshape(-1)
            order += "s"
            sublayers["s"].append(pieces | state.take(f"{layer}norm1", "norm"))
        if f"{layer}ff.fc1.weight" in state:
            pieces = state.take_all({"fc1": "mixer.fc1", "fc2": "mixer.fc2"}, f"{layer}ff.")
            order += "f"
            sublayers["f"].append(pieces | state.take(f"{layer}norm2", "norm"))
        for unused in [name for name in state if name.startswith((f"{layer}norm1.", f"{layer}norm2."))]:
            del state[unused]
        number += 1
    return order, sublayers


def from_adaptive_span(
    weights: Mapping[str, torch.Tensor], settings: Mapping[str, Any] = {}, sublayer_order: str | None = None
) -> tuple[SandwichCharLMForCausalLM, Pieces]:
    """Convert the character model of adaptive span and of the sandwich Transformer, with learned or fixed spans.

    Sizes and order are read from the weights; `settings`, by the authors' names, tell the rest: `dropout`, and of
    `adapt_span_params` the ramp, the loss and the initial share. What they do not tell is as in the papers.

    Raises:
        ValueError: a key that is missing or that this model has no place for, such as persistent memory, an order that
            does not fit, or spans that only some sublayers learn.
    """
    state = State(weights, lambda name: name.removeprefix("module."))
    table, keys, output = (state.take_piece(name) for name in ("in_emb.weight", "key_pe", "out_emb.weight"))
    order, sublayers = take_layers(state)
    others = {
        "model.embed_tokens.weight": table,
        "model.positions.table": keys.reshape(*keys.shape[1:]).transpose(),
        "lm_head.weight": output,
        "lm_head.bias": state.take_piece("out_emb.bias"),
    }
    state.refuse_rest("the sandwich character model")
    learned = {"mixer.span" in pieces for pieces in sublayers["s"]}
    if len(learned) > 1:
        raise ValueError("spans that only some attention sublayers learn cannot be converted; all or none have to")
    vocab_size, hidden_size = table.shape
    _, head_size, attention_span = keys.shape
    options = {**settings, **settings.get("adapt_span_params", {})}
    fields = {ours: options[theirs] for theirs, ours in TOLD.items() if theirs in options}
    if "dropout" in options:
        fields |= dict.fromkeys(("attention_dropout", "activation_dropout"), options["dropout"])
    if sublayers["f"]:
        fields["intermediate_size"] = sublayers["f"][0]["mixer.fc1.weight"].shape[0]
    config = SandwichCharLMConfig(
        sublayer_order=sublayer_order or order,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_attention_heads=hidden_size // head_size,
        attention_span=attention_span,
        adaptive_span=learned == {True},
        **fields,
    )
    return assemble(SandwichCharLMForCausalLM, config, sublayers, others)
