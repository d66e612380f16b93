"""A tiny model of every family with its main head, and inputs that all of them read."""

from typing import Any

import pytest
import torch
from common import BOS, EOS, PAD, VOCAB, randomize, tokens
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForSeq2SeqLM,
    PreTrainedModel,
)

from sublayers import (
    AUTO_CLASSES,
    IOTSeq2SeqConfig,
    MacaronBertConfig,
    MacaronSeq2SeqConfig,
    PARBertConfig,
    PARTransformerXLConfig,
    SandwichCharLMConfig,
    SandwichLMConfig,
    SandwichSeq2SeqConfig,
)

SIZES = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
SIZES |= {"max_position_embeddings": 64, "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
SIZES |= dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
PAIR = {"encoder_sublayer_order": "sff", "decoder_sublayer_order": "fscscf"}
CHOICE = {"encoder_orders": ["sf", "fs"], "decoder_orders": ["scf", "fsc"]}
CHOICE |= {"num_encoder_blocks": 1, "num_decoder_blocks": 1}
# the configuration, the main head and the orders of each family
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "sandwich_lm": (SandwichLMConfig, AutoModelForCausalLM, {"sublayer_order": "sfsff", "final_norm": True}),
    "par_bert": (PARBertConfig, AutoModelForMaskedLM, {"sublayer_order": "sfsff"}),
    "macaron_bert": (MacaronBertConfig, AutoModelForMaskedLM, {"sublayer_order": "fsffsf"}),
    "macaron_seq2seq": (MacaronSeq2SeqConfig, AutoModelForSeq2SeqLM, PAIR),
    "sandwich_seq2seq": (SandwichSeq2SeqConfig, AutoModelForSeq2SeqLM, PAIR),
    "iot_seq2seq": (IOTSeq2SeqConfig, AutoModelForSeq2SeqLM, CHOICE),
    "par_transformer_xl": (
        PARTransformerXLConfig,
        AutoModelForCausalLM,
        {"sublayer_order": "sfsff", "adaptive_cutoffs": [20, 40], "memory_length": 32},
    ),
    "sandwich_char_lm": (
        SandwichCharLMConfig,
        AutoModelForCausalLM,
        {"sublayer_order": "sfsff", "attention_span": 32, "span_ramp_size": 8},
    ),
}
# a second set of configurations, with the parts of today's models
TODAY = {"position_embedding_type": "rotary", "norm_type": "rms", "hidden_act": "silu", "gated_feed_forward": True}
TODAY |= {"num_key_value_heads": 2, "head_dim": 8, "qk_norm": True}
TODAY |= dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias"), False)
HEADS = [(config_class, auto_class) for config_class, heads in AUTO_CLASSES.items() for auto_class in heads]
ENCODER_DECODERS = [family for family, (_, head, _) in FAMILIES.items() if head is AutoModelForSeq2SeqLM]
every_family = pytest.mark.parametrize("family", FAMILIES)
LOCAL = TODAY | {"sublayer_order": "(sfwf)2", "attention_window": 4}
TAIL = {"sublayer_order": "sf(mf)2"}
SINGLE = ("sandwich_lm", "par_bert")
every_family_and_todays_parts = pytest.mark.parametrize(
    ("family", "options"),
    [*((family, {}) for family in FAMILIES), *((family, parts) for parts in (LOCAL, TAIL) for family in SINGLE)],
    ids=[*FAMILIES, *(f"{family} {name}" for name in ("today", "tail") for family in SINGLE)],
)
every_model = pytest.mark.parametrize(("config_class", "auto_class"), HEADS, ids=lambda part: part.__name__)


def small(config_class: type, **options) -> Any:
    """A tiny configuration of a family."""
    orders = next(orders for known, _, orders in FAMILIES.values() if known is config_class)
    return config_class(**SIZES | orders | options)


def build_model(config_class: type, auto_class: type, **options) -> PreTrainedModel:
    return randomize(AUTO_CLASSES[config_class][auto_class](small(config_class, **options)))


def build(family: str, head: Any = None, **options) -> PreTrainedModel:
    config_class, main_head, _ = FAMILIES[family]
    return build_model(config_class, head or main_head, **options)


def inputs(model: PreTrainedModel, rows: int = 3, length: int = 9) -> dict[str, torch.Tensor]:
    """Tokens of which the second row is padded on its left and the third on its right."""
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[1, :4] = mask[2, -3:] = 0
    batch = {"input_ids": tokens(rows, length), "attention_mask": mask}
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = tokens(rows, length - 2)
    return batch


def padded(model: PreTrainedModel, auto_class: type) -> dict[str, torch.Tensor]:
    """Three rows, or three pairs of them to choose from, with a gap and with padding on both sides."""
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[0, 2] = mask[1, :4] = mask[2, -3:] = 0
    batch = {"input_ids": tokens(3, 9), "attention_mask": mask}
    if auto_class is AutoModelForMultipleChoice:
        return {name: torch.stack([rows, rows.flip(0)], 1) for name, rows in batch.items()}
    if model.config.is_encoder_decoder:
        batch |= {"decoder_input_ids": tokens(3, 9).flip(0), "decoder_attention_mask": mask.flip(0)}
    return batch


def logits(model, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The scores that are not those of padding: (tokens, vocabulary)."""
    with torch.no_grad():
        scores = model(**batch).logits
    return scores.flatten(0, 1) if "decoder_input_ids" in batch else scores[batch["attention_mask"].bool()]
