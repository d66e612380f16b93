"""The tasks whose pipelines transformers 5 removed, with our classes for them and the models that these need."""

from transformers import AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM

from sublayers.tasks.question_answering import QuestionAnsweringPipeline
from sublayers.tasks.text2text_generation import SummarizationPipeline, Text2TextGenerationPipeline, TranslationPipeline

PIPELINES = {
    "question-answering": (QuestionAnsweringPipeline, AutoModelForQuestionAnswering),
    "summarization": (SummarizationPipeline, AutoModelForSeq2SeqLM),
    "text2text-generation": (Text2TextGenerationPipeline, AutoModelForSeq2SeqLM),
    "translation": (TranslationPipeline, AutoModelForSeq2SeqLM),
}
