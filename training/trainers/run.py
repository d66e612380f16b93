"""What every command that trains does between its flags and its folder."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState

from sublayers.training.folders import LOCK, claim
from sublayers.training.trainers.arguments import TrainerArguments
from sublayers.training.trainers.loss_curve import save_loss_curve, save_spans
from sublayers.training.trainers.publish import (
    PREFIXES,
    all_arguments,
    describe_data,
    describe_used,
    publish,
    result,
    summary,
)
from sublayers.training.trainers.resumable_trainer import ResumableTrainer
from sublayers.training.trainers.resume import find_checkpoint


def run(
    args: TrainerArguments,
    make_trainer: Callable[[str | None], ResumableTrainer],
    scores: Sequence[str],
    data: Any,
    default: dict[str, str],
    flags: Sequence[Any],
    unit: str = "loss (nats per token)",
    **about: Any,
) -> dict[str, Any]:
    """Hold the output folder, train, evaluate, draw the losses, write the card, publish with `--push_to_hub`.

    Args:
        args: of the Trainer.
        make_trainer: makes it; its argument is the checkpoint that the run goes on from, if any.
        scores: names, without prefix, of the metrics that the card and the last line show.
        data: dataclass of flags that name the data, for `describe_data`.
        default: names what is read without them.
        flags: what else the command was given, for `all_arguments`.
        unit: of the loss.
        about: `command`, `started_from` and what else `publish` takes.

    Returns:
        The metrics of training and evaluation.

    Raises:
        FileExistsError: the output folder is not empty and the run does not resume.
        FileNotFoundError: not all processes see the output folder.
    """
    # making the Trainer changes some
    arguments = all_arguments(args, data, *flags)
    with claim(str(args.output_dir), args.process_index):
        check_shared(str(args.output_dir))
        checkpoint = find_checkpoint(args)
        trainer = make_trainer(checkpoint)
        metrics = train_and_evaluate(trainer, checkpoint)
        if not trainer.is_world_process_zero():
            return metrics
        about |= trainer.about
        named = describe_data(data, default, getattr(data, "dataset_config_name", None))
        named += about.pop("tests", [])
        about["data"] = describe_used(named, about.pop("used"))
        folder = Path(str(args.output_dir))
        if args.do_train:
            save_loss_curve(trainer.state.log_history, folder, unit)
            save_spans(trainer.model, folder)
        names = {f"{prefix}_{score}": (split, score) for split, prefix in PREFIXES.items() for score in scores}
        if trainer.leaves_model:
            found = {name: metrics[name] for name in names if name in metrics}
            results = [result(about["data"], *names[name], value, args.seed) for name, value in found.items()]
            publish(folder, args, arguments, results=results, seeds=[args.seed], **about)
        print(f"{summary(metrics, ['train_loss', *names])} in {folder}")
        return metrics


def check_shared(folder: str) -> None:
    """Check that a process sees the folder that the first one holds: each writes its part of the checkpoints there.

    Raises:
        FileNotFoundError: it does not, as on a machine with a disk of its own.
    """
    PartialState().wait_for_everyone()
    if not Path(folder, LOCK).exists():
        raise FileNotFoundError(
            f"this machine does not see {folder} of the first process; name a folder that all machines share with "
            "--output_dir"
        )


def train_and_evaluate(
    trainer: ResumableTrainer, checkpoint: str | None, evaluations: Iterable[tuple[str, Any]] | None = None
) -> dict[str, Any]:
    """Train, save the model and evaluate it, as far as the flags ask for it; metrics are saved, too.

    Args:
        trainer: of the run.
        checkpoint: from which it goes on, if any.
        evaluations: the data to evaluate on, each after the prefix of its metrics; by default the Trainer's own.
    """
    metrics: dict[str, Any] = {}
    if trainer.args.do_train:
        metrics |= trainer.train(checkpoint).metrics
        trainer.save_metrics("train", metrics)
    if trainer.leaves_model:
        trainer.save_model()
    for prefix, rows in trainer.evaluations() if evaluations is None else evaluations:
        found = trainer.evaluate(rows, metric_key_prefix=prefix)
        trainer.save_metrics(prefix, found)
        metrics |= found
    return metrics
