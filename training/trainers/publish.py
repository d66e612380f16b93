"""The record of a run and the card of its model, and how both are published."""

import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path, PureWindowsPath
from tempfile import TemporaryDirectory
from typing import Any

from transformers import AutoConfig, TrainingArguments

from sublayers import AUTO_CLASSES
from sublayers.hub.folder import write_folder
from sublayers.hub.model_card import describe
from sublayers.hub.upload import upload
from sublayers.training.data.files import Used
from sublayers.training.trainers.arguments import FREE
from sublayers.training.trainers.export import export
from sublayers.training.trainers.machine import machine

# arguments that `training_settings` has in words, that the Trainer changes itself, and the seed, which has its own row
IN_WORDS = {"optim", "learning_rate", "lr_scheduler_type", "warmup_steps", "max_steps", "num_train_epochs", "seed"}
IN_WORDS |= {"per_device_train_batch_size", "gradient_accumulation_steps", "weight_decay", "bf16", "fp16"}
IN_WORDS |= {"accelerator_config", "dataloader_pin_memory", "include_num_input_tokens_seen"}
ROLES = {"train": "trained on", "validation": "evaluated on", "test": "tested on"}
# the prefixes of the Trainer's metrics, by split
PREFIXES = {"validation": "eval", "test": "test"}
# flags whose values nobody else may know
SECRETS = re.compile(r"--\S*token|--storage")
# a path out of the folder where a command runs
OUTER_PATH = re.compile(r"""(?<![^='"\s])(?:[^='"\s]*\.\.|~\w*|[A-Za-z]:)?[/\\](?![/\\])[^'"]*""")


def result(data: list[dict[str, Any]], split: str, metric: str, value: float, seed: int) -> dict[str, Any]:
    """Describe a score on a split of `describe_used`; it is one of a data set on the Hub only if all rows were read."""
    part = next(part for part in data if part["split"] == split)
    score = {"split": split, "metric": metric, "value": value, "seed": seed}
    if "id" in part and part["whole"]:
        return {"dataset": part["name"], "id": part["id"], "config": part.get("config", ""), **score}
    return {"dataset": describe(part), **score}


def describe_data(args: Any, default: dict[str, str], config_name: str | None = None) -> list[dict[str, Any]]:
    """Name the data that a command's flags ask for.

    Args:
        args: dataclass of flags, with `dataset_name`, perhaps `data_dir`, and a flag such as `train_file` for each
            split.
        default: the name, and on the Hub the id, of what is read without flags.
        config_name: the configuration of a data set on the Hub.

    Returns:
        Their `role` and `name`, of those on the Hub their `id` there and `config`, and whether they are one's `own`.
    """
    files = {role: getattr(args, f"{split}_file", None) for split, role in ROLES.items()}
    if any(files.values()):
        lists = {role: [given] if isinstance(given, str) else given for role, given in files.items() if given}
        named = {role: ", ".join(Path(file).name for file in given) for role, given in lists.items()}
        return [{"role": role, "name": name, "own": True} for role, name in named.items()]
    config = {"config": config_name} if config_name else {}
    # `datasets` prefers a folder to a data set on the Hub that is called like it
    folder = getattr(args, "data_dir", None) or args.dataset_name or default.get("id", "")
    if folder and Path(folder).exists():
        name = " ".join(filter(None, (shown(folder), config_name)))
        return [{"role": "data", "name": name, "own": True}]
    if args.dataset_name is None:
        return [{"role": "data"} | default | config]
    name = " ".join(filter(None, (args.dataset_name, config_name)))
    return [{"role": "data", "name": name, "id": args.dataset_name} | config]


def describe_used(data: list[dict[str, Any]], used: dict[str, Used]) -> list[dict[str, Any]]:
    """Say what a run has read of the data of `describe_data`: a part for each `split`, with its `rows`."""
    parts = []
    for split, read in used.items():
        role = ROLES[split.partition("_")[0]]
        # where there is no file for it, a split is taken from the first
        source = next((part for part in data if part["role"] == role), data[0])
        parts.append({**source, "role": role, "split": split, **read._asdict()})
    return parts


def all_arguments(*flags: Any) -> dict[str, Any]:
    """Collect all arguments of a run, whether they were given, are from a recipe or are defaults.

    Others may read them: tokens and data bases are left out, and of files and folders there are the names only.

    Args:
        flags: dataclasses of flags, or dicts of some.
    """
    found: dict[str, Any] = {}
    for part in flags:
        # the Trainer's own have texts in place of enumerations
        own = part.to_dict() if isinstance(part, TrainingArguments) else part
        found |= own if isinstance(own, dict) else vars(own)
    return {name: _public(value) for name, value in found.items() if not SECRETS.fullmatch(f"--{name}")}


def card_settings(arguments: dict[str, Any]) -> dict[str, str | float]:
    """Choose the arguments that a card shows: those that differ from transformers' Trainer's defaults, or are ours.

    What is off, has no value, or changes nothing of the model is left out.
    """
    others = {f.name: f.default for f in fields(TrainingArguments)}
    shown = {}
    for name, value in arguments.items():
        is_other = value != others[name] and (value or others[name]) if name in others else value is not False
        if is_other and value not in (None, "", [], {}) and name not in IN_WORDS and not name.startswith(FREE):
            shown[name] = value if type(value) in (float, int) else _in_a_line(value)
    return shown


def training_settings(args: TrainingArguments) -> dict[str, str | float]:
    """Describe in words the settings that every training has."""
    # names instead of enumerations
    flags, steps, warmup = args.to_dict(), args.max_steps, args.warmup_steps
    return {
        "optimizer": flags["optim"],
        "learning rate": args.learning_rate,
        "schedule": flags["lr_scheduler_type"],
        "warmup": f"{warmup:g} steps" if warmup >= 1 else f"{100 * warmup:g} % of the steps",
        **({"steps": steps} if steps > 0 else {"epochs": args.num_train_epochs}),
        "batch size": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "weight decay": args.weight_decay,
        "mixed precision": args.mixed_precision,
    }


def publish(
    folder: str | Path,
    args: TrainingArguments,
    arguments: dict[str, Any],
    command: list[str],
    data: list[dict[str, Any]],
    results: list[dict[str, Any]],
    seeds: list[int],
    started_from: str | None = None,
    settings: dict[str, str | float] | None = None,
    **about: Any,
) -> bool:
    """Write `run.json` and the card into a trained model's folder; with `--push_to_hub` publish what it exports to.

    Args:
        folder: of the model.
        args: of its training.
        arguments: all of them, see `all_arguments`.
        command: the words of the command line.
        data: from `describe_used`.
        results: from `result`.
        seeds: of all runs.
        started_from: folder or repository of the model that was trained on.
        settings: those of the training that are not as `args` say.
        about: `task` and `languages`, where the model's class does not say them.

    Returns:
        Whether the model is one of this package; of others nothing is written.
    """
    if type(AutoConfig.from_pretrained(folder)) not in AUTO_CLASSES:
        return False
    on = machine(args.device)
    about |= {"data": data, "seeds": seeds, "date": on.pop("date")[:10], "machine": on, "results": results}
    in_words = training_settings(args) | (settings or {}) if args.do_train else {}
    run = record(command, arguments, started_from, in_words, **about)
    if started_from and not Path(started_from).exists():
        run["base_model"] = started_from
    write_folder(Path(folder), run=run)
    if args.push_to_hub:
        repository = args.hub_model_id or Path(folder).name
        with TemporaryDirectory() as exported:
            export(Path(folder), Path(exported), repository)
            upload(exported, repository, private=args.hub_private_repo, revision=args.hub_revision)
    return True


def record(
    command: list[str],
    arguments: dict[str, Any],
    started_from: str | None = None,
    settings: dict[str, str | float] | None = None,
    **about: Any,
) -> dict[str, Any]:
    """Make what `run.json` says of a command, and the card of what it leaves.

    Args:
        command: the words of the command line.
        arguments: all of them, see `all_arguments`.
        started_from: folder or repository of the model that it began with.
        settings: what the card shows first, in words.
        about: what else `Run` of the card may have.
    """
    return {
        "command": command_line(["sublayers", *command]),
        "started_from": started_from and shown(started_from),
        "settings": (settings or {}) | card_settings(arguments),
        "arguments": arguments,
        **about,
    }


def summary(metrics: dict[str, Any], names: Iterable[str]) -> str:
    """Write those of the metrics that exist in a line."""
    return ", ".join(f"{name} {metrics[name]:.4f}" for name in names if name in metrics)


def command_line(words: list[str]) -> str:
    """Write a command line as others may see it: without tokens and data bases, and files without their folders.

    Paths within the folder where the command runs stay.
    """
    shown, is_secret = [], False
    for word in words:
        name, sign, _ = word.partition("=")
        if is_secret:
            is_secret = False
        elif SECRETS.fullmatch(name):
            is_secret = not sign
        else:
            shown.append(_without_outer_paths(word))
    return shlex.join(shown)


def shown(source: str) -> str:
    """Name a file or folder as it was given, a link too, without where it is, or a repository."""
    return Path(os.path.abspath(source)).name if Path(source).exists() else source


def _public(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _public(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_public(part) for part in value]
    if value is None or isinstance(value, (bool, float, int)):
        return value
    text = str(value)
    return (shown(text) or text) if os.path.exists(text) else _without_outer_paths(text)


def _without_outer_paths(text: str) -> str:
    return OUTER_PATH.sub(lambda found: PureWindowsPath(found[0]).name, text)


def _in_a_line(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
