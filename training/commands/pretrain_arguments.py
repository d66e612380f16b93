"""What `sublayers pretrain` can be asked for: the objectives, the families they have heads in, and the flags."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForPreTraining

from sublayers.auto_models import AUTO_CLASSES, families
from sublayers.training.data.language_modeling import check_windows
from sublayers.training.data.tokenizers import TokenizerModel
from sublayers.training.flags import deciding_flags
from sublayers.training.trainers.arguments import FromScratchArguments, ModelArguments, default


class Objective(NamedTuple):
    """What differs by objective: the class of the models, and the defaults for a new one."""

    auto_class: Any
    model_type: str
    tokenizer_model: TokenizerModel


OBJECTIVES = {
    "clm": Objective(AutoModelForCausalLM, "sandwich_lm", "bpe"),
    "mlm": Objective(AutoModelForMaskedLM, "par_bert", "wordpiece"),
    "mlm+nsp": Objective(AutoModelForPreTraining, "par_bert", "wordpiece"),
}
PRETRAINED = families(*(objective.auto_class for objective in OBJECTIVES.values()))


@dataclass
class RunArguments(ModelArguments):
    """Flags for what is trained on how much."""

    _argument_group_name: ClassVar[str] = "model, tokenizer and windows"

    model_type: str = field(default="sandwich_lm", metadata={"help": "family of a new model; with masks par_bert"})
    tokenizer_model: TokenizerModel = field(
        default="bpe", metadata={"help": "kind of tokenizer to train; with masks wordpiece"}
    )
    objective: Literal["clm", "mlm", "mlm+nsp"] = field(
        default="clm",
        metadata={
            "help": "causal or masked language modelling, or the latter with next-sentence prediction; "
            "of a --model_type that is not causal mlm"
        },
    )
    whole_word_mask: bool = field(default=False, metadata={"help": "mask whole words"})
    optimizer: Literal["lamb"] | None = field(default=None, metadata={"help": "takes the place of --optim"})
    block_size: int = field(default=512, metadata={"help": "tokens in a window, or in a pair of segments"})
    context_window: int = field(
        default=0, metadata={"help": "least context of a token in evaluation; Baevski and Auli: 2560 in blocks of 3072"}
    )
    max_train_samples: int | None = field(
        default=None, metadata={"help": "use the first documents only (lines of a .txt)"}
    )
    max_eval_samples: int | None = field(default=None, metadata={"help": "as --max_train_samples"})


@dataclass
class PretrainingArguments(FromScratchArguments):
    """The Trainer's arguments for training a small language model; train and evaluate by default."""

    output_dir: str = default("output_dir", "runs/pretrain")


def choose_family(argv: list[str]) -> tuple[str, list[str]]:
    """Find the family of the model, which decides what flags there are, and the flags that follow from the objective.

    Args:
        argv: flags; without `--model_type` or `--objective` each follows from the other.

    Raises:
        ValueError: an unknown family or objective, or a family without a head for the objective.
    """
    given = deciding_flags(argv, model_type=PRETRAINED, objective=OBJECTIVES)
    model_type = given.get("model_type")
    objective = given.get("objective") or (_objectives(model_type) if model_type else [*OBJECTIVES])[0]
    _, default_type, tokenizer_model = OBJECTIVES[objective]
    model_type = model_type or default_type
    check_head(model_type, objective)
    decided = {"model_type": model_type, "objective": objective, "tokenizer_model": tokenizer_model}
    return model_type, [f"--{name}={value}" for name, value in decided.items()]


def check_head(model_type: str, objective: str) -> None:
    """Check that a family has a head for an objective.

    Raises:
        ValueError: it has none.
    """
    if objective not in (known := _objectives(model_type)):
        raise ValueError(f"{model_type} has no head for --objective {objective}; choose from {', '.join(known)}")


def check_objective(run: RunArguments, streaming: bool) -> None:
    """Check that the flags go with the objective.

    Raises:
        ValueError: they do not.
    """
    if run.objective == "clm":
        check_windows(run.block_size, run.context_window)
        if run.whole_word_mask:
            raise ValueError("--objective clm masks nothing; leave --whole_word_mask out or choose mlm or mlm+nsp")
        return
    if run.block_size < 5:
        raise ValueError(f"block_size={run.block_size} has no room for two segments and [CLS], [SEP]; give 5 or more")
    for name, value in {"context_window": run.context_window, "streaming": streaming}.items():
        if value:
            raise ValueError(f"--{name} is for --objective clm; leave it out for {run.objective}")
    if run.tokenizer_model != "wordpiece":
        raise ValueError(
            f"--tokenizer_model {run.tokenizer_model} has no [MASK] for --objective {run.objective}; choose wordpiece"
        )


def _objectives(model_type: str) -> list[str]:
    heads = AUTO_CLASSES[PRETRAINED[model_type]]
    return [name for name, objective in OBJECTIVES.items() if objective.auto_class in heads]
