"""The public names, each of which is imported when it is first used."""

from sublayers.auto_models import (
    AUTO_CLASSES as AUTO_CLASSES,
)
from sublayers.configuration.configuration_iot_seq2seq import (
    IOTSeq2SeqConfig as IOTSeq2SeqConfig,
)
from sublayers.configuration.configuration_macaron_bert import (
    MacaronBertConfig as MacaronBertConfig,
)
from sublayers.configuration.configuration_macaron_seq2seq import (
    MacaronSeq2SeqConfig as MacaronSeq2SeqConfig,
)
from sublayers.configuration.configuration_par_bert import (
    PARBertConfig as PARBertConfig,
)
from sublayers.configuration.configuration_par_transformer_xl import (
    PARTransformerXLConfig as PARTransformerXLConfig,
)
from sublayers.configuration.configuration_sandwich_char_lm import (
    SandwichCharLMConfig as SandwichCharLMConfig,
)
from sublayers.configuration.configuration_sandwich_lm import (
    SandwichLMConfig as SandwichLMConfig,
)
from sublayers.configuration.configuration_sandwich_seq2seq import (
    SandwichSeq2SeqConfig as SandwichSeq2SeqConfig,
)
from sublayers.configuration.order import (
    Order as Order,
    compact as compact,
    expand as expand,
    interleaved as interleaved,
    macaron as macaron,
    par as par,
    random_balanced as random_balanced,
    random_unbalanced as random_unbalanced,
    sandwich as sandwich,
)
from sublayers.configuration.tapered import (
    tapered as tapered,
)
from sublayers.convert.optimize import (
    optimize as optimize,
    restore as restore,
)
from sublayers.modeling.modeling_iot_seq2seq import (
    IOTSeq2SeqForConditionalGeneration as IOTSeq2SeqForConditionalGeneration,
    IOTSeq2SeqForSequenceClassification as IOTSeq2SeqForSequenceClassification,
    IOTSeq2SeqModel as IOTSeq2SeqModel,
)
from sublayers.modeling.modeling_macaron_bert import (
    MacaronBertForMaskedLM as MacaronBertForMaskedLM,
    MacaronBertForMultipleChoice as MacaronBertForMultipleChoice,
    MacaronBertForNextSentencePrediction as MacaronBertForNextSentencePrediction,
    MacaronBertForPreTraining as MacaronBertForPreTraining,
    MacaronBertForQuestionAnswering as MacaronBertForQuestionAnswering,
    MacaronBertForSequenceClassification as MacaronBertForSequenceClassification,
    MacaronBertForTokenClassification as MacaronBertForTokenClassification,
    MacaronBertModel as MacaronBertModel,
)
from sublayers.modeling.modeling_macaron_seq2seq import (
    MacaronSeq2SeqForConditionalGeneration as MacaronSeq2SeqForConditionalGeneration,
    MacaronSeq2SeqForSequenceClassification as MacaronSeq2SeqForSequenceClassification,
    MacaronSeq2SeqModel as MacaronSeq2SeqModel,
)
from sublayers.modeling.modeling_par_bert import (
    PARBertForMaskedLM as PARBertForMaskedLM,
    PARBertForMultipleChoice as PARBertForMultipleChoice,
    PARBertForNextSentencePrediction as PARBertForNextSentencePrediction,
    PARBertForPreTraining as PARBertForPreTraining,
    PARBertForQuestionAnswering as PARBertForQuestionAnswering,
    PARBertForSequenceClassification as PARBertForSequenceClassification,
    PARBertForTokenClassification as PARBertForTokenClassification,
    PARBertModel as PARBertModel,
)
from sublayers.modeling.modeling_par_transformer_xl import (
    PARTransformerXLForCausalLM as PARTransformerXLForCausalLM,
    PARTransformerXLForSequenceClassification as PARTransformerXLForSequenceClassification,
    PARTransformerXLModel as PARTransformerXLModel,
)
from sublayers.modeling.modeling_sandwich_char_lm import (
    SandwichCharLMForCausalLM as SandwichCharLMForCausalLM,
    SandwichCharLMModel as SandwichCharLMModel,
)
from sublayers.modeling.modeling_sandwich_lm import (
    SandwichLMForCausalLM as SandwichLMForCausalLM,
    SandwichLMForSequenceClassification as SandwichLMForSequenceClassification,
    SandwichLMModel as SandwichLMModel,
)
from sublayers.modeling.modeling_sandwich_seq2seq import (
    SandwichSeq2SeqForConditionalGeneration as SandwichSeq2SeqForConditionalGeneration,
    SandwichSeq2SeqForSequenceClassification as SandwichSeq2SeqForSequenceClassification,
    SandwichSeq2SeqModel as SandwichSeq2SeqModel,
)

__version__: str
