"""Conversions into the BERT-like families: transformers' BERT, its relatives, and the release of Macaron BERT."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from transformers import (
    BertPreTrainedModel,
    CamembertPreTrainedModel,
    DistilBertPreTrainedModel,
    ElectraPreTrainedModel,
    GtePreTrainedModel,
    JinaEmbeddingsV3PreTrainedModel,
    MPNetPreTrainedModel,
    NomicBertPreTrainedModel,
    PreTrainedModel,
    RobertaPreTrainedModel,
    XLMRobertaPreTrainedModel,
)

from sublayers.auto_models import AUTO_CLASSES
from sublayers.configuration.configuration_macaron_bert import MacaronBertConfig
from sublayers.configuration.configuration_par_bert import PARBertConfig
from sublayers.configuration.order import interleaved
from sublayers.convert.seq2seq import read_options, take_stack, upgrade
from sublayers.convert.weights import SAME, Piece, Pieces, State, assemble, refuse_others
from sublayers.modeling.modeling_macaron_bert import MacaronBertForPreTraining, MacaronBertForSequenceClassification
from sublayers.modeling.modeling_reordered_bert import ReorderedBertPreTrainedModel

# names of parts, and ours for them: those of a layer, by the letter of their sublayer, and all others
PARTS = {
    "s": {
        "attention.self.query": "mixer.q_proj",
        "attention.self.key": "mixer.k_proj",
        "attention.self.value": "mixer.v_proj",
        "attention.output.dense": "mixer.o_proj",
        "attention.output.LayerNorm": "norm",
    },
    "f": {
        "intermediate.gate": "mixer.gate",
        "intermediate.dense": "mixer.fc1",
        "output.dense": "mixer.fc2",
        "output.LayerNorm": "norm",
    },
}
OTHERS = {
    "embeddings.word_embeddings": "model.embed_tokens",
    "embeddings.position_embeddings": "model.embed_positions",
    "embeddings.token_type_embeddings": "model.embed_token_types",
    "embeddings.LayerNorm": "model.embed_norm",
    "encoder.relative_attention_bias": "model.relative_bias.table",
    "pooler.dense": "model.pooler.dense",
    "cls.predictions.transform.dense": "lm_transform.dense",
    "cls.predictions.transform.LayerNorm": "lm_transform.norm",
    "cls.predictions.decoder": "lm_head",
    "cls.seq_relationship": "seq_relationship.scores",
    "classifier": "classifier",
    "qa_outputs": "qa_outputs",
}
# fields of our configuration that are read from theirs
FIELDS = (*SAME, "type_vocab_size", "hidden_act", "pooler_act", "dropout", "classifier_dropout", "layer_norm_eps")
# PAR BERT's classes by their heads
PAR_BERTS = {found.__name__.removeprefix("PARBert"): found for found in AUTO_CLASSES[PARBertConfig].values()}
# options that change an encoder's function, with the only value that is supported here
ONLY = {
    "is_decoder": False,
    # transformers 5 keeps this option, and ignores it
    "position_embedding_type": "absolute",
}


class Encoder(NamedTuple):
    """How one of transformers' encoders differs from BERT.

    Attributes:
        base: of its classes.
        weights: parts of the names of its weights, and BERT's for them.
        fields: its names of our fields, where they are other ones.
        fixed: our fields that its configuration does not tell.
        heads: as `fields`, for some of its heads.
        only: as `ONLY`, for some of its heads.
        counts_after_padding: whether the number of its first position is the padding's + 1.
    """

    base: type[PreTrainedModel]
    weights: dict[str, str] = {}
    fields: dict[str, str] = {"dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"}
    fixed: dict[str, Any] = {"pooler_act": "tanh"}
    heads: Mapping[str, Mapping[str, str]] = {}
    only: Mapping[str, Mapping[str, Any]] = {}
    counts_after_padding: bool = False


BERT = Encoder(BertPreTrainedModel)
ROBERTA = Encoder(
    RobertaPreTrainedModel,
    weights={
        "lm_head.dense": "cls.predictions.transform.dense",
        "lm_head.layer_norm": "cls.predictions.transform.LayerNorm",
        "lm_head.": "cls.predictions.",
        "classifier.dense": "pooler.dense",
        "classifier.out_proj": "classifier",
    },
    heads={
        "ForSequenceClassification": {"pooler_dropout": "classifier_dropout"},
        "ForMultipleChoice": {"classifier_dropout": "hidden_dropout_prob"},
    },
    only={"ForMaskedLM": {"hidden_act": "gelu"}},
    counts_after_padding=True,
)
DISTILBERT = Encoder(
    DistilBertPreTrainedModel,
    weights={
        "transformer.layer": "encoder.layer",
        "attention.q_lin": "attention.self.query",
        "attention.k_lin": "attention.self.key",
        "attention.v_lin": "attention.self.value",
        "attention.out_lin": "attention.output.dense",
        "sa_layer_norm": "attention.output.LayerNorm",
        "ffn.lin1": "intermediate.dense",
        "ffn.lin2": "output.dense",
        "output_layer_norm": "output.LayerNorm",
        "vocab_transform": "cls.predictions.transform.dense",
        "vocab_layer_norm": "cls.predictions.transform.LayerNorm",
        "vocab_projector": "cls.predictions.decoder",
        "pre_classifier": "pooler.dense",
    },
    fields={"intermediate_size": "hidden_dim", "hidden_act": "activation", "qa_dropout": "qa_dropout"},
    # DistilBERT has no segments, so one segment gets a vector of zeros
    fixed={"type_vocab_size": 1, "untrained_first_segment": True}
    | {"pooler_act": "relu", "layer_norm_eps": 1e-12, "classifier_dropout": None, "attention_output_dropout": 0.0},
    heads={
        "ForSequenceClassification": {"classifier_dropout": "seq_classif_dropout"},
        "ForMultipleChoice": {"classifier_dropout": "seq_classif_dropout"},
    },
)
ELECTRA = Encoder(
    ElectraPreTrainedModel,
    weights={
        "generator_predictions.dense": "cls.predictions.transform.dense",
        "generator_predictions.LayerNorm": "cls.predictions.transform.LayerNorm",
        "generator_lm_head": "cls.predictions.decoder",
        "classifier.dense": "pooler.dense",
        "classifier.out_proj": "classifier",
        "sequence_summary.summary": "pooler.dense",
    },
    fixed={"pooler_act": "gelu"},
    heads={
        "ForSequenceClassification": {"pooler_dropout": "classifier_dropout"},
        "ForMultipleChoice": {"classifier_dropout": "summary_last_dropout", "pooler_act": "summary_activation"},
    },
    only={
        "ForMaskedLM": {"hidden_act": "gelu"},
        "ForMultipleChoice": {"summary_type": "first", "summary_use_proj": True, "summary_first_dropout": 0},
    },
)
# encoders with rotary positions, whose layers have other names
ROTARY = Encoder(
    JinaEmbeddingsV3PreTrainedModel,
    weights=ROBERTA.weights
    | {
        "layers.": "encoder.layer.",
        "self_attn.q_proj": "attention.self.query",
        "self_attn.k_proj": "attention.self.key",
        "self_attn.v_proj": "attention.self.value",
        "self_attn.o_proj": "attention.output.dense",
        "post_attention_layernorm": "attention.output.LayerNorm",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
        "mlp.gate_proj": "intermediate.gate",
        "mlp.up_proj": "intermediate.dense",
        "mlp.down_proj": "output.dense",
        "post_mlp_layernorm": "output.LayerNorm",
    },
    fields=BERT.fields | {"rope_parameters": "rope_parameters"},
    fixed=BERT.fixed | {"position_embedding_type": "rotary"},
    heads={"ForSequenceClassification": ROBERTA.heads["ForSequenceClassification"]},
    only=ROBERTA.only,
)
NOMIC = ROTARY._replace(
    base=NomicBertPreTrainedModel,
    weights=ROTARY.weights | {"transform.layer_norm": "transform.LayerNorm"},
    fields=ROTARY.fields | {"head_dim": "head_dim"},
    fixed=ROTARY.fixed
    | {"gated_feed_forward": True}
    | dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias"), False),
    heads={},
    only={},
)
GTE = ROTARY._replace(
    base=GtePreTrainedModel,
    fields=ROTARY.fields | {"activation_dropout": "hidden_dropout_prob"},
    fixed=ROTARY.fixed | {"gated_feed_forward": True},
    heads={},
)
# whatever its settings say, MPNet has 32 groups of distances, and counts positions from the token 1
MPNET_ONLY = {"relative_attention_num_buckets": 32, "pad_token_id": 1}
MPNET = ROBERTA._replace(
    base=MPNetPreTrainedModel,
    weights=ROBERTA.weights
    | {
        "attention.attn.q.": "attention.self.query.",
        "attention.attn.k.": "attention.self.key.",
        "attention.attn.v.": "attention.self.value.",
        "attention.attn.o.": "attention.output.dense.",
        "attention.LayerNorm": "attention.output.LayerNorm",
    },
    fields=BERT.fields
    | {"relative_attention_num_buckets": "relative_attention_num_buckets", "classifier_dropout": "hidden_dropout_prob"},
    fixed=BERT.fixed | {"type_vocab_size": 1, "untrained_first_segment": True},
    heads={"ForSequenceClassification": {"pooler_dropout": "hidden_dropout_prob"}},
    only={head: {**ROBERTA.only.get(head, {}), **MPNET_ONLY} for head in PAR_BERTS},
)
# by their model_type
ENCODERS = {
    "bert": BERT,
    "roberta": ROBERTA,
    "camembert": ROBERTA._replace(base=CamembertPreTrainedModel),
    "xlm-roberta": ROBERTA._replace(base=XLMRobertaPreTrainedModel),
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
    "gte": GTE,
    "jina_embeddings_v3": ROTARY,
    "mpnet": MPNET,
    "nomic_bert": NOMIC,
}
# problem types by the loss with which the Macaron authors fine-tune
PROBLEMS = {
    "cross_entropy_classify": "single_label_classification",
    "cross_entropy_classify_binary": "multi_label_classification",
    "mean_squared_error": "regression",
}


def read_fields(source: PreTrainedModel, encoder: Encoder, head: str) -> dict[str, Any]:
    """Read the fields of our configuration from that of an encoder with this head.

    Raises:
        ValueError: one that changes the function to what is not computed here.
    """
    old: Any = source.config
    theirs = type(source).__name__
    # embeddings of another width would be projected
    only = {**ONLY, "embedding_size": old.hidden_size, **encoder.only.get(head, {})}
    refuse_others(old.to_dict(), only, theirs)
    names = {name: name for name in FIELDS if name not in encoder.fixed}
    names |= {**encoder.fields, **encoder.heads.get(head, {})}
    fields = {**encoder.fixed, **{ours: getattr(old, theirs) for ours, theirs in names.items()}}
    if not fields["type_vocab_size"]:
        # as DistilBERT
        fields |= {"type_vocab_size": 1, "untrained_first_segment": True}
    if encoder.counts_after_padding:
        if old.pad_token_id is None:
            raise ValueError(f"pad_token_id=None cannot be converted; {theirs} counts its positions from there")
        fields["position_offset"] = old.pad_token_id + 1
        fields["max_position_embeddings"] -= fields["position_offset"]
    return fields


def from_bert(
    source: PreTrainedModel, sublayer_order: str | None = None
) -> tuple[ReorderedBertPreTrainedModel, Pieces]:
    """Convert one of transformers' `ENCODERS` with any of its heads to PAR BERT; in its own order outputs are equal.

    Another order takes over the sublayers that both have, in their order; the others keep their random weights.
    Padding is what the mask says, where RoBERTa goes by its token.

    Raises:
        ValueError: an encoder that decodes, has relative positions or embeddings of another width than its states, or
            parts that PAR BERT does not have.
    """
    old: Any = source.config
    encoder = ENCODERS[old.model_type]
    head = type(source).__name__.removeprefix(encoder.base.__name__.removesuffix("PreTrainedModel"))
    fields = read_fields(source, encoder, head)
    if (model_class := PAR_BERTS.get(head)) is None:
        raise ValueError(f"{type(source).__name__} cannot be converted; PAR BERT has no such head")
    config = PARBertConfig(sublayer_order=sublayer_order or interleaved(old.num_hidden_layers), **fields)

    def rename(name: str) -> str:
        name = name.removeprefix(f"{source.base_model_prefix}.")
        for part, berts in encoder.weights.items():
            name = name.replace(part, berts)
        return name

    state = State(source.state_dict(), rename)
    state.unite("cls.predictions.bias", "cls.predictions.decoder.bias")
    sublayers = {
        letter: [state.take_below(parts, f"encoder.layer.{i}.") for i in range(old.num_hidden_layers)]
        for letter, parts in PARTS.items()
    }
    if fields.get("gated_feed_forward") and fields.get("mlp_bias", True):
        # GTE's feed-forward sublayers have a bias of their output map only
        zeros = Piece(torch.zeros(old.intermediate_size), ())
        sublayers["f"] = [{"mixer.gate.bias": zeros, "mixer.fc1.bias": zeros, **pieces} for pieces in sublayers["f"]]
    others = {"model.embed_token_types.weight": Piece(torch.zeros(1, old.hidden_size), ())} | state.take_below(OTHERS)
    state.refuse_rest("PAR BERT")
    return assemble(model_class, config, sublayers, others, partly=True)


def from_macaron_bert(
    weights: Mapping[str, torch.Tensor],
    num_attention_heads: int,
    options: Mapping[str, Any] = {},
) -> tuple[MacaronBertForPreTraining | MacaronBertForSequenceClassification, Pieces]:
    """Convert Macaron BERT, its authors' plain BERT, or a classifier made from them (a fork of fairseq 0.6).

    `options` are flat as the command line's; what they do not tell is as in the release.

    Raises:
        ValueError: a key that is missing or that this model has no place for, or options that it does not have.
    """
    state = upgrade(weights)
    norm_affine = any("_layer_norm." in name for name in state)
    # norms without parameters do not show in a checkpoint
    pre_norm = not norm_affine or "encoder.layer_norm.weight" in state
    fields: dict[str, Any] = {"norm_position": "pre" if pre_norm else "post", "max_position_embeddings": 384}
    fields |= read_options(options)
    final_norm = fields["norm_position"] == "pre"
    is_macaron = any(".macaron_fc1." in name for name in state)
    order, sublayers = take_stack(state, "encoder", "fsf" if is_macaron else "sf", norm_affine)
    embeddings = state.take_piece("encoder.embed_tokens.weight")
    others = {
        "model.embed_tokens.weight": embeddings,
        # the release gives the first sentence the number 1
        "model.embed_token_types.weight": state.take_piece("encoder.embed_segment.weight").reverse(),
    }
    if norm_affine and final_norm:
        others |= state.take("encoder.layer_norm", "model.norm")
    if "encoder.embed_positions.weight" in state:
        positions = state.take_piece("encoder.embed_positions.weight")
        others["model.embed_positions.weight"] = positions
        fields |= {"position_embedding_type": "learned", "max_position_embeddings": positions.shape[0] - 2}
    model_class: type[MacaronBertForPreTraining | MacaronBertForSequenceClassification]
    if "mid_layer.0.weight" in state:
        model_class = MacaronBertForPreTraining
        output = state.pop("embed_out", embeddings)
        fields["tie_word_embeddings"] = torch.equal(output.tensor, embeddings.tensor)
        names = {"mid_layer.0": "lm_transform.dense", "mid_layer.2": "lm_transform.norm"}
        others |= {"lm_head.weight": output} | state.take_all(names | {"classifier": "seq_relationship.scores"})
    else:
        model_class = MacaronBertForSequenceClassification
        others |= state.take("classifier", "classifier")
        fields["num_labels"] = others["classifier.bias"].shape[0]
        fields["problem_type"] = PROBLEMS.get(options.get("criterion", ""))
    state.refuse_rest("Macaron BERT")
    config = MacaronBertConfig(
        vocab_size=embeddings.shape[0],
        sublayer_order=order,
        hidden_size=embeddings.shape[1],
        intermediate_size=sublayers["f"][0]["mixer.fc1.weight"].shape[0],
        num_attention_heads=num_attention_heads,
        norm_affine=norm_affine,
        final_norm=final_norm,
        feed_forward_scale=0.5 if is_macaron else 1.0,
        pre_attention_act="relu" if is_macaron else None,
        **fields,
    )
    return assemble(model_class, config, sublayers, others)
