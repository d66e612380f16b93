"""What transformers' decoders become: language models or, where their tokens see both sides, encoders."""

import copy
from dataclasses import fields
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from sublayers.configuration.configuration_par_bert import PARBertConfig
from sublayers.configuration.configuration_sandwich_lm import SandwichLMConfig
from sublayers.convert.bert import PAR_BERTS
from sublayers.convert.weights import Piece, Pieces, State, assemble
from sublayers.modeling.modeling_sandwich_lm import (
    SandwichLMForCausalLM,
    SandwichLMForSequenceClassification,
    SandwichLMModel,
)

# the heads of sources that become encoders
ENCODERS = ("Model", "ForTokenClassification", "ForQuestionAnswering")
# what EuroBERT's sequence classifier reads, by our name
POOLINGS = {"bos": "cls", "mean": "mean"}
# models with a decoder's parts whose tokens always see both sides
BOTH_SIDES = ("eurobert",)
# how PAR BERT is made as decoders are: without a pooler, a norm of embeddings, and segments but one, which stays zero
DECODER_LIKE = {
    "head_type": "macaron",
    "embedding_norm": False,
    "type_vocab_size": 1,
    "untrained_first_segment": True,
    "use_cache": False,
}


def is_causal(config: PreTrainedConfig) -> bool:
    """Say whether the tokens of a decoder of transformers see only those before them, as its masks do."""
    if getattr(config, "use_bidirectional_attention", None):
        return False
    return getattr(config, "is_causal", config.model_type not in BOTH_SIDES)


def read_state(source: PreTrainedModel) -> State:
    """Take the weights of a decoder, those of its body by the names that they have below a head."""
    body = "" if source.base_model is source else f"{source.base_model_prefix}."
    return State(
        source.state_dict(), lambda name: f"model.{name.removeprefix(body)}" if name.startswith(body) else name
    )


def assemble_decoder(
    source: Any, config: SandwichLMConfig, sublayers: dict[str, list[Pieces]], others: Pieces
) -> tuple[PreTrainedModel, Pieces]:
    """Build what a decoder becomes: SandwichLM or, if it is not causal, PAR BERT.

    Args:
        source: the decoder.
        config: what is computed, up to what the tokens see.
        sublayers: weights by kind.
        others: all other weights, by the names that SandwichLM has for them, or PAR BERT's heads.

    Raises:
        ValueError: an order that does not fit, or weights of a head that PAR BERT does not have.
    """
    if is_causal(source.config):
        model_class: type[PreTrainedModel] = SandwichLMForCausalLM
        if source.base_model is source:
            model_class = SandwichLMModel
        elif "score.weight" in others:
            model_class = SandwichLMForSequenceClassification
        model, pieces = assemble(model_class, config, sublayers, others)
        if model.can_generate():
            model.generation_config = copy.deepcopy(source.generation_config)
        return model, pieces
    heads = (*ENCODERS, "ForSequenceClassification")
    head = next((head for head in heads if type(source).__name__.endswith(head)), "Model")
    known = {field.name for field in fields(PARBertConfig)}
    shared = {field.name: getattr(config, field.name) for field in fields(config) if field.name in known}
    shared |= DECODER_LIKE
    others = {"model.embed_token_types.weight": Piece(torch.zeros(1, config.hidden_size), ()), **others}
    if config.attention_window is not None:
        # a decoder's looks back only, and an encoder's to both sides
        shared["attention_window"] = 2 * config.attention_window
    if head == "ForSequenceClassification":
        if (pooling := source.config.classifier_pooling) not in POOLINGS:
            raise ValueError(f"classifier_pooling={pooling!r} cannot be converted; only {' and '.join(POOLINGS)} can")
        shared |= {"head_type": "bert", "pooler_act": "gelu", "classifier_pooling": POOLINGS[pooling]}
        shared["classifier_dropout"] = 0.0
        others = {name.replace("dense.", "model.pooler.dense."): piece for name, piece in others.items()}
    if head == "ForTokenClassification":
        # EuroBERT has none
        shared["classifier_dropout"] = source.dropout.p if hasattr(source, "dropout") else 0.0
        # a classifier of Llama has no bias
        bias = {"classifier.bias": Piece(torch.zeros(source.config.num_labels), ())}
        others = bias | {name.replace("score.", "classifier."): piece for name, piece in others.items()}
    return assemble(PAR_BERTS[head], PARBertConfig(**shared), sublayers, others, partly=True)
