"""Finding the checkpoints of a run, and going on from one as if the run had never stopped."""

import json
from pathlib import Path

from transformers import TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from sublayers.training.cli import refuse_to_overwrite


def complete_checkpoints(folder: str | Path) -> list[Path]:
    """Find the checkpoints of a run that were written to the end, in the order of their steps."""
    found = filter(_is_complete, Path(folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*"))
    return sorted(found, key=lambda path: int(path.name.split("-")[-1]))


def find_checkpoint(args: TrainingArguments) -> str | None:
    """Find what `--resume_from_checkpoint` asks for: a checkpoint, or for `true` the last complete one of the run.

    Returns:
        Its folder, or None if the run starts from the beginning.

    Raises:
        FileExistsError: the run does not resume, and its output folder is not empty.
        FileNotFoundError: the checkpoint is not there or not complete.
    """
    asked = args.resume_from_checkpoint
    if asked is None or asked.lower() == "false":
        refuse_to_overwrite(str(args.output_dir), " or continue with --resume_from_checkpoint")
        return None
    if asked.lower() != "true":
        if not _is_complete(Path(asked)):
            raise FileNotFoundError(f"{asked} is no complete checkpoint, for it has no readable {TRAINER_STATE_NAME}")
        return asked
    last = next(reversed(complete_checkpoints(str(args.output_dir))), None)
    if args.process_index == 0:
        nothing = f"no complete checkpoint in {args.output_dir}, so starting from the beginning"
        print(f"continuing from {last}" if last else nothing)
    return str(last) if last else None


def adopt_counts(args: TrainingArguments, checkpoint: str) -> None:
    """Count steps as the checkpoint does where the flags are shares of all steps."""
    # otherwise the Trainer warns of every difference
    state = TrainerState.load_from_json(str(Path(checkpoint) / TRAINER_STATE_NAME))
    for name in ("logging_steps", "eval_steps", "save_steps"):
        if 0 < (getattr(args, name) or 0) < 1:
            setattr(args, name, getattr(state, name))


def _is_complete(checkpoint: Path) -> bool:
    # the Trainer writes its state last, and a killed one may have written half of it
    try:
        return bool(json.loads((checkpoint / TRAINER_STATE_NAME).read_text()))
    except (FileNotFoundError, ValueError):
        return False
