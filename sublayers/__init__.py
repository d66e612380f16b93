"""Transformers with reordered sublayers, as Hugging Face Transformers models."""

from importlib import import_module

import lazy_loader
import wrapt

__version__ = "0.1.0"
# __init__.pyi says where each name is from
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

# AutoConfig learns of our configurations when somebody imports it, and with the first of them come the models: who
# wants neither, such as `sublayers order`, need not wait for torch
wrapt.register_post_import_hook(
    lambda _: import_module("sublayers.auto_configurations"), "transformers.models.auto.configuration_auto"
)
