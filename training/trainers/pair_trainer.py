"""What `sublayers seq2seq` adds to transformers' Seq2SeqTrainer: batches of tokens, exact losses, scored texts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, SequentialSampler
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase, Seq2SeqTrainer

from sublayers.configuration.configuration_reordered_seq2seq import TARGET_TOKENIZER
from sublayers.training.data.token_batches import TokenBatchSampler
from sublayers.training.trainers.resumable_trainer import EpochCallback, ResumableTrainer


class PairTrainer(ResumableTrainer, Seq2SeqTrainer):
    """A Seq2SeqTrainer with batches of tokens, exact losses, and a tokenizer for each side.

    Args:
        tokenizers: of sources and of targets, or of both, saved with every checkpoint.
        max_tokens: size of a training batch, see `TokenBatchSampler`; None: `per_device_train_batch_size` pairs.
        kwargs: arguments of the Seq2SeqTrainer.
    """

    model: PreTrainedModel
    train_dataset: Dataset | None

    def __init__(self, tokenizers: list[PreTrainedTokenizerBase], max_tokens: int | None, **kwargs):
        super().__init__(**kwargs)
        self.tokenizers = tokenizers
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

    def _get_eval_sampler(self, eval_dataset: Dataset) -> SequentialSampler:
        # grouping by length would mix what comes sorted
        return SequentialSampler(eval_dataset)

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
        # without those that fill up the last batches of several processes
        self.sums += self.accelerator.gather_for_metrics(rows).sum(0)
        if prediction_loss_only:
            return None, None, None
        return None, super().prediction_step(model, inputs, False, *args, **kwargs)[1], labels

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model with its tokenizers."""
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            save_tokenizers(self.tokenizers, str(output_dir or self.args.output_dir))


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
        # back in order, and without the rows that fill up the last batches of several processes
        ids = np.asarray(generated.predictions)[np.argsort(self.order)]
        ids = np.where(ids < 0, self.tokenizer.pad_token_id, ids)
        self.predictions = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return self.score(self.predictions, list(self.pairs["target"]))

    def save(self, path: Path) -> None:
        """Write pairs and predictions as a .jsonl file."""
        with path.open("w", encoding="utf-8") as file:
            for pair, prediction in zip(self.pairs, self.predictions, strict=True):
                file.write(json.dumps({**pair, "prediction": prediction}, ensure_ascii=False) + "\n")


def save_tokenizers(tokenizers: list[PreTrainedTokenizerBase], folder: str) -> None:
    """Save one tokenizer, or that of the sources and that of the targets in a folder of its own."""
    places = (Path(folder), Path(folder, TARGET_TOKENIZER))
    # who finds the first has both
    for tokenizer, place in reversed([*zip(tokenizers, places, strict=False)]):
        tokenizer.save_pretrained(place)
