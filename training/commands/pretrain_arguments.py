"""What `sublayers pretrain` can be asked for, known before the models, which take seconds to import."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from sublayers.training.data.corpus import CorpusArguments
from sublayers.training.data.tokenizers import TokenizerModel
from sublayers.training.trainers.arguments import FromScratchArguments, ModelArguments, default

USAGE = "sublayers pretrain [RECIPE | SETTINGS.yaml] [--name value ...]"


@dataclass
class RunArguments(ModelArguments):
    """Flags for what is trained on how much."""

    _argument_group_name: ClassVar[str] = "model, tokenizer and windows"

    model_type: str = field(default="sandwich_lm", metadata={"help": "family of a new model; par_bert for mlm"})
    tokenizer_model: TokenizerModel = field(
        default="bpe", metadata={"help": "kind of tokenizer to train; wordpiece for mlm"}
    )
    vocabulary_file: str | None = field(
        default=None,
        metadata={"help": ".txt with a word in each line, the most frequent first; default: counted on the corpus"},
    )
    objective: Literal["clm", "mlm", "mlm+nsp"] = field(
        default="clm",
        metadata={
            "help": "causal or masked language modelling, or the latter with next-sentence prediction; "
            "default for a --model_type that is not causal: mlm"
        },
    )
    whole_word_mask: bool = field(default=False, metadata={"help": "mask whole words"})
    optimizer: Literal["lamb", "jitlamb", "adagrad"] | None = field(
        default=None,
        metadata={"help": "takes the place of --optim; NVIDIA's LAMB for BERT or for Transformer-XL, or Adagrad"},
    )
    max_tensor_grad_norm: float | None = field(
        default=None, metadata={"help": "clip the gradient of each tensor by itself; needs --optimizer adagrad"}
    )
    block_size: int = field(
        default=512,
        metadata={"help": "tokens in a window, in a segment of a model with memory, or in a pair of segments"},
    )
    context_window: int = field(
        default=0, metadata={"help": "least context of a token in evaluation; Baevski and Auli: 2560 in blocks of 3072"}
    )
    evaluation_length: int | None = field(
        default=None, metadata={"help": "tokens in a segment in evaluation with memory; default: --block_size"}
    )
    evaluation_memory_length: int | None = field(
        default=None, metadata={"help": "memory_length in evaluation; every token then sees as many tokens"}
    )
    evaluation_clamp_length: int | None = field(default=None, metadata={"help": "clamp_length in evaluation"})
    max_train_samples: int | None = field(
        default=None, metadata={"help": "use the first documents only (lines of a .txt)"}
    )
    max_eval_samples: int | None = field(default=None, metadata={"help": "as --max_train_samples"})


@dataclass
class PretrainingArguments(FromScratchArguments):
    """The Trainer's arguments for training a small language model; train and evaluate by default."""

    output_dir: str = default("output_dir", "runs/pretrain")


FLAGS = (RunArguments, CorpusArguments, PretrainingArguments)
