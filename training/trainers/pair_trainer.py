"""What `sublayers seq2seq` adds to transformers' Seq2SeqTrainer: batches of tokens, exact losses, scored texts."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import (
    EvalPrediction,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
)
from transformers.trainer_utils import TrainOutput

from sublayers.hub.tokenizers import save_tokenizers
from sublayers.training.data.token_batches import TokenBatchSampler
from sublayers.training.trainers.average import average_checkpoints
from sublayers.training.trainers.publish import PREFIXES
from sublayers.training.trainers.resumable_trainer import EpochCallback, ResumableTrainer
from sublayers.training.trainers.resume import checkpoints, find_fault, step_of


class PairTrainer(ResumableTrainer, Seq2SeqTrainer):
    """A Seq2SeqTrainer with batches of tokens, exact losses, and a tokenizer for each side.

    Args:
        tokenizers: of sources and of targets, or of both, saved with every checkpoint.
        max_tokens: size of a training batch, see `TokenBatchSampler`; None: `per_device_train_batch_size` pairs.
        scorers: score what is generated for each split at the end of a run.
        num_averaged: the final model is the mean of this many last checkpoints.
        kwargs: arguments of the Seq2SeqTrainer.
    """

    args: Any
    model: PreTrainedModel
    train_dataset: Dataset | None

    def __init__(
        self,
        tokenizers: list[PreTrainedTokenizerBase],
        max_tokens: int | None,
        scorers: "dict[str, Scorer] | None" = None,
        num_averaged: int = 1,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.tokenizers, self.scorers, self.num_averaged = tokenizers, scorers or {}, num_averaged
        self.batches = None
        if max_tokens and self.train_dataset:
            sources, targets = ([len(ids) for ids in self.train_dataset[name]] for name in ("input_ids", "labels"))
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            self.batches = TokenBatchSampler(sources, targets, max_tokens, seed)
            self.add_callback(EpochCallback(self.batches.set_epoch))

    def get_train_dataloader(self) -> DataLoader:
        """Batch pairs by their tokens, or as every Trainer does."""
        if self.batches is None or self.train_dataset is None:
            return super().get_train_dataloader()
        args = self.args
        loader = DataLoader(
            self.train_dataset,
            batch_sampler=self.batches,
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            persistent_workers=args.dataloader_persistent_workers,
            pin_memory=args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)

    def evaluations(self) -> Iterator[tuple[str, Dataset]]:
        """Give the splits, and write what is generated for each into a file."""
        for split, scorer in self.scorers.items():
            self.compute_metrics = scorer if self.args.predict_with_generate else None
            yield PREFIXES[split], scorer.rows
            if self.args.should_save and scorer.predictions:
                scorer.save(Path(self.args.output_dir, f"predictions_{split}.jsonl"))

    def train(self, *args, **kwargs) -> TrainOutput:
        """Train, and take the mean of the last checkpoints.

        Raises:
            ValueError: there are fewer, or one is damaged.
        """
        output = super().train(*args, **kwargs)
        if self.batches:
            # the Trainer computes this from --per_device_train_batch_size
            output.metrics.pop("train_samples_per_second", None)
        if self.num_averaged > 1:
            self.accelerator.wait_for_everyone()
            # a run that resumed from an earlier checkpoint may have left later ones
            done = [path for path in checkpoints(self.args.output_dir) if step_of(path) <= self.state.global_step]
            folders = done[-self.num_averaged :]
            if fault := next(filter(None, map(find_fault, folders)), None):
                raise ValueError(f"{fault}; resume from the one before it, or take it out of {self.args.output_dir}")
            if len(folders) < self.num_averaged:
                raise ValueError(
                    f"there are {len(folders)} checkpoints in {self.args.output_dir}, fewer than --average_checkpoints "
                    f"{self.num_averaged}; give a smaller number and --resume_from_checkpoint"
                )
            # tied weights are in the files once
            self.model.load_state_dict(average_checkpoints(folders, not self.args.disable_tqdm), strict=False)
        return output

    def evaluation_loop(self, *args, metric_key_prefix: str = "eval", **kwargs) -> Any:
        """Evaluate, with the loss as a mean over the tokens of all pairs: the Trainer's is one over batches."""
        self.sums = torch.zeros(2, device=self.args.device)
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)  # type: ignore[misc]
        nats, tokens = self.sums.tolist()
        output.metrics[f"{metric_key_prefix}_loss"] = nats / tokens  # type: ignore[index]
        return output

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, *args, **kwargs
    ) -> tuple[None, torch.Tensor | None, torch.Tensor | None]:
        """Measure the loss of each pair, without label smoothing, and generate."""
        inputs = self._prepare_inputs(inputs)
        labels, decoder_input_ids = inputs.pop("labels"), inputs.pop("decoder_input_ids")
        with torch.no_grad(), self.compute_loss_context_manager():
            logits = model(**inputs, decoder_input_ids=decoder_input_ids, use_cache=False).logits
        nats = cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="none").view_as(labels)
        rows = torch.stack([nats.sum(1), (labels != -100).sum(1)], dim=1)
        # gather_for_metrics drops the rows that pad the last batches of several processes
        self.sums += self.accelerator.gather_for_metrics(rows).sum(0)
        if prediction_loss_only:
            return None, None, None
        return None, super().prediction_step(model, inputs, False, *args, **kwargs)[1], labels

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model with its tokenizers; beside the final one, lengths are counted in new tokens."""
        in_training = self.model.generation_config
        if not _internal_call:
            self.model.generation_config = in_new_tokens(in_training)
        super().save_model(output_dir, _internal_call)
        self.model.generation_config = in_training
        if self.args.should_save:
            save_tokenizers(self.tokenizers, str(output_dir or self.args.output_dir), self.model.config)


class Scorer:
    """Score what is generated for a split.

    Args:
        pairs: columns `source` and `target`.
        encoded: what `tokenize_pairs` made of them.
        tokenizer: of the targets.
        score: metrics of predictions and references, both lists of texts.

    Attributes:
        rows: the encoded pairs from long to short sources, so that batches have little padding.
        predictions: texts in the order of the pairs, as soon as some were scored.
    """

    def __init__(
        self,
        pairs: Dataset,
        encoded: Dataset,
        tokenizer: PreTrainedTokenizerBase,
        score: Callable[[list[str], list[str]], dict[str, float | str]],
    ):
        self.pairs, self.tokenizer, self.score = pairs, tokenizer, score
        self.order = np.argsort([-len(ids) for ids in encoded["input_ids"]], kind="stable")
        self.rows = encoded.select(self.order)
        self.predictions: list[str] = []

    def __call__(self, generated: EvalPrediction) -> dict[str, float | str]:
        """Decode and score what was generated for the rows."""
        # argsort restores the order, and drops the rows that pad the last batches of several processes
        ids = np.asarray(generated.predictions)[np.argsort(self.order)]
        ids = np.where(ids < 0, self.tokenizer.pad_token_id, ids)
        self.predictions = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return self.score(self.predictions, list(self.pairs["target"]))

    def save(self, path: Path) -> None:
        """Write pairs and predictions as a .jsonl file."""
        with path.open("w", encoding="utf-8") as file:
            for pair, prediction in zip(self.pairs, self.predictions, strict=True):
                file.write(json.dumps({**pair, "prediction": prediction}, ensure_ascii=False) + "\n")


def in_new_tokens(config: GenerationConfig) -> GenerationConfig:
    """Count the longest text without the token that starts it, so that `max_new_tokens` of `generate` replaces it."""
    config = copy.deepcopy(config)
    if config.max_length is not None:
        config.max_new_tokens, config.max_length = config.max_length - 1, None
    return config
