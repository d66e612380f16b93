"""The Trainers of causal and masked language modelling: their data, batches and metrics."""

from collections.abc import Callable
from functools import partial
from typing import Any

from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase, default_data_collator, set_seed

from sublayers.configuration.configuration_par_transformer_xl import PARTransformerXLConfig
from sublayers.configuration.configuration_recurrent_lm import RecurrentLMConfig
from sublayers.hub.loading import load
from sublayers.training.data.corpus import CorpusArguments, Text, load_corpus
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
from sublayers.training.data.tokenizers import read_words, sample, train_tokenizer
from sublayers.training.metrics.language_modeling import (
    language_modeling_metrics,
    masked_metrics,
    masked_scores,
    token_losses,
)
from sublayers.training.trainers.arguments import TrainerArguments
from sublayers.training.trainers.optimizers import own_optimizer
from sublayers.training.trainers.resumable_trainer import EpochCallback, ResumableTrainer
from sublayers.training.trainers.start import (
    check_positions,
    check_unchanged,
    check_vocabulary,
    find_tokenizer,
    new_model,
)
from sublayers.training.trainers.stream_trainer import StreamTrainer
from sublayers.training.trainers.window_trainer import WindowTrainer


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
        ValueError: the tokenizer or a text is not fit for it.
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
    """Make the `StreamTrainer`'s arguments for a model with memory; see `causal_trainer_arguments`.

    A segment has `block_size` tokens, and in evaluation `evaluation_length`; a batch of all processes has `rows`.
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
    """Make the Trainer's arguments for masked language modelling; see `causal_trainer_arguments`.

    With `pairs`, it predicts the next sentence, too. `settings` are `block_size`, `seed` and `whole_word_mask` of
    `MaskedExamples`.
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


def make_trainer(
    auto_class: Any,
    config: PreTrainedConfig,
    model_flags: dict[str, Any],
    run: Any,
    corpus_args: CorpusArguments,
    args: TrainerArguments,
    checkpoint: str | None = None,
    trainer_class: Callable[..., Any] | None = None,
) -> ResumableTrainer:
    """Read corpus and tokenizer or train one, and make the Trainer of a language model.

    Args:
        auto_class: that has the model's head.
        config: of the model.
        model_flags: fields of it that were given.
        run: the flags of `sublayers pretrain` for what is trained on how much.
        corpus_args: those for the texts.
        args: of the Trainer.
        checkpoint: that the run goes on from, if any.
        trainer_class: makes another Trainer.

    Raises:
        ValueError: flags that do not go together, or a corpus that cannot be read.
    """
    check_positions(config, run, "block_size")
    check_memory(config, run, corpus_args.streaming, args)
    if trainer_class and corpus_args.streaming:
        raise ValueError("a search reads its texts before it trains; leave --streaming out")
    if checkpoint:
        check_unchanged(config, model_flags, checkpoint)
    with args.main_process_first(local=False, desc="reading and tokenizing the corpus"):
        corpus = load_corpus(corpus_args)
        if args.do_train and "train" not in corpus:
            raise ValueError("there is nothing to train on; give --train_file, or --do_eval to evaluate only")

        def train_into(folder: str) -> None:
            if run.vocabulary_file:
                tokenizer = read_words(run.vocabulary_file)
            else:
                texts = sample(corpus["train"], run.tokenizer_model)
                tokenizer = train_tokenizer(texts, run.tokenizer_model, run.vocab_size)
            tokenizer.save_pretrained(folder)

        tokenizer = load(AutoTokenizer, find_tokenizer(run, args, checkpoint, train_into))
        if run.objective == "clm":
            # BERT's ends texts, too, under another name
            tokenizer.eos_token = tokenizer.eos_token or tokenizer.sep_token
        train = corpus["train"].take(run.max_train_samples) if args.do_train else None
        validation = corpus["validation"].take(run.max_eval_samples) if args.do_eval else None
        if isinstance(config, RecurrentLMConfig):
            trainer_class = trainer_class or StreamTrainer
            rows = args.train_batch_size * args.world_size
            length = run.evaluation_length or run.block_size
            windows = stream_trainer_arguments(tokenizer, train, validation, run.block_size, length, rows)
            windows["evaluation_settings"] = evaluation_settings(config, run)
        elif run.objective == "clm":
            if train and corpus_args.streaming:
                trainer_class = WindowTrainer
            windows = causal_trainer_arguments(
                tokenizer, train, validation, run.block_size, run.context_window, corpus_args.streaming
            )
        else:
            settings = {"block_size": run.block_size, "seed": args.seed, "whole_word_mask": run.whole_word_mask}
            windows = masked_trainer_arguments(tokenizer, train, validation, run.objective == "mlm+nsp", **settings)
    set_seed(args.seed)
    if run.model_name_or_path:
        check_vocabulary(tokenizer, config.vocab_size)
        model = load(auto_class, run.model_name_or_path, config=config)
    else:
        model = new_model(auto_class, config, tokenizer)
    trainer = (trainer_class or ResumableTrainer)(
        model=model,
        args=args,
        processing_class=tokenizer,
        optimizer_cls_and_kwargs=own_optimizer(run.optimizer, run.max_tensor_grad_norm, args),
        **windows,
    )
    trainer.about["used"] = {split: text.used for split, text in (("train", train), ("validation", validation)) if text}
    if run.optimizer:
        trainer.about["settings"] = {"optimizer": run.optimizer}
    return trainer


def check_memory(config: PreTrainedConfig, run: Any, streaming: bool, args: TrainerArguments) -> None:
    """Check that the flags go with a model that has memory, or has none.

    Raises:
        ValueError: they do not.
    """
    if not isinstance(config, RecurrentLMConfig):
        for name in ("evaluation_length", "evaluation_memory_length", "evaluation_clamp_length"):
            if getattr(run, name) is not None:
                raise ValueError(f"{config.model_type} has no memory to evaluate with; leave --{name} out")
        return
    accelerator: Any = args.accelerator_config
    refused = {
        "context_window": run.context_window,
        "streaming": streaming,
        "label_smoothing_factor": args.label_smoothing_factor,
        "auto_find_batch_size": args.auto_find_batch_size,
        "accelerator_config": accelerator.split_batches,
    }
    for name, value in refused.items():
        if value:
            raise ValueError(
                f"{config.model_type} reads one stream in rows that never change; leave --{name} out of its flags"
            )
    for name in ("block_size", "evaluation_length"):
        if (length := getattr(run, name)) is not None and length < 1:
            raise ValueError(f"a segment has at least one token, not {name}={length}; give a larger --{name}")
    if not isinstance(config, PARTransformerXLConfig):
        for name in ("evaluation_memory_length", "evaluation_clamp_length"):
            if getattr(run, name) is not None:
                raise ValueError(f"{config.model_type} learns how far back it looks; leave --{name} out")


def evaluation_settings(config: RecurrentLMConfig, run: Any) -> dict[str, Any]:
    """Say what differs in evaluation; in Transformer-XL's every token sees as many as every other."""
    lengths = {"memory_length": run.evaluation_memory_length, "clamp_length": run.evaluation_clamp_length}
    settings: dict[str, Any] = {name: length for name, length in lengths.items() if length is not None}
    if isinstance(config, PARTransformerXLConfig) and (settings or run.evaluation_length):
        settings["same_length"] = True
    return settings
