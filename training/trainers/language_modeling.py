"""What the Trainer is given for causal and for masked language modelling: data, batches and metrics."""

from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase, default_data_collator

from sublayers.training.data.corpus import Text
from sublayers.training.data.language_modeling import Windows, all_tokens
from sublayers.training.data.masked_language_modeling import (
    SentencePairs,
    TokenWindows,
    check_tokenizer,
    pad_examples,
    tokenize_sentences,
)
from sublayers.training.data.segments import training_segments, whole_text
from sublayers.training.data.streamed_windows import StreamedWindows
from sublayers.training.metrics.language_modeling import (
    language_modeling_metrics,
    masked_metrics,
    masked_scores,
    token_losses,
)
from sublayers.training.trainers.resumable_trainer import EpochCallback


def causal_trainer_arguments(
    tokenizer: PreTrainedTokenizerBase,
    train: Text | None,
    validation: Text | None,
    block_size: int,
    context_window: int = 0,
    streaming: bool = False,
) -> dict[str, Any]:
    """Make the Trainer's arguments for causal language modelling.

    Args:
        tokenizer: a tokenizer with an end token.
        train: text to train on, if any.
        validation: text to evaluate on, if any.
        block_size: tokens in a window.
        context_window: least context of a token in evaluation; see `Windows`.
        streaming: never have the training text in memory as a whole.

    Raises:
        ValueError: a tokenizer or a text that does not do.
    """
    if train and streaming:
        train_windows: Any = StreamedWindows(train, tokenizer, block_size)
    else:
        train_windows = train and Windows(all_tokens(train, tokenizer), block_size)
    return {
        "train_dataset": train_windows,
        "eval_dataset": validation and Windows(all_tokens(validation, tokenizer), block_size, context_window),
        "data_collator": default_data_collator,
        "compute_metrics": validation and language_modeling_metrics(validation),
        "preprocess_logits_for_metrics": token_losses,
    }


def stream_trainer_arguments(
    tokenizer: PreTrainedTokenizerBase,
    train: Text | None,
    validation: Text | None,
    block_size: int,
    evaluation_length: int,
    rows: int,
) -> dict[str, Any]:
    """Make the `StreamTrainer`'s arguments for causal language modelling with memory.

    Args:
        tokenizer: a tokenizer with an end token.
        train: text to train on, if any.
        validation: text to evaluate on, if any.
        block_size: tokens in a segment.
        evaluation_length: the same in evaluation.
        rows: in a batch of all processes.

    Raises:
        ValueError: a tokenizer or a text that does not do.
    """
    return {
        "train_dataset": train and training_segments(all_tokens(train, tokenizer), block_size, rows),
        "eval_dataset": validation and whole_text(all_tokens(validation, tokenizer), evaluation_length),
        "data_collator": default_data_collator,
        "compute_metrics": validation and language_modeling_metrics(validation),
    }


def masked_trainer_arguments(
    tokenizer: PreTrainedTokenizerBase,
    train: Text | None,
    validation: Text | None,
    pairs: bool,
    **settings: Any,
) -> dict[str, Any]:
    """Make the Trainer's arguments for masked language modelling.

    Args:
        tokenizer: a tokenizer with [CLS], [SEP], [MASK] and [PAD].
        train: text to train on, if any.
        validation: text to evaluate on, if any.
        pairs: with next-sentence prediction.
        settings: `block_size`, `seed` and `whole_word_mask` of `MaskedExamples`.

    Raises:
        ValueError: a tokenizer or a text that does not do.
    """
    # the tokenizer is checked before the corpus is tokenized, which takes long
    check_tokenizer(tokenizer, settings["whole_word_mask"])
    example_class = SentencePairs if pairs else TokenWindows
    train_examples, eval_examples = (
        text and example_class(tokenize_sentences(text, tokenizer), tokenizer, **settings)
        for text in (train, validation)
    )
    return {
        "train_dataset": train_examples,
        "eval_dataset": eval_examples,
        "data_collator": partial(pad_examples, pad_token_id=tokenizer.pad_token_id),
        "compute_metrics": masked_metrics,
        "preprocess_logits_for_metrics": masked_scores,
        "callbacks": [EpochCallback(train_examples.epoch.fill_)] if train_examples else [],
    }
