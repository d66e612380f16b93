"""The classes of every family by Auto class; importing this module registers them."""

from typing import Any

from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForNextSentencePrediction,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from sublayers.configuration.configuration_iot_seq2seq import IOTSeq2SeqConfig
from sublayers.configuration.configuration_macaron_bert import MacaronBertConfig
from sublayers.configuration.configuration_macaron_seq2seq import MacaronSeq2SeqConfig
from sublayers.configuration.configuration_par_bert import PARBertConfig
from sublayers.configuration.configuration_par_transformer_xl import PARTransformerXLConfig
from sublayers.configuration.configuration_sandwich_char_lm import SandwichCharLMConfig
from sublayers.configuration.configuration_sandwich_lm import SandwichLMConfig
from sublayers.configuration.configuration_sandwich_seq2seq import SandwichSeq2SeqConfig
from sublayers.configuration.configuration_sublayers import SublayersConfig
from sublayers.modeling.modeling_iot_seq2seq import IOTSeq2SeqForConditionalGeneration, IOTSeq2SeqModel
from sublayers.modeling.modeling_macaron_bert import (
    MacaronBertForMaskedLM,
    MacaronBertForMultipleChoice,
    MacaronBertForNextSentencePrediction,
    MacaronBertForPreTraining,
    MacaronBertForQuestionAnswering,
    MacaronBertForSequenceClassification,
    MacaronBertForTokenClassification,
    MacaronBertModel,
)
from sublayers.modeling.modeling_macaron_seq2seq import MacaronSeq2SeqForConditionalGeneration, MacaronSeq2SeqModel
from sublayers.modeling.modeling_par_bert import (
    PARBertForMaskedLM,
    PARBertForMultipleChoice,
    PARBertForNextSentencePrediction,
    PARBertForPreTraining,
    PARBertForQuestionAnswering,
    PARBertForSequenceClassification,
    PARBertForTokenClassification,
    PARBertModel,
)
from sublayers.modeling.modeling_par_transformer_xl import (
    PARTransformerXLForCausalLM,
    PARTransformerXLForSequenceClassification,
    PARTransformerXLModel,
)
from sublayers.modeling.modeling_sandwich_char_lm import SandwichCharLMForCausalLM, SandwichCharLMModel
from sublayers.modeling.modeling_sandwich_lm import (
    SandwichLMForCausalLM,
    SandwichLMForSequenceClassification,
    SandwichLMModel,
)
from sublayers.modeling.modeling_sandwich_seq2seq import SandwichSeq2SeqForConditionalGeneration, SandwichSeq2SeqModel

AUTO_CLASSES: dict[type[SublayersConfig], dict[Any, Any]] = {
    SandwichLMConfig: {
        AutoModel: SandwichLMModel,
        AutoModelForCausalLM: SandwichLMForCausalLM,
        AutoModelForSequenceClassification: SandwichLMForSequenceClassification,
    },
    PARBertConfig: {
        AutoModel: PARBertModel,
        AutoModelForPreTraining: PARBertForPreTraining,
        AutoModelForMaskedLM: PARBertForMaskedLM,
        AutoModelForNextSentencePrediction: PARBertForNextSentencePrediction,
        AutoModelForSequenceClassification: PARBertForSequenceClassification,
        AutoModelForTokenClassification: PARBertForTokenClassification,
        AutoModelForQuestionAnswering: PARBertForQuestionAnswering,
        AutoModelForMultipleChoice: PARBertForMultipleChoice,
    },
    MacaronBertConfig: {
        AutoModel: MacaronBertModel,
        AutoModelForPreTraining: MacaronBertForPreTraining,
        AutoModelForMaskedLM: MacaronBertForMaskedLM,
        AutoModelForNextSentencePrediction: MacaronBertForNextSentencePrediction,
        AutoModelForSequenceClassification: MacaronBertForSequenceClassification,
        AutoModelForTokenClassification: MacaronBertForTokenClassification,
        AutoModelForQuestionAnswering: MacaronBertForQuestionAnswering,
        AutoModelForMultipleChoice: MacaronBertForMultipleChoice,
    },
    MacaronSeq2SeqConfig: {
        AutoModel: MacaronSeq2SeqModel,
        AutoModelForSeq2SeqLM: MacaronSeq2SeqForConditionalGeneration,
    },
    SandwichSeq2SeqConfig: {
        AutoModel: SandwichSeq2SeqModel,
        AutoModelForSeq2SeqLM: SandwichSeq2SeqForConditionalGeneration,
    },
    IOTSeq2SeqConfig: {AutoModel: IOTSeq2SeqModel, AutoModelForSeq2SeqLM: IOTSeq2SeqForConditionalGeneration},
    PARTransformerXLConfig: {
        AutoModel: PARTransformerXLModel,
        AutoModelForCausalLM: PARTransformerXLForCausalLM,
        AutoModelForSequenceClassification: PARTransformerXLForSequenceClassification,
    },
    SandwichCharLMConfig: {AutoModel: SandwichCharLMModel, AutoModelForCausalLM: SandwichCharLMForCausalLM},
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
