"""Conversion of transformers' ModernBERT into PAR BERT, whose order of `s`, `w` and `f` it is."""

from typing import Any

import torch
from transformers import ModernBertPreTrainedModel

from sublayers import AUTO_CLASSES
from sublayers.configuration.configuration_par_bert import PARBertConfig
from sublayers.configuration.sublayer_order import expand
from sublayers.modeling.modeling_reordered_bert import ReorderedBertPreTrainedModel
from sublayers.training.convert.weights import Piece, Pieces, State, assemble

LETTERS = {"full_attention": "s", "sliding_attention": "w"}
# its prediction head, by our names
HEADS = {"": None, "ForMaskedLM": "lm_transform", "ForSequenceClassification": "model.pooler"}
# fields with the same name here
SAME = [
    *("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "max_position_embeddings"),
    *("norm_bias", "attention_bias", "mlp_bias", "attention_dropout", "classifier_dropout", "initializer_range"),
    *("tie_word_embeddings", "pad_token_id", "bos_token_id", "eos_token_id", "id2label", "label2id", "problem_type"),
]


def check_parts(source: ModernBertPreTrainedModel, head: str) -> None:
    """Check that PAR BERT has what a ModernBERT is made of.

    Raises:
        ValueError: it has not.
    """
    old: Any = source.config
    parts: list[tuple[str, Any, Any]] = []
    if head == "ForSequenceClassification":
        parts.append(("classifier_pooling", old.classifier_pooling, "cls"))
    if head == "ForMaskedLM":
        parts.append(("decoder_bias", old.decoder_bias, True))
    if "sliding_attention" in old.layer_types:
        local = old.rope_parameters["sliding_attention"]
        parts.append(("rope_type of sliding_attention", local["rope_type"], "default"))
    for name, found, wanted in parts:
        if found != wanted:
            raise ValueError(f"{name}={found!r} cannot be converted; only ModernBERT with {wanted!r} can")
    if head == "ForMaskedLM" and old.classifier_activation != old.hidden_activation:
        raise ValueError(
            f"classifier_activation={old.classifier_activation!r} differs from "
            f"hidden_activation={old.hidden_activation!r}; a masked language model with both cannot be converted"
        )


def take_layers(state: State, old: Any) -> dict[str, list[Pieces]]:
    """Take the weights of all sublayers, by kind."""
    sublayers: dict[str, list[Pieces]] = {"s": [], "w": [], "f": []}
    for i, kind in enumerate(old.layer_types):
        layer, attention = f"layers.{i}", dict[str, Piece]()
        # the first layer has no norm in front of its attention
        attention |= state.take_below(f"{layer}.attn.Wo", "mixer.o_proj")
        attention |= state.take_below(f"{layer}.attn_norm", "norm")
        feed_forward = state.take_below(f"{layer}.mlp_norm", "norm")
        feed_forward |= state.take_below(f"{layer}.mlp.Wo", "mixer.fc2")
        # several maps lie one below the other
        for weight, piece in state.take_below(f"{layer}.attn.Wqkv", "").items():
            attention |= {f"mixer.{x}_proj{weight}": part for x, part in zip("qkv", piece.chunk(3), strict=True)}
        for weight, piece in state.take_below(f"{layer}.mlp.Wi", "").items():
            parts = zip(("gate", "fc1"), piece.chunk(2), strict=True)
            feed_forward |= {f"mixer.{name}{weight}": part for name, part in parts}
        sublayers[LETTERS[kind]].append(attention)
        sublayers["f"].append(feed_forward)
    return sublayers


def configure(old: Any, sublayer_order: str | None = None) -> PARBertConfig:
    """Make the configuration of PAR BERT that has ModernBERT's parts, in its order or another one."""
    order = expand(sublayer_order or "".join(f"{LETTERS[kind]}f" for kind in old.layer_types))
    local: dict[str, Any] = {
        "attention_window": old.local_attention,
        "local_rope_theta": old.rope_parameters["sliding_attention"]["rope_theta"],
    }
    return PARBertConfig(
        **{name: getattr(old, name) for name in SAME},
        **local if "w" in order else {},
        sublayer_order=order,
        attention_output_bias=old.attention_bias,
        hidden_act=old.hidden_activation,
        gated_feed_forward=True,
        pooler_act=old.classifier_activation,
        pooler_norm=True,
        # what feed-forward sublayers add is never dropped
        dropout=0.0,
        embedding_dropout=old.embedding_dropout,
        attention_output_dropout=old.attention_dropout,
        activation_dropout=old.mlp_dropout,
        norm_position="pre",
        first_norm=False,
        final_norm=True,
        layer_norm_eps=old.norm_eps,
        position_embedding_type="rotary",
        rope_parameters=dict(old.rope_parameters["full_attention"]),
        # ModernBERT has no segments, so one segment gets a vector of zeros
        type_vocab_size=1,
        untrained_first_segment=True,
    )


def from_modern_bert(
    source: ModernBertPreTrainedModel, sublayer_order: str | None = None
) -> tuple[ReorderedBertPreTrainedModel, Pieces]:
    """Convert ModernBERT's body, masked language model or classifier; in its own order the outputs are equal.

    Another order takes over the sublayers that both have, in their order; the others keep their random weights. Its
    first sublayer has no norm, as the first attention here.

    Raises:
        ValueError: another head, an order that begins with another letter, or a part that PAR BERT does not have.
    """
    old: Any = source.config
    head = type(source).__name__.removeprefix("ModernBert").removesuffix("Model")
    check_parts(source, head)
    config = configure(old, sublayer_order)
    if not expand(config.sublayer_order).startswith(first := LETTERS[old.layer_types[0]]):
        raise ValueError(
            f"the order {config.sublayer_order!r} cannot be converted; the first sublayer of this ModernBERT, {first}, "
            "has no norm, and has to stay the first"
        )
    name = f"PARBert{head or 'Model'}"
    model_class = next(each for each in AUTO_CLASSES[PARBertConfig].values() if each.__name__ == name)
    state = State(source.state_dict(), lambda name: name.removeprefix("model."))
    others = {"model.embed_token_types.weight": Piece(torch.zeros(1, old.hidden_size), ())}
    others["model.embed_tokens.weight"] = state.take_piece("embeddings.tok_embeddings.weight")
    others |= state.take_below("embeddings.norm", "model.embed_norm") | state.take_below("final_norm", "model.norm")
    sublayers = take_layers(state, old)
    if part := HEADS[head]:
        if not old.classifier_bias:
            others[f"{part}.dense.bias"] = Piece(torch.zeros(old.hidden_size), ())
        others |= state.take_below("head.dense", f"{part}.dense") | state.take_below("head.norm", f"{part}.norm")
        others |= state.take_below("decoder", "lm_head") | state.take_below("classifier", "classifier")
    state.refuse_rest("PAR BERT")
    return assemble(model_class(config), sublayers, others, partly=True)
