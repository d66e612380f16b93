"""The families, a line each, from which follow the public names, their type stub, and what the Auto classes know."""

from typing import NamedTuple

BERT: tuple[str, ...] = ("ForPreTraining", "ForMaskedLM", "ForNextSentencePrediction", "ForSequenceClassification")
BERT += ("ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")
SEQ2SEQ: tuple[str, ...] = ("ForConditionalGeneration", "ForSequenceClassification")
HEADS: tuple[str, ...] = (*BERT, "ForCausalLM", "ForConditionalGeneration")
# heads whose Auto class has another name
AUTO_NAMES = {"Model": "AutoModel", "ForConditionalGeneration": "AutoModelForSeq2SeqLM"}


class Family(NamedTuple):
    """What a family's classes are called: its name, and then `Config`, `Model`, or the name of a head."""

    name: str
    heads: tuple[str, ...]

    @property
    def models(self) -> dict[str, str]:
        """The classes of models by their Auto class."""
        return {AUTO_NAMES.get(end, f"AutoModel{end}"): self.name + end for end in ("Model", *self.heads)}


# the families by model_type, with which the names of their modules end
FAMILIES = {
    "sandwich_lm": Family("SandwichLM", ("ForCausalLM", "ForSequenceClassification")),
    "par_bert": Family("PARBert", BERT),
    "macaron_bert": Family("MacaronBert", BERT),
    "macaron_seq2seq": Family("MacaronSeq2Seq", SEQ2SEQ),
    "sandwich_seq2seq": Family("SandwichSeq2Seq", SEQ2SEQ),
    "iot_seq2seq": Family("IOTSeq2Seq", SEQ2SEQ),
    "par_transformer_xl": Family("PARTransformerXL", ("ForCausalLM", "ForSequenceClassification")),
    "sandwich_char_lm": Family("SandwichCharLM", ("ForCausalLM",)),
}
CONFIGURATIONS = {model_type: f"configuration.configuration_{model_type}" for model_type in FAMILIES}
MODELS = {model_type: f"modeling.modeling_{model_type}" for model_type in FAMILIES}
ORDERS = ["Order", "compact", "expand", "interleaved", "macaron", "par", "random_balanced", "random_unbalanced"]
ORDERS += ["sandwich"]
# the public names by module
NAMES = {
    "auto_models": ["AUTO_CLASSES"],
    **{CONFIGURATIONS[model_type]: [f"{family.name}Config"] for model_type, family in FAMILIES.items()},
    "configuration.order": ORDERS,
    "configuration.tapered": ["tapered"],
    "convert.optimize": ["optimize", "restore"],
    **{MODELS[model_type]: sorted(family.models.values()) for model_type, family in FAMILIES.items()},
}


def head_of(name: str) -> str:
    """Say which of `HEADS` a class has, by the end of its name, or "Model" where it has none of them."""
    return next((head for head in HEADS if name.endswith(head)), "Model")


def stub() -> str:
    """Write the public names for type checkers, which do not run code."""
    lines = ['"""The public names, each of which is imported when it is first used."""', ""]
    for module, names in sorted(NAMES.items()):
        lines += [f"from sublayers.{module} import (", *(f"    {name} as {name}," for name in names), ")"]
    return "\n".join([*lines, "", "__version__: str", ""])
