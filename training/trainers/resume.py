"""The checkpoints of a run, which goes on from the last one that is whole."""

import json
from collections.abc import Callable, Collection
from os import SEEK_END
from pathlib import Path
from pickletools import genops
from typing import Any
from zipfile import BadZipFile, ZipFile

from accelerate.utils import OPTIMIZER_NAME
from safetensors import safe_open
from transformers import TrainerState
from transformers.trainer import FSDP_MODEL_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME

from sublayers.hub.loading import refuse_ways_out
from sublayers.training.folders import refuse_to_overwrite
from sublayers.training.trainers.arguments import TrainerArguments

# files of a checkpoint, and files that a run needs besides to resume; the Trainer writes its state last
NEEDED = (TRAINER_STATE_NAME, "config.json", "*model*")
NEEDED_TO_RESUME = (*NEEDED, "optimizer*", "scheduler*", "rng_state*")


def checkpoints(folder: str | Path) -> list[Path]:
    """List the checkpoints of a run, whole or not, in the order of their steps."""
    found = Path(folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*")
    return sorted((path for path in found if path.name.split("-")[-1].isdecimal()), key=step_of)


def complete_checkpoints(folder: str | Path) -> list[Path]:
    """Find the checkpoints of a run that are whole, in the order of their steps."""
    return [path for path in checkpoints(folder) if find_fault(path) is None]


def step_of(checkpoint: Path) -> int:
    """Read the step of a checkpoint from its name."""
    return int(checkpoint.name.split("-")[-1])


def find_fault(checkpoint: Path, needed: Collection[str] = NEEDED) -> str | None:
    """Find out whether a checkpoint was written to the end, and whether its files can be read and name no others.

    Args:
        checkpoint: its folder.
        needed: patterns of the files that it should have.

    Returns:
        A sentence that names the first fault, or None if it has none.
    """
    fault = f"{checkpoint} is no complete checkpoint, for"
    for pattern in needed:
        if not any(checkpoint.glob(pattern)):
            return f"{fault} it has no {pattern.strip('*')}"
    try:
        # a checkpoint must not name files outside of it
        refuse_ways_out(checkpoint)
    except ValueError as error:
        return f"{fault} {error}"
    for path in sorted(checkpoint.rglob("*")):
        try:
            READERS.get(path.name, READERS.get(path.suffix, Path.exists))(path)
        except Exception as error:
            # every format has errors of its own
            return f"{fault} its {path.relative_to(checkpoint)} is damaged ({type(error).__name__})"
    return None


def find_checkpoint(args: TrainerArguments) -> str | None:
    """Find what `--resume_from_checkpoint` asks for: a checkpoint, or for `true` the last one of the run that is whole.

    Returns:
        Its folder, or None if the run starts from the beginning.

    Raises:
        FileExistsError: the run does not resume, and its output folder is not empty.
        FileNotFoundError: the checkpoint is not there or not complete.
        ValueError: it was made by another number of processes.
    """
    given = args.resume_from_checkpoint
    if given is None or given.lower() == "false":
        refuse_to_overwrite(str(args.output_dir), " or continue with --resume_from_checkpoint")
        return None
    is_named = given.lower() != "true"
    if is_named and (fault := find_fault(Path(given), NEEDED_TO_RESUME)):
        raise FileNotFoundError(f"{fault}; give another")
    found = given if is_named else _find_last(args)
    # without its own random state, a process would go on with another one, and say nothing
    if found and not args.any_world_size and not has_states_of(found, args.world_size):
        raise ValueError(
            f"{found} was not made by {args.world_size} processes; continue with as many as the run was started with, "
            "or give --any_world_size"
        )
    return found


def has_states_of(checkpoint: str | Path, processes: int) -> bool:
    """Find out whether a checkpoint has the random states of this many processes, and no others."""
    names = {f"rng_state_{process}.pth" for process in range(processes)} if processes > 1 else {"rng_state.pth"}
    return {path.name for path in Path(checkpoint).glob("rng_state*.pth")} == names


def check_stream(checkpoint: str, read: dict[str, int], now: dict[str, int]) -> None:
    """Check that a checkpoint has read the stream that a run goes on with. Raises a ValueError if it is another one."""
    if read != now:
        raise ValueError(
            f"{checkpoint} reads a stream of {read}, not of {now}; continue with the flags that the run was started "
            "with"
        )


def _find_last(args: TrainerArguments) -> str | None:
    said, last = [], None
    for path in reversed(checkpoints(str(args.output_dir))):
        if (fault := find_fault(path, NEEDED_TO_RESUME)) is None:
            last = str(path)
            break
        said.append(fault)
    nothing = f"no complete checkpoint in {args.output_dir}, so starting from the beginning"
    if args.process_index == 0:
        print(*said, f"continuing from {last}" if last else nothing, sep="\n")
    return last


def _read_state(path: Path) -> None:
    if TrainerState.load_from_json(str(path)).global_step < 1:
        raise ValueError(f"{path} has no steps")


def _read_archive(path: Path) -> None:
    # what torch saves is an archive with check sums
    with ZipFile(path) as archive:
        if damaged := archive.testzip():
            raise ValueError(f"{damaged} of {path} is damaged")


def _read_weights(path: Path) -> None:
    # the head of the file says how long it should be
    with safe_open(path, "pt"):
        pass


def _read_index(path: Path) -> None:
    for name in json.loads(path.read_text(encoding="utf-8"))["weight_map"].values():
        _read_weights(path.parent / name)


def _read_shard(path: Path) -> None:
    # archives, one after the other, each with an end of 22 bytes
    with path.open("rb") as file:
        file.seek(-22, SEEK_END)
        if file.read(4) != b"PK\5\6":
            raise BadZipFile(f"{path} has no end")


def _read_shards(folder: Path) -> None:
    # torch writes the list of what is in which shard last; it is not loaded, since that can run code
    for _ in genops((folder / ".metadata").read_bytes()):
        pass


READERS: dict[str, Callable[[Path], Any]] = {
    TRAINER_STATE_NAME: _read_state,
    SAFE_WEIGHTS_INDEX_NAME: _read_index,
    f"{FSDP_MODEL_NAME}_0": _read_shards,
    f"{OPTIMIZER_NAME}_0": _read_shards,
    ".json": lambda path: json.loads(path.read_text(encoding="utf-8")),
    ".bin": _read_archive,
    ".distcp": _read_shard,
    ".pt": _read_archive,
    ".pth": _read_archive,
    ".safetensors": _read_weights,
}
