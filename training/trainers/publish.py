"""The record of a run and the card of its model, and how both are published."""

import json
import re
import shlex
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import AutoConfig, TrainingArguments

from sublayers import AUTO_CLASSES
from sublayers.hub.model_card import RUN, write_card
from sublayers.hub.upload import upload
from sublayers.training.trainers.export import export
from sublayers.training.trainers.machine import machine

ROLES = {"train": "trained on", "validation": "evaluated on", "test": "tested on"}
# the prefixes of the Trainer's metrics, by split
PREFIXES = {"validation": "eval", "test": "test"}


def result(data: list[dict[str, str]], split: str, metric: str, value: float, seed: int) -> dict[str, Any]:
    """Describe a score on the split that `describe_data` found among the data."""
    part = next((part for part in data if part["role"] == ROLES.get(split)), data[-1])
    score = {"split": split, "metric": metric, "value": value, "seed": seed}
    return {"dataset": part["name"], "id": part.get("id", ""), "config": part.get("config", ""), **score}


def describe_data(args: Any, default: dict[str, str], config_name: str | None = None) -> list[dict[str, str]]:
    """Name the data that a command's flags ask for.

    Args:
        args: dataclass of flags, with `dataset_name` and a flag such as `train_file` for each split.
        default: the name, and on the Hub the id, of what is read without flags.
        config_name: the configuration of a data set on the Hub.

    Returns:
        Their `role` and `name`, and of those on the Hub their `id` there and `config`.
    """
    files = {role: getattr(args, f"{split}_file", None) for split, role in ROLES.items()}
    if any(files.values()):
        lists = {role: [given] if isinstance(given, str) else given for role, given in files.items() if given}
        return [{"role": role, "name": ", ".join(Path(file).name for file in given)} for role, given in lists.items()]
    config = {"config": config_name} if config_name else {}
    if args.dataset_name is None:
        return [{"role": "data"} | default | config]
    if Path(args.dataset_name).exists():
        return [{"role": "data", "name": Path(args.dataset_name).name}]
    name = " ".join(filter(None, (args.dataset_name, config_name)))
    return [{"role": "data", "name": name, "id": args.dataset_name} | config]


def publish(
    folder: str | Path,
    args: TrainingArguments,
    command: list[str],
    data: list[dict[str, str]],
    results: list[dict[str, Any]],
    seeds: list[int],
    started_from: str | None = None,
    **about: Any,
) -> bool:
    """Write `run.json` and the card into a trained model's folder; with `--push_to_hub` publish what it exports to.

    Args:
        folder: of the model.
        args: of its training.
        command: the words of the command line.
        data: from `describe_data`.
        results: from `result`.
        seeds: of all runs.
        started_from: folder or repository of the model that was trained on.
        about: `task` and `languages`, where the model's class does not tell them.

    Returns:
        Whether the model is one of this package; of others nothing is written.
    """
    if type(AutoConfig.from_pretrained(folder)) not in AUTO_CLASSES:
        return False
    run = {
        "command": without_tokens(["sublayers", *command]),
        "date": datetime.now(UTC).date().isoformat(),
        "started_from": started_from,
        "data": data,
        "seeds": seeds,
        "machine": machine(args.device),
        "results": results,
        **about,
    }
    if started_from and not Path(started_from).exists():
        run["base_model"] = started_from
    Path(folder, RUN).write_text(json.dumps(run, indent=2) + "\n", encoding="utf-8")
    write_card(folder)
    if args.push_to_hub:
        repository = args.hub_model_id or Path(folder).name
        with TemporaryDirectory() as exported:
            export(Path(folder), Path(exported), repository)
            upload(exported, repository, private=args.hub_private_repo, revision=args.hub_revision)
    return True


def summary(metrics: dict[str, Any], names: Iterable[str]) -> str:
    """Write those of the metrics that exist in a line."""
    return ", ".join(f"{name} {metrics[name]:.4f}" for name in names if name in metrics)


def without_tokens(command: list[str]) -> str:
    """Write a command line without the flags whose values are tokens."""
    return re.sub(r" --\S*token[ =]\S+", "", shlex.join(command))
