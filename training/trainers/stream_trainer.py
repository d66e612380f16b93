"""The Trainer of the language models with memory, which reads a text as a stream of segments."""

import math
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, SequentialSampler

from sublayers.modeling.losses import IGNORED
from sublayers.modeling.memory import RecurrentSublayer
from sublayers.training.trainers.resumable_trainer import ResumableTrainer
from sublayers.training.trainers.resume import check_stream

Memory = tuple[torch.Tensor, ...]


class StreamTrainer(ResumableTrainer):
    """A Trainer whose models remember, in each row of a batch, the segments that the row had before.

    Every process has the memory of its own rows, and keeps it in checkpoints. Evaluation has a memory of its own.

    Args:
        evaluation_settings: fields of the model's configuration that have other values in evaluation.
        kwargs: arguments of the Trainer; its data sets are `Segments`, those of training with as many rows as there
            are in a batch of all processes, those of evaluation with a single one, which is divided as needed.

    Raises:
        FileNotFoundError: a checkpoint to resume from that has no memory.
        ValueError: one that has another stream, or a model that is to be sharded.
    """

    def __init__(self, evaluation_settings: dict[str, Any] | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        if self.is_fsdp_enabled:
            raise ValueError("models with memory are not sharded; leave --fsdp out")
        # the stream needs columns that the model's signature does not name
        self.args.remove_unused_columns = False
        self.evaluation_settings = evaluation_settings or {}
        # the rows of training and of evaluation
        self.memories: dict[str, Memory] = {}

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        segments: Any = train_dataset or self.train_dataset
        return SequentialSampler(segments)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Divide the text among the rows of all processes; each first reads what its memory would hold of the text."""
        text: Any = eval_dataset or self.eval_dataset
        rows = self.args.eval_batch_size * self.args.world_size
        return super().get_eval_dataloader(text.divide(rows, self.reach(text.length)))

    def reach(self, length: int) -> int:
        """Count the segments of a length before one that have any influence on it."""
        model: Any = self.model
        attentions: list[Any] = [module.mixer for module in model.modules() if isinstance(module, RecurrentSublayer)]
        return sum(math.ceil(attention.memory_length / length) for attention in attentions)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Score the whole text, each of its tokens once, however many rows read it."""
        model: Any = self.model
        config = model.config
        before = {name: getattr(config, name) for name in self.evaluation_settings}
        config.update(self.evaluation_settings)
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            config.update(before)

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, *args: Any, **kwargs: Any) -> Any:
        """Compute the loss of a segment with the memory of those before, and remember it, too."""
        inputs = self._recall("training", inputs)
        loss, outputs = super().compute_loss(model, inputs, True, *args, **kwargs)
        self.memories["training"] = outputs.memory
        return (loss, outputs) if return_outputs else loss

    @torch.no_grad()
    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, *args: Any, **kwargs: Any
    ) -> tuple[None, torch.Tensor, torch.Tensor]:
        """Score a batch, in nats (batch, length) of its labels (batch, length)."""
        given = self._recall("evaluation", self._prepare_inputs(inputs))
        labels = given["labels"]
        with self.compute_loss_context_manager():
            outputs = model(input_ids=given["input_ids"], memory=given["memory"])
        self.memories["evaluation"] = outputs.memory
        scores = outputs.logits.flatten(0, 1).float()
        nats = cross_entropy(scores, labels.flatten(), ignore_index=IGNORED, reduction="none")
        return None, nats.view_as(labels), labels

    def _recall(self, purpose: str, inputs: dict[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in inputs.items() if name != "segment"}
        if inputs["segment"][0] == 0:
            model: Any = self.model
            self.memories[purpose] = model.empty_memory(len(given["input_ids"]))
        return given | {"memory": self.memories[purpose]}

    def _save_rng_state(self, output_dir: str) -> None:
        # each process also has its own place in the stream and memory; with random states, a checkpoint is whole
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        torch.save({"stream": self._stream(), "memory": self.memories["training"]}, self._memory_file(output_dir))
        super()._save_rng_state(output_dir)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        kept = torch.load(self._memory_file(resume_from_checkpoint), map_location=self.args.device, weights_only=True)
        check_stream(resume_from_checkpoint, kept["stream"], self._stream())
        self.memories["training"] = kept["memory"]

    def _stream(self) -> dict[str, int]:
        segments: Any = self.train_dataset
        sizes = {"tokens": len(segments.tokens), "rows": segments.rows, "segment_length": segments.length}
        return sizes | {"processes": self.args.world_size}

    def _memory_file(self, folder: str) -> Path:
        return Path(folder) / f"memory_{self.args.process_index}.pt"
