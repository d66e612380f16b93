"""The Trainer of `sublayers seq2seq`: its pairs, tokenizers, model and generation."""

from collections.abc import Callable
from typing import Any

from datasets import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    set_seed,
)

from sublayers.configuration.configuration_iot_seq2seq import IOTSeq2SeqConfig
from sublayers.configuration.configuration_reordered_seq2seq import TARGET_TOKENIZER
from sublayers.hub.loading import load
from sublayers.hub.tokenizers import save_tokenizers
from sublayers.modeling.modeling_sublayers import SublayersPreTrainedModel
from sublayers.training.data.pairs import (
    Seq2SeqDataArguments,
    load_pairs,
    pairs_used,
    tokenize_pairs,
    train_pair_tokenizers,
)
from sublayers.training.metrics.seq2seq import task_metrics
from sublayers.training.trainers.arguments import Seq2SeqTrainerArguments
from sublayers.training.trainers.order_trainer import OrderTrainer
from sublayers.training.trainers.pair_trainer import PairTrainer, Scorer
from sublayers.training.trainers.start import (
    check_positions,
    check_unchanged,
    check_vocabulary,
    find_tokenizer,
    new_model,
)


def make_trainer(
    config: PreTrainedConfig,
    model_flags: dict[str, Any],
    run: Any,
    data_args: Seq2SeqDataArguments,
    args: Seq2SeqTrainerArguments,
    checkpoint: str | None = None,
    trainer_class: Callable[..., Any] | None = None,
) -> PairTrainer:
    """Read pairs and tokenizers or train them, and make the Trainer of an encoder-decoder.

    Args:
        config: of the model.
        model_flags: fields of it that were given.
        run: the flags of `sublayers seq2seq` for what is trained, and how it writes.
        data_args: those for the pairs.
        args: of the Trainer.
        checkpoint: that the run goes on from, if any.
        trainer_class: makes another Trainer of a model that does not choose among orders.

    Raises:
        ValueError: flags that do not go together, or data that cannot be read.
    """
    check_positions(config, data_args, "max_source_length", "max_target_length")
    # the last token is not read
    check_positions(config, args, "generation_max_length", unread=1)
    if checkpoint:
        check_unchanged(config, model_flags, checkpoint)
    with args.main_process_first(local=False, desc="reading and tokenizing the pairs"):
        pairs = _load_splits(run, data_args, args)

        def train_into(folder: str) -> None:
            sizes = [run.vocab_size]
            if run.separate_vocabularies:
                sizes.append(run.target_vocab_size or run.vocab_size)
            trained = train_pair_tokenizers(pairs["train"], sizes, run.tokenizer_model, data_args.lowercase)
            save_tokenizers(trained, folder, config)

        source = find_tokenizer(run, args, checkpoint, train_into)
        # one tokenizer for both sides, or one for sources and one for targets
        tokenizers = [load(AutoTokenizer, source)]
        if run.target_tokenizer_name_or_path:
            tokenizers.append(load(AutoTokenizer, run.target_tokenizer_name_or_path))
        elif run.separate_vocabularies or getattr(config, "encoder_vocab_size", None):
            tokenizers.append(load(AutoTokenizer, source, subfolder=TARGET_TOKENIZER))
        encoded = {
            split: tokenize_pairs(
                rows,
                tokenizers[0],
                tokenizers[-1],
                data_args.max_source_length,
                data_args.max_target_length,
                drop_long=split == "train",
                desc=split,
            )
            for split, rows in pairs.items()
        }
    set_seed(args.seed)
    model = _load_model(run, config, tokenizers)
    _set_generation(model, run, data_args, args)
    if isinstance(model, SublayersPreTrainedModel):
        # the model's own smoothing is exact where gradients are accumulated
        model.config.label_smoothing, args.label_smoothing_factor = args.label_smoothing_factor, 0.0

    def score(predictions: list[str], references: list[str]) -> dict[str, float | str]:
        target = (run.language, data_args.target, data_args.tokenized)
        return task_metrics(str(run.task), predictions, references, *target)

    scorers = {
        split: Scorer(rows, encoded[split], tokenizers[-1], score) for split, rows in pairs.items() if split != "train"
    }
    if isinstance(model.config, IOTSeq2SeqConfig) and len(model.config.paths) > 1:
        trainer_class = OrderTrainer
    trainer = (trainer_class or PairTrainer)(
        tokenizers,
        run.max_tokens,
        scorers,
        run.average_checkpoints,
        model=model,
        args=args,
        train_dataset=encoded.get("train"),
        eval_dataset=scorers["validation"].rows if args.do_eval else None,
        compute_metrics=scorers["validation"] if args.do_eval and args.generates_in_training else None,
        data_collator=DataCollatorForSeq2Seq(tokenizers[0], model=model),
    )
    trainer.about["used"] = {split: pairs_used(split, rows, data_args) for split, rows in pairs.items()}
    if run.max_tokens:
        batches = args.gradient_accumulation_steps * args.world_size
        trainer.about["settings"] = {"batch size": f"{run.max_tokens * batches} tokens"}
    return trainer


def _load_splits(run: Any, data: Seq2SeqDataArguments, args: Seq2SeqTrainerArguments) -> dict[str, Dataset]:
    pairs = load_pairs(data)
    # a run that trains and evaluates also predicts test data where there are any
    args.do_predict = args.do_predict or (args.do_train and args.do_eval and "test" in pairs)
    wanted = {"train": args.do_train, "validation": args.do_eval, "test": args.do_predict}
    for split, is_wanted in wanted.items():
        if is_wanted and split not in pairs:
            raise ValueError(
                f"there are no {split} data; give --{split}_file, or choose among --do_train, --do_eval, --do_predict"
            )
    chosen = {split: rows for split, rows in pairs.items() if wanted[split]}
    if run.source_prefix:
        chosen = {
            split: rows.map(lambda row: {"source": run.source_prefix + row["source"]}, desc=f"prefixes, {split}")
            for split, rows in chosen.items()
        }
    return chosen


def _load_model(run: Any, config: PreTrainedConfig, tokenizers: list[PreTrainedTokenizerBase]) -> Any:

    source, target = tokenizers[0], tokenizers[-1]
    if run.model_name_or_path is None:
        if source is not target:
            config.encoder_vocab_size, config.share_encoder_decoder_embeddings = len(source), False
        config.decoder_start_token_id = target.eos_token_id
        return new_model(AutoModelForSeq2SeqLM, config, target)
    model = load(AutoModelForSeq2SeqLM, run.model_name_or_path, config=config)
    for tokenizer, table in ((source, model.get_input_embeddings()), (target, model.get_output_embeddings())):
        check_vocabulary(tokenizer, len(table.weight))
    return model


def _set_generation(model: Any, run: Any, data: Seq2SeqDataArguments, args: Seq2SeqTrainerArguments) -> None:

    chosen = model.generation_config
    if args.generation_config:
        # the Trainer would prefer this file to the flags
        chosen, args.generation_config = PairTrainer.load_generation_config(str(args.generation_config)), None
    settings: dict[str, Any] = {"num_beams": 5, "length_penalty": 1.0} if run.model_name_or_path is None else {}
    if chosen.max_length is None:
        settings["max_length"] = (chosen.max_new_tokens or data.max_target_length) + 1
    given = {
        "num_beams": args.generation_num_beams,
        "length_penalty": run.length_penalty,
        "max_length": args.generation_max_length,
    }
    settings |= {name: value for name, value in given.items() if value is not None}
    # the Trainer counts in all tokens; what it saves counts in new ones
    settings["max_new_tokens"] = None
    # transformers overrides a generation config that is derived from the model's configuration
    model.generation_config = GenerationConfig.from_dict({**chosen.to_dict(), **settings, "_from_model_config": False})
