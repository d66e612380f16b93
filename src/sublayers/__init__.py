"""Transformers with reordered sublayers, as Hugging Face Transformers models."""

from importlib import import_module
from types import ModuleType

import lazy_loader
import wrapt

from sublayers.families import NAMES

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=NAMES)


def hand_over_hub(module: ModuleType) -> None:
    """Let configurations find the module that writes folders, which they import when they are made."""
    module.SublayersConfig.package = staticmethod(lambda: import_module("sublayers.hub.self_contained"))


def publish_code(module: ModuleType) -> None:
    """Let each Trainer that publishes one of our models publish its code, too."""
    module.DEFAULT_CALLBACKS.append(import_module("sublayers.hub.trainer_callback").SelfContainedCallback)


wrapt.register_post_import_hook(hand_over_hub, "sublayers.configuration.configuration_sublayers")
# before anything of this package meets a transformers with which it was not tested
wrapt.register_post_import_hook(lambda _: import_module("sublayers.configuration.versions"), "transformers")
wrapt.register_post_import_hook(publish_code, "transformers.trainer")
# AutoConfig learns of our configurations when somebody imports it, and with the first of them come the models: who
# imports neither, such as `sublayers order`, need not wait for torch
wrapt.register_post_import_hook(
    lambda _: import_module("sublayers.auto_configurations"), "transformers.models.auto.configuration_auto"
)
