"""Conversions into the BERT-like families: transformers' BERT and the release of Macaron BERT."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import BertPreTrainedModel

from sublayers import AUTO_CLASSES
from sublayers.configuration.configuration_macaron_bert import MacaronBertConfig
from sublayers.configuration.configuration_par_bert import PARBertConfig
from sublayers.configuration.sublayer_order import interleaved, macaron
from sublayers.modeling.modeling_macaron_bert import MacaronBertForPreTraining, MacaronBertForSequenceClassification
from sublayers.modeling.modeling_reordered_bert import ReorderedBertPreTrainedModel
from sublayers.training.convert.seq2seq import read_options, take_stack, upgrade
from sublayers.training.convert.weights import Pieces, State, assemble

ATTENTION = {
    "attention.self.query": "mixer.q_proj",
    "attention.self.key": "mixer.k_proj",
    "attention.self.value": "mixer.v_proj",
    "attention.output.dense": "mixer.o_proj",
    "attention.output.LayerNorm": "norm",
}
FEED_FORWARD = {"intermediate.dense": "mixer.fc1", "output.dense": "mixer.fc2", "output.LayerNorm": "norm"}
HEADS = {
    "bert.pooler.dense": "model.pooler.dense",
    "cls.predictions.transform.dense": "lm_transform.dense",
    "cls.predictions.transform.LayerNorm": "lm_transform.norm",
    "cls.predictions.decoder": "lm_head",
    "cls.seq_relationship": "seq_relationship.scores",
    "classifier": "classifier",
    "qa_outputs": "qa_outputs",
}
# by the loss with which the Macaron authors fine-tune
PROBLEMS = {
    "cross_entropy_classify": "single_label_classification",
    "cross_entropy_classify_binary": "multi_label_classification",
    "mean_squared_error": "regression",
}


def from_bert(
    source: BertPreTrainedModel, sublayer_order: str | None = None
) -> tuple[ReorderedBertPreTrainedModel, Pieces]:
    """Convert transformers' BERT with any of its heads to PAR BERT; in BERT's own order the outputs are equal.

    Another order takes over the sublayers that both have, in their order; the others keep their random weights.

    Raises:
        ValueError: a BERT that decodes, has relative positions, or has parts which are not BERT's.
    """
    old = source.config
    if old.is_decoder or old.add_cross_attention:
        raise ValueError("only BERT as an encoder can be converted")
    # transformers 5 keeps this option, and ignores it
    if (positions := old.to_dict().get("position_embedding_type", "absolute")) != "absolute":
        raise ValueError(f"position_embedding_type={positions!r} cannot be converted; only BERT with 'absolute' can")
    config = PARBertConfig(
        vocab_size=old.vocab_size,
        sublayer_order=sublayer_order or interleaved(old.num_hidden_layers),
        hidden_size=old.hidden_size,
        intermediate_size=old.intermediate_size,
        num_attention_heads=old.num_attention_heads,
        max_position_embeddings=old.max_position_embeddings,
        type_vocab_size=old.type_vocab_size,
        hidden_act=old.hidden_act,
        dropout=old.hidden_dropout_prob,
        attention_dropout=old.attention_probs_dropout_prob,
        classifier_dropout=old.classifier_dropout,
        layer_norm_eps=old.layer_norm_eps,
        initializer_range=old.initializer_range,
        tie_word_embeddings=old.tie_word_embeddings,
        pad_token_id=old.pad_token_id,
        bos_token_id=old.bos_token_id,
        eos_token_id=old.eos_token_id,
        id2label=old.id2label,
        label2id=old.label2id,
        problem_type=old.problem_type,
    )
    name = f"PARBert{type(source).__name__.removeprefix('Bert')}"
    model_class = next((c for c in AUTO_CLASSES[PARBertConfig].values() if c.__name__ == name), None)
    if model_class is None:
        raise ValueError(f"{type(source).__name__} cannot be converted; PAR BERT has no such head")
    prefix = "bert." if type(source).__name__ == "BertModel" else ""
    state = State(source.state_dict(), lambda key: f"{prefix}{key}")
    state.unite("cls.predictions.bias", "cls.predictions.decoder.bias")
    sublayers: dict[str, list[Pieces]] = {"s": [], "f": []}
    for i in range(old.num_hidden_layers):
        for letter, names in (("s", ATTENTION), ("f", FEED_FORWARD)):
            names = {f"bert.encoder.layer.{i}.{theirs}": ours for theirs, ours in names.items()}
            sublayers[letter].append(state.take_all(names))
    others = {
        "model.embed_tokens.weight": state.take_piece("bert.embeddings.word_embeddings.weight"),
        "model.embed_positions.weight": state.take_piece("bert.embeddings.position_embeddings.weight"),
        "model.embed_token_types.weight": state.take_piece("bert.embeddings.token_type_embeddings.weight"),
    }
    others |= state.take("bert.embeddings.LayerNorm", "model.embed_norm")
    others |= state.take_all({theirs: ours for theirs, ours in HEADS.items() if f"{theirs}.weight" in state})
    state.refuse_rest("PAR BERT")
    return assemble(model_class(config), sublayers, others, partly=True)


def from_macaron_bert(
    weights: Mapping[str, torch.Tensor],
    num_attention_heads: int,
    max_position_embeddings: int = 384,
    options: Mapping[str, Any] | None = None,
) -> tuple[MacaronBertForPreTraining | MacaronBertForSequenceClassification, Pieces]:
    """Convert Macaron BERT, its authors' plain BERT, or a classifier made from them (a fork of fairseq 0.6).

    `options` are flat as the command line's; what they do not tell is as in the release.

    Raises:
        ValueError: a key that is missing or that this model has no place for, or options that it does not have.
    """
    options = options or {}
    state = upgrade(weights)
    norm_affine = any("_layer_norm." in name for name in state)
    # without parameters, norms leave no trace of where they stand
    pre_norm = not norm_affine or "encoder.layer_norm.weight" in state
    fields: dict[str, Any] = {"norm_position": "pre" if pre_norm else "post"}
    fields |= {"max_position_embeddings": max_position_embeddings} | read_options(options)
    final_norm = fields["norm_position"] == "pre"
    is_macaron = any(".macaron_fc1." in name for name in state)
    sublayers = take_stack(state, "encoder", is_macaron, norm_affine=norm_affine)
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
        sublayer_order=(macaron if is_macaron else interleaved)(len(sublayers["s"])),
        hidden_size=embeddings.shape[1],
        intermediate_size=sublayers["f"][0]["mixer.fc1.weight"].shape[0],
        num_attention_heads=num_attention_heads,
        norm_affine=norm_affine,
        final_norm=final_norm,
        feed_forward_scale=0.5 if is_macaron else 1.0,
        pre_attention_act="relu" if is_macaron else None,
        **fields,
    )
    return assemble(model_class(config), sublayers, others)
