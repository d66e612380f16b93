"""Transformers with reordered sublayers, as Hugging Face Transformers models."""

__version__ = "0.1.0"

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from sublayers.configuration.configuration_sandwich_lm import SandwichLMConfig
from sublayers.configuration.sublayer_order import (
    compact,
    expand,
    interleaved,
    macaron,
    par,
    random_balanced,
    random_unbalanced,
    sandwich,
)
from sublayers.modeling.modeling_sandwich_lm import (
    SandwichLMForCausalLM,
    SandwichLMForSequenceClassification,
    SandwichLMModel,
)

AUTO_CLASSES = {
    SandwichLMConfig: {
        AutoModel: SandwichLMModel,
        AutoModelForCausalLM: SandwichLMForCausalLM,
        AutoModelForSequenceClassification: SandwichLMForSequenceClassification,
    },
}

for config_class, heads in AUTO_CLASSES.items():
    AutoConfig.register(config_class.model_type, config_class)
    for auto_class, model_class in heads.items():
        auto_class.register(config_class, model_class)
    if causal_lm := heads.get(AutoModelForCausalLM):
        # the Trainer's label smoothing shifts the labels only of the causal models that it knows by name
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config_class.model_type] = causal_lm.__name__

__all__ = [
    "SandwichLMConfig",
    "SandwichLMForCausalLM",
    "SandwichLMForSequenceClassification",
    "SandwichLMModel",
    "compact",
    "expand",
    "interleaved",
    "macaron",
    "par",
    "random_balanced",
    "random_unbalanced",
    "sandwich",
]
