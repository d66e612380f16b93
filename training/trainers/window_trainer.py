"""The Trainer that reads its corpus while it trains, and keeps in checkpoints how far it has read."""

from pathlib import Path
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader
from transformers import TrainerCallback

from sublayers.training.data.streamed_windows import Place, StreamedWindows
from sublayers.training.trainers.resumable_trainer import ResumableTrainer
from sublayers.training.trainers.resume import check_stream, has_states_of


class ShareCallback(TrainerCallback):
    """Count as epoch the share of steps that are done: a stream has no other end."""

    def on_step_end(self, args, state, control, **kwargs):
        """Set the epoch, which the Trainer counts from where it resumed."""
        state.epoch = state.global_step / state.max_steps


class WindowTrainer(ResumableTrainer):
    """A Trainer whose processes read windows of their own, and after a checkpoint no window that was read before it.

    Args:
        kwargs: arguments of the Trainer; its training data are `StreamedWindows`.

    Raises:
        FileNotFoundError: a checkpoint to resume from that does not say how far it has read.
        ValueError: one that has another stream, or too few files for the readers.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        # what a checkpoint has read is not read again to find where to go on
        self.args.ignore_data_skip = True
        # the model's signature does not name the place
        self.args.remove_unused_columns = False
        self.add_callback(ShareCallback())
        self.windows: StreamedWindows = kwargs["train_dataset"]
        self.windows.divide(self.args.process_index, self.args.world_size, max(1, self.args.dataloader_num_workers))

    def get_train_dataloader(self) -> DataLoader:
        """Make the loader of this process, whose windows are no other's."""
        args: Any = self.args
        loader = DataLoader(
            self.windows,
            batch_size=self._train_batch_size,
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            # the loader's random numbers would come before those of the model
            generator=torch.Generator(),
        )
        return prepare_data_loader(loader, args.device, 1, 0, put_on_device=True, dispatch_batches=False)

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """Compute the gradients of a batch, and remember up to where it was read."""
        for stream, *place in inputs.pop("place").tolist():
            self.windows.places[stream] = Place(*place)
        self.windows.batches += 1
        return super().training_step(model, inputs, *args, **kwargs)

    def _save_rng_state(self, output_dir: str) -> None:
        # a checkpoint with random states is whole
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        places = [[*place] for place in self.windows.places]
        kept = {"stream": self._stream(), "batches": self.windows.batches, "places": places}
        torch.save(kept, self._stream_file(output_dir, self.args.process_index))
        super()._save_rng_state(output_dir)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        files = [self._stream_file(resume_from_checkpoint, self.args.process_index)]
        is_divided_anew = not has_states_of(resume_from_checkpoint, self.args.world_size)
        if is_divided_anew:
            files = [*Path(resume_from_checkpoint).glob("stream_*.pt")]
        kept = [torch.load(file, weights_only=True) for file in files]
        for each in kept:
            check_stream(resume_from_checkpoint, each["stream"], self._stream())
        if is_divided_anew and self.windows.workers > 1:
            raise ValueError(
                f"{resume_from_checkpoint} cannot be divided anew among --dataloader_num_workers="
                f"{self.windows.workers} of each process; continue with as many processes as before"
            )
        # each process knows how far it has read
        places = [Place(*max(same)) for same in zip(*(each["places"] for each in kept), strict=True)]
        self.windows.go_on(places, kept[0]["batches"])

    def _stream(self) -> dict[str, int]:
        windows = self.windows
        return {"files": windows.text.num_files, "block_size": windows.block_size, "workers": windows.workers}

    def _stream_file(self, folder: str, process: int) -> Path:
        return Path(folder) / f"stream_{process}.pt"
