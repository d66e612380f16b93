"""The configurations of all families; importing this module registers them with AutoConfig, and with PEFT if used."""

from importlib import import_module
from types import ModuleType
from typing import Any

import wrapt
from transformers import AutoConfig

from sublayers.families import CONFIGURATIONS, FAMILIES

CONFIGURATION_CLASSES: dict[str, Any] = {
    model_type: getattr(import_module(f"sublayers.{module}"), f"{FAMILIES[model_type].name}Config")
    for model_type, module in CONFIGURATIONS.items()
}
for model_type, config_class in CONFIGURATION_CLASSES.items():
    AutoConfig.register(model_type, config_class)


def name_maps(constants: ModuleType) -> None:
    """Tell PEFT which maps get adapters where nobody names them: our maps have the names of BART's."""
    for name, maps in vars(constants).items():
        if name.endswith("_MODULES_MAPPING") and "bart" in maps:
            maps.update(dict.fromkeys(FAMILIES, maps["bart"]))


wrapt.register_post_import_hook(name_maps, "peft.utils.constants")
