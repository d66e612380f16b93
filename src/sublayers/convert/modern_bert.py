"""Conversion of transformers' ModernBERT into PAR BERT, whose order of `s`, `w` and `f` it is."""

from typing import Any

import torch
from transformers import ModernBertPreTrainedModel

from sublayers.configuration.configuration_par_bert import PARBertConfig
from sublayers.configuration.order import Order
from sublayers.convert.bert import PAR_BERTS
from sublayers.convert.weights import LETTERS, QKV, SAME, Piece, Pieces, State, assemble, refuse_others
from sublayers.modeling.modeling_reordered_bert import ReorderedBertPreTrainedModel

# its prediction head, by our names
OF_TOKENS = ("ForTokenClassification", "ForQuestionAnswering")
HEADS = {"": None, "ForMaskedLM": "lm_transform"}
HEADS |= dict.fromkeys(("ForSequenceClassification", "ForMultipleChoice", *OF_TOKENS), "model.pooler")


def take_layers(state: State, old: Any) -> dict[str, list[Pieces]]:
    """Take the weights of all sublayers, by kind."""
    sublayers: dict[str, list[Pieces]] = {"s": [], "w": [], "f": []}
    for i, kind in enumerate(old.layer_types):
        layer = f"layers.{i}."
        # the first layer has no norm before its attention
        attention = state.take_below({"attn.Wo": "mixer.o_proj", "attn_norm": "norm"}, layer)
        sublayers[LETTERS[kind]].append(attention | state.take_joint(f"{layer}attn.Wqkv", QKV))
        feed_forward = state.take_below({"mlp_norm": "norm", "mlp.Wo": "mixer.fc2"}, layer)
        sublayers["f"].append(feed_forward | state.take_joint(f"{layer}mlp.Wi", ("mixer.gate", "mixer.fc1")))
    return sublayers


def configure(old: Any, sublayer_order: str | None = None) -> PARBertConfig:
    """Make the configuration of PAR BERT that has ModernBERT's parts, in its order or another one."""
    order = Order(sublayer_order or "".join(f"{LETTERS[kind]}f" for kind in old.layer_types)).letters
    local: dict[str, Any] = {
        "attention_window": old.local_attention,
        "local_rope_theta": old.rope_parameters["sliding_attention"]["rope_theta"],
    }
    return PARBertConfig(
        **{
            name: getattr(old, name)
            for name in (*SAME, "norm_bias", "attention_bias", "mlp_bias", "classifier_dropout", "classifier_pooling")
        },
        **local if "w" in order else {},
        sublayer_order=order,
        attention_output_bias=old.attention_bias,
        hidden_act=old.hidden_activation,
        gated_feed_forward=True,
        pooler_act=old.classifier_activation,
        pooler_norm=True,
        qa_dropout=old.classifier_dropout,
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
    if head == "ForMaskedLM":
        only = {"decoder_bias": True, "classifier_activation": old.hidden_activation}
        refuse_others(old.to_dict(), only, "ModernBERT")
    if "sliding_attention" in old.layer_types:
        refuse_others(old.rope_parameters["sliding_attention"], {"rope_type": "default"}, "local attention")
    config = configure(old, sublayer_order)
    config.pools_tokens = head in OF_TOKENS
    if not Order(config.sublayer_order).letters.startswith(first := LETTERS[old.layer_types[0]]):
        raise ValueError(
            f"the order {config.sublayer_order!r} cannot be converted; the first sublayer of this ModernBERT, {first}, "
            "has no norm, and has to stay the first"
        )
    state = State(source.state_dict(), lambda name: name.removeprefix("model."))
    others = {"model.embed_token_types.weight": Piece(torch.zeros(1, old.hidden_size), ())}
    names = {"embeddings.tok_embeddings": "model.embed_tokens", "embeddings.norm": "model.embed_norm"}
    others |= state.take_below(names | {"final_norm": "model.norm"})
    sublayers = take_layers(state, old)
    if part := HEADS[head]:
        if not old.classifier_bias:
            others[f"{part}.dense.bias"] = Piece(torch.zeros(old.hidden_size), ())
        scores = "qa_outputs" if head == "ForQuestionAnswering" else "classifier"
        others |= state.take_below({"head": part, "decoder": "lm_head", "classifier": scores})
    state.refuse_rest("PAR BERT")
    return assemble(PAR_BERTS[head or "Model"], config, sublayers, others, partly=True)
