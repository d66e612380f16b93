"""The configurations of all families; importing this module registers them with AutoConfig, and with PEFT if used."""

from types import ModuleType

import wrapt
from transformers import AutoConfig

from sublayers.configuration.configuration_iot_seq2seq import IOTSeq2SeqConfig
from sublayers.configuration.configuration_macaron_bert import MacaronBertConfig
from sublayers.configuration.configuration_macaron_seq2seq import MacaronSeq2SeqConfig
from sublayers.configuration.configuration_par_bert import PARBertConfig
from sublayers.configuration.configuration_par_transformer_xl import PARTransformerXLConfig
from sublayers.configuration.configuration_sandwich_char_lm import SandwichCharLMConfig
from sublayers.configuration.configuration_sandwich_lm import SandwichLMConfig
from sublayers.configuration.configuration_sandwich_seq2seq import SandwichSeq2SeqConfig

CONFIGURATIONS = (
    SandwichLMConfig,
    PARBertConfig,
    MacaronBertConfig,
    MacaronSeq2SeqConfig,
    SandwichSeq2SeqConfig,
    IOTSeq2SeqConfig,
    PARTransformerXLConfig,
    SandwichCharLMConfig,
)
for config_class in CONFIGURATIONS:
    AutoConfig.register(config_class.model_type, config_class)


def name_maps(constants: ModuleType) -> None:
    """Tell PEFT which maps get adapters where nobody names them: our maps have the names of BART's."""
    for name, maps in vars(constants).items():
        if name.endswith("_MODULES_MAPPING") and "bart" in maps:
            maps.update({config_class.model_type: maps["bart"] for config_class in CONFIGURATIONS})


wrapt.register_post_import_hook(name_maps, "peft.utils.constants")
