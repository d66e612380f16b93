"""The configuration of every family; importing this module registers them with AutoConfig."""

from transformers import AutoConfig

from sublayers.configuration.configuration_iot_seq2seq import IOTSeq2SeqConfig
from sublayers.configuration.configuration_macaron_bert import MacaronBertConfig
from sublayers.configuration.configuration_macaron_seq2seq import MacaronSeq2SeqConfig
from sublayers.configuration.configuration_par_bert import PARBertConfig
from sublayers.configuration.configuration_par_transformer_xl import PARTransformerXLConfig
from sublayers.configuration.configuration_sandwich_char_lm import SandwichCharLMConfig
from sublayers.configuration.configuration_sandwich_lm import SandwichLMConfig
from sublayers.configuration.configuration_sandwich_seq2seq import SandwichSeq2SeqConfig

for config_class in (
    SandwichLMConfig,
    PARBertConfig,
    MacaronBertConfig,
    MacaronSeq2SeqConfig,
    SandwichSeq2SeqConfig,
    IOTSeq2SeqConfig,
    PARTransformerXLConfig,
    SandwichCharLMConfig,
):
    AutoConfig.register(config_class.model_type, config_class)
