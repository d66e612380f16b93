"""`sublayers glue`: fine-tune a model on tasks of GLUE, evaluate it with their metrics, and write a submission."""

import difflib
import json
import shutil
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import median, median_low
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedTokenizerBase, set_seed

from sublayers.hub.upload import hub_errors
from sublayers.tasks.windows import longest_input
from sublayers.training.data.glue import GLUE_TASKS, HUB_NAME, GlueDataArguments, Splits, load_task
from sublayers.training.flags import expand_settings_file, parse_flags
from sublayers.training.folders import claim, refuse_to_overwrite
from sublayers.training.log import LOG, Log, open_log
from sublayers.training.trainers.arguments import FineTuningArguments, default

if TYPE_CHECKING:
    from sublayers.training.trainers.resumable_trainer import ResumableTrainer

USAGE = "sublayers glue [SETTINGS.yaml] --task_name NAME --model_name_or_path MODEL [--name value ...]"
# the beginnings of flags that may differ when runs go on
FREE = ("output_dir", "resume", "push", "hub", "log", "report", "disable_tqdm", "local_rank", "per_device_eval")


@dataclass
class GlueArguments:
    """Flags for what is fine-tuned how often."""

    _argument_group_name: ClassVar[str] = "task, model and grid"

    task_name: str = field(metadata={"help": f"{', '.join(GLUE_TASKS)}; or all, as far as there are data"})
    model_name_or_path: str = field(metadata={"help": "model to fine-tune"})
    max_length: int = field(default=128, metadata={"help": "tokens of a text or pair; the longer text is cut first"})
    seeds: list[int] = field(default_factory=list, metadata={"help": "one run each; default: --seed"})
    learning_rates: list[float] = field(default_factory=list, metadata={"help": "grid; default: --learning_rate"})
    batch_sizes: list[int] = field(
        default_factory=list, metadata={"help": "grid; default: --per_device_train_batch_size"}
    )


@dataclass
class GlueTrainingArguments(FineTuningArguments):
    """Arguments of one run; `do_eval` or `do_predict` alone leave training out."""

    output_dir: str = default("output_dir", "runs/glue")
    per_device_train_batch_size: int = default("per_device_train_batch_size", 32)

    def __post_init__(self):
        self.do_train = self.do_train or not (self.do_eval or self.do_predict)
        super().__post_init__()


FLAGS = (GlueArguments, GlueDataArguments, GlueTrainingArguments)


def main(argv: list[str]) -> dict[str, dict[str, Any]]:
    """Fine-tune a model on one task of GLUE or on all, once per seed and point of the grid, and evaluate every run.

    The best point has the best median over seeds of the metric that decides. Its median run, the lower one of an even
    number, leaves model and tokenizer in the folder TASK of the output folder, and in `submission` its predictions for
    the test data, where there are any. The scores of a run are in `log.jsonl` as soon as it ends, and the same command
    goes on where it was killed.

    Args:
        argv: flags, after an optional .yaml or .json file with the same names; see `sublayers glue --help`.

    Returns:
        What `results.json` in the output folder holds, by task: the `split` and the `metric` that decide, the `best`
        point and all `points`, each with the `median`, the `seed` of the median run and the scores of all `runs`.

    Raises:
        FileExistsError: the output folder holds something else, or runs with other flags.
        FileNotFoundError: there are no data for a task.
        OSError: everything is done, but some task could not be published.
        ValueError: bad flags, an unknown task, or data that cannot be used; see `load_task`.
    """
    run, data_args, args = parse(argv)
    # models and Trainers take seconds to import, for which --help does not wait
    from transformers import AutoTokenizer

    from sublayers.hub.loading import load

    with claim(str(args.output_dir), args.process_index):
        folder = Path(str(args.output_dir))
        if not (folder / LOG).exists():
            refuse_to_overwrite(folder)
        console = Console(quiet=args.process_index > 0)
        # whatever can be wrong with any task is said before the first training
        tokenizer = load(AutoTokenizer, run.model_name_or_path)
        if tokenizer.pad_token is None:
            # batches need a padding token, and decoders often have none
            tokenizer.pad_token = tokenizer.eos_token
        names = _task_names(run, data_args, console)
        _check_model(run, args, tokenizer, names)
        with args.main_process_first(desc="reading the data"):
            data = {name: load_task(name, data_args, args.do_train) for name in names}
            flags = {**vars(run), **vars(data_args), **args.to_dict()}
            settings = {name: value for name, value in flags.items() if not name.startswith(FREE)}
            log = open_log(folder, "fine-tuning", settings)
        seeds = f"seeds {' '.join(map(str, run.seeds))}"
        table = Table("task", "metric", "median", seeds, "learning rate", "batch size", title="scores times 100")
        for column in table.columns:
            column.overflow = "fold"
        results: dict[str, dict[str, Any]] = {}
        published = [(event["task"], event["repository"]) for event in log.events("published")]
        unpublished: list[str] = []
        for name, splits in data.items():
            with args.main_process_first(desc="tokenizing"):
                encoded = {split: _tokenize(rows, name, split, tokenizer, run) for split, rows in splits.items()}
            results[name] = _search(name, encoded, tokenizer, run, args, log, console)
            if args.process_index == 0:
                text = json.dumps(results, indent=2) + "\n"
                (folder / "results.json").write_text(text, encoding="utf-8")
                repository, best = _repository(name, run, args), results[name]["best"]
                if args.do_train and (name, repository) not in published:
                    try:
                        _publish(name, repository, best, encoded, tokenizer, run, data_args, args, ["glue", *argv])
                        log.append("published", task=name, repository=repository)
                    except (OSError, ValueError) as error:
                        # the other tasks do not wait for the Hub
                        unpublished.append(f"{name} ({error})")
            _add_rows(table, name, results[name]["best"])
        console.print(table)
        console.print(f"models, predictions and all scores are in {folder}")
        if unpublished:
            raise OSError(
                f"all is trained, but some is not published: {'; '.join(unpublished)}; the same command publishes what "
                "is missing"
            )
        return results


def parse(argv: list[str]) -> tuple[GlueArguments, GlueDataArguments, GlueTrainingArguments]:
    """Read the command's flags, after an optional recipe or settings file.

    Raises:
        ValueError: unknown flags, an unknown task, files for several, a checkpoint, or a grid that repeats itself.
    """
    run, data_args, args = parse_flags(expand_settings_file(argv, "glue"), FLAGS, USAGE)
    if run.task_name not in (*GLUE_TASKS, "all"):
        nearest = difflib.get_close_matches(run.task_name, GLUE_TASKS, n=1)
        meant = f", did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"unknown task {run.task_name!r}{meant}; choose from {', '.join(GLUE_TASKS)} and all")
    if data_args.files and run.task_name == "all":
        raise ValueError("files hold one task; give its --task_name, or for all a --data_dir")
    if (args.resume_from_checkpoint or "true").lower() not in ("true", "false"):
        raise ValueError(
            f"several runs cannot go on from {args.resume_from_checkpoint}; they do from where they stopped without it"
        )
    run.seeds = run.seeds or [args.seed]
    run.learning_rates = run.learning_rates or [args.learning_rate]
    run.batch_sizes = run.batch_sizes or [args.per_device_train_batch_size]
    for name in ("seeds", "learning_rates", "batch_sizes"):
        values = getattr(run, name)
        if len(set(values)) < len(values):
            raise ValueError(f"--{name} {' '.join(map(str, values))} has a value twice; give each once")
    if min(run.batch_sizes) < 1:
        raise ValueError(f"batch size {min(run.batch_sizes)} is not a positive number; give another")
    return run, data_args, args


def _task_names(run: GlueArguments, data_args: GlueDataArguments, console: Console) -> list[str]:
    if run.task_name != "all":
        return [run.task_name]
    if data_args.data_dir is None:
        return list(GLUE_TASKS)
    missing = [name for name in GLUE_TASKS if data_args.folder(name) is None]
    if len(missing) == len(GLUE_TASKS):
        raise FileNotFoundError(f"there is no folder of any task in {data_args.data_dir}, such as cola or glue_cola")
    if missing:
        console.print(f"no data for {', '.join(missing)} in {data_args.data_dir}")
    return [name for name in GLUE_TASKS if name not in missing]


def _check_model(
    run: GlueArguments, args: GlueTrainingArguments, tokenizer: PreTrainedTokenizerBase, names: list[str]
) -> None:
    from transformers import AutoConfig

    from sublayers.hub.loading import load

    config = load(AutoConfig, run.model_name_or_path)
    shortest = tokenizer.num_special_tokens_to_add(pair=True) + 2
    longest = longest_input(config, tokenizer)
    if not shortest <= run.max_length <= longest:
        raise ValueError(
            f"max_length={run.max_length} is not between {shortest} and the model's {longest}; give another"
        )
    if args.do_train:
        return
    has = tuple(label for _, label in sorted(config.id2label.items()))
    for name in names:
        if has != GLUE_TASKS[name].labels:
            raise ValueError(
                f"{run.model_name_or_path} has the labels {', '.join(has)}, but {name} has "
                f"{', '.join(GLUE_TASKS[name].labels)}; fine-tune it with --do_train"
            )


def _tokenize(rows: Dataset, name: str, split: str, tokenizer: PreTrainedTokenizerBase, run: GlueArguments) -> Dataset:
    columns = list(GLUE_TASKS[name].columns)

    def encode(batch: dict[str, list[str]]) -> Any:
        return tokenizer(*(batch[column] for column in columns), truncation=True, max_length=run.max_length)

    return rows.map(encode, batched=True, remove_columns=columns, desc=f"tokenizing {name}, {split}")


def _search(
    name: str,
    splits: Splits,
    tokenizer: PreTrainedTokenizerBase,
    run: GlueArguments,
    args: GlueTrainingArguments,
    log: Log,
    console: Console,
) -> dict[str, Any]:
    split, metric = GLUE_TASKS[name].validation[0], GLUE_TASKS[name].metrics[0]
    kept = Path(args.output_dir, name)
    known = {
        (event["learning_rate"], event["batch_size"], event["seed"]): event["scores"]
        for event in log.events("run")
        if event["task"] == name
    }
    best: dict[str, Any] = {}
    points: list[dict[str, Any]] = []
    for learning_rate, batch_size in product(run.learning_rates, run.batch_sizes):
        for seed in run.seeds:
            if (learning_rate, batch_size, seed) in known:
                continue
            console.rule(f"{name}: learning rate {learning_rate}, batch size {batch_size}, seed {seed}")
            folder = _folder(kept, learning_rate, batch_size, seed)
            own = replace(
                args,
                output_dir=str(folder),
                learning_rate=learning_rate,
                per_device_train_batch_size=batch_size,
                seed=seed,
                # a run that was killed has left checkpoints
                resume_from_checkpoint="true" if folder.exists() else None,
                # only the best one is published
                push_to_hub=False,
            )
            scores = _run(name, run.model_name_or_path, splits, tokenizer, own)
            known[learning_rate, batch_size, seed] = scores
            if args.process_index == 0:
                log.append(
                    "run", task=name, learning_rate=learning_rate, batch_size=batch_size, seed=seed, scores=scores
                )
        runs = [{"seed": seed} | known[learning_rate, batch_size, seed] for seed in run.seeds]
        deciding = [scores[split][metric] for scores in runs]
        middle = deciding.index(median_low(deciding))
        point = {"learning_rate": learning_rate, "batch_size": batch_size, "median": median(deciding)}
        points.append(point | {"seed": run.seeds[middle], "runs": runs})
        best = max(points, key=lambda point: point["median"])
        chosen = _folder(kept, best["learning_rate"], best["batch_size"], best["seed"])
        if args.process_index == 0:
            for point, seed in product(points, run.seeds):
                if (folder := _folder(kept, point["learning_rate"], point["batch_size"], seed)) != chosen:
                    shutil.rmtree(folder, ignore_errors=True)
    PartialState().wait_for_everyone()
    # only the folder of a finished task has this name
    if not kept.exists():
        _predict(name, chosen, splits, tokenizer, args)
        if args.process_index == 0:
            chosen.rename(kept)
    return {"split": split, "metric": metric, "best": best, "points": points}


def _folder(kept: Path, learning_rate: float, batch_size: int, seed: int) -> Path:
    return kept.with_name(f"{kept.name}-{learning_rate}-{batch_size}-{seed}")


def _run(
    name: str, model: str, splits: Splits, tokenizer: PreTrainedTokenizerBase, args: GlueTrainingArguments
) -> dict[str, dict[str, float]]:
    from sublayers.training.trainers.resume import find_checkpoint
    from sublayers.training.trainers.run import train_and_evaluate

    checkpoint = find_checkpoint(args)
    trainer = _trainer(name, model, splits, tokenizer, args)
    # the best run's folder is that of the task, trained or not
    trainer.leaves_model = True
    validation = {split: splits[split] for split in GLUE_TASKS[name].validation if split in splits}
    metrics = train_and_evaluate(trainer, checkpoint, validation.items())
    return {split: {each: metrics[f"{split}_{each}"] for each in GLUE_TASKS[name].metrics} for split in validation}


def _repository(name: str, run: GlueArguments, args: GlueTrainingArguments) -> str | None:
    if not args.push_to_hub:
        return None
    # each task has a model of its own
    return f"{args.hub_model_id}-{name}" if args.hub_model_id and run.task_name == "all" else args.hub_model_id or name


def _publish(
    name: str,
    repository: str | None,
    best: dict[str, Any],
    splits: Splits,
    tokenizer: PreTrainedTokenizerBase,
    run: GlueArguments,
    data_args: GlueDataArguments,
    args: GlueTrainingArguments,
    command: list[str],
) -> None:
    from sublayers.training.trainers.publish import describe_data, publish, result

    data = describe_data(data_args, {"name": f"GLUE {name}", "id": HUB_NAME}, name)
    results = [
        result(data, split, metric, score, scores["seed"])
        for scores in best["runs"]
        for split in GLUE_TASKS[name].validation
        for metric, score in scores.get(split, {}).items()
    ]
    kept = Path(args.output_dir, name)
    own = replace(args, hub_model_id=repository, output_dir=str(kept))
    if not publish(kept, own, command, data, results, run.seeds, run.model_name_or_path) and repository:
        with hub_errors(repository):
            _trainer(name, str(kept), splits, tokenizer, own).push_to_hub()


def _predict(
    name: str, folder: Path, splits: Splits, tokenizer: PreTrainedTokenizerBase, args: GlueTrainingArguments
) -> None:
    tests = {split: rows for split, rows in splits.items() if split.startswith("test")}
    if not tests:
        return
    own = replace(args, output_dir=str(folder), push_to_hub=False)
    trainer = _trainer(name, str(folder), splits, tokenizer, own)
    for split, rows in tests.items():
        predictions = trainer.predict(rows).predictions
        if trainer.is_world_process_zero():
            from sublayers.training.metrics.glue import write_submission

            file = folder.with_name("submission") / f"{GLUE_TASKS[name].files[split.removeprefix('test')]}.tsv"
            # a run that was killed may have left a part of the file
            file.unlink(missing_ok=True)
            write_submission(GLUE_TASKS[name], np.asarray(predictions), file)


def _trainer(
    name: str, model: str, splits: Splits, tokenizer: PreTrainedTokenizerBase, args: GlueTrainingArguments
) -> "ResumableTrainer":
    from transformers import AutoModelForSequenceClassification

    from sublayers.hub.loading import load
    from sublayers.training.metrics.glue import GlueMetric
    from sublayers.training.trainers.resumable_trainer import ResumableTrainer

    task, metric = GLUE_TASKS[name], GlueMetric(name, keep_in_memory=True)
    # a new head is random
    set_seed(args.seed)
    return ResumableTrainer(
        model=load(
            AutoModelForSequenceClassification,
            model,
            id2label=dict(enumerate(task.labels)),
            label2id={label: number for number, label in enumerate(task.labels)},
            problem_type="regression" if task.scored else "single_label_classification",
            # a head for another number of labels gives way to a new one
            ignore_mismatched_sizes=True,
        ),
        args=args,
        train_dataset=splits.get("train"),
        eval_dataset=splits[task.validation[0]],
        processing_class=tokenizer,
        compute_metrics=lambda found: metric.compute(predictions=found.predictions, references=found.label_ids),
        preprocess_logits_for_metrics=_answers,
    )


def _answers(logits: torch.Tensor | tuple[torch.Tensor, ...], _: torch.Tensor | None) -> torch.Tensor:
    # some models add hidden states
    logits = logits[0] if isinstance(logits, tuple) else logits
    return logits.argmax(-1) if logits.shape[-1] > 1 else logits.squeeze(-1)


def _add_rows(table: Table, name: str, best: dict[str, Any]) -> None:
    point = (str(best["learning_rate"]), str(best["batch_size"]))
    for split, metric in product(GLUE_TASKS[name].validation, GLUE_TASKS[name].metrics):
        if scores := [run[split][metric] for run in best["runs"] if split in run]:
            values = (f"{100 * median(scores):.1f}", " ".join(f"{100 * score:.1f}" for score in scores))
            table.add_row(name + split.removeprefix("validation"), metric, *values, *point)
