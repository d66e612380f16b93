"""The classes of every family by Auto class; importing this module registers them."""

from importlib import import_module
from typing import Any

import transformers
from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from sublayers.auto_configurations import CONFIGURATION_CLASSES
from sublayers.configuration.configuration_sublayers import SublayersConfig
from sublayers.families import FAMILIES, MODELS

AUTO_CLASSES: dict[type[SublayersConfig], dict[Any, Any]] = {
    CONFIGURATION_CLASSES[model_type]: {
        getattr(transformers, auto_class): getattr(import_module(f"sublayers.{MODELS[model_type]}"), name)
        for auto_class, name in family.models.items()
    }
    for model_type, family in FAMILIES.items()
}

for config_class, heads in AUTO_CLASSES.items():
    for auto_class, model_class in heads.items():
        auto_class.register(config_class, model_class)
    if causal_lm := heads.get(AutoModelForCausalLM):
        # the Trainer's label smoothing shifts the labels only of the causal models that it knows by name
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config_class.model_type] = causal_lm.__name__


def families(*auto_classes: Any) -> dict[str, type[SublayersConfig]]:
    """Choose the families that have a model for any of these Auto classes: configurations by `model_type`."""
    return {config.model_type: config for config, heads in AUTO_CLASSES.items() if heads.keys() & {*auto_classes}}
