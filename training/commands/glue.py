"""`sublayers glue`: fine-tune a model on tasks of GLUE, evaluate it with their metrics, and write a submission."""

import json
import shutil
from dataclasses import MISSING, dataclass, replace
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
from sublayers.training.data.glue import GLUE_TASKS, HUB_NAME, GlueDataArguments, Splits, load_task
from sublayers.training.flags import expand_settings_file, flag, parse_flags
from sublayers.training.folders import claim
from sublayers.training.log import Log, open_log
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

    task_name: str = flag("all: as far as there are data", MISSING, choices=[*GLUE_TASKS, "all"])
    model_name_or_path: str = flag("model to fine-tune", MISSING)
    max_length: int = flag("tokens of a text or pair; the longer text is cut first", 128)
    seeds: list[int] = flag("one run each; default: --seed", [])
    learning_rates: list[float] = flag("grid; default: --learning_rate", [])
    batch_sizes: list[int] = flag("grid; default: --per_device_train_batch_size", [])


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

    folder = Path(str(args.output_dir))
    console = Console(quiet=args.process_index > 0)
    with claim(folder, args.process_index):
        # whatever can be wrong with any task is said before the first training
        tokenizer = load(AutoTokenizer, run.model_name_or_path)
        # batches need a padding token, and decoders often have none
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
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
            runs = TaskRuns(name, splits, tokenizer, run, data_args, args, log, console)
            results[name] = runs.search()
            runs.add_rows(table, results[name]["best"])
            if args.process_index > 0:
                continue
            (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
            if args.do_train and (name, runs.repository) not in published:
                try:
                    runs.publish(results[name]["best"], ["glue", *argv])
                    log.append("published", task=name, repository=runs.repository)
                except (OSError, ValueError) as error:
                    # the other tasks do not wait for the Hub
                    unpublished.append(f"{name} ({error})")
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
    from sublayers.training.trainers.start import check_length

    config = load(AutoConfig, run.model_name_or_path)
    check_length("max_length", run.max_length, config, tokenizer, tokenizer.num_special_tokens_to_add(pair=True) + 2)
    has = tuple(label for _, label in sorted(config.id2label.items()))
    for name in names:
        if not args.do_train and has != GLUE_TASKS[name].labels:
            raise ValueError(
                f"{run.model_name_or_path} has the labels {', '.join(has)}, but {name} has "
                f"{', '.join(GLUE_TASKS[name].labels)}; fine-tune it with --do_train"
            )


@dataclass
class TaskRuns:
    """The runs of one task.

    Attributes:
        name: of the task.
        splits: its data, as `load_task` reads them.
        tokenizer: that of the model.
        run: what is fine-tuned how often.
        data_args: where the data are from.
        args: of each run, but for its point of the grid and its seed.
        log: holds the scores of the runs that are done.
        console: says which run begins.
    """

    name: str
    splits: Splits
    tokenizer: PreTrainedTokenizerBase
    run: GlueArguments
    data_args: GlueDataArguments
    args: GlueTrainingArguments
    log: Log
    console: Console

    def __post_init__(self):
        self.task = GLUE_TASKS[self.name]
        # only the folder of a finished task has this name
        self.kept = Path(self.args.output_dir, self.name)
        # with all tasks, each has a model of its own
        suffix = f"-{self.name}" if self.run.task_name == "all" else ""
        repository = f"{self.args.hub_model_id}{suffix}" if self.args.hub_model_id else self.name
        self.repository = repository if self.args.push_to_hub else None
        with self.args.main_process_first(desc="tokenizing"):
            self.splits = {split: self._tokenize(rows, split) for split, rows in self.splits.items()}

    def search(self) -> dict[str, Any]:
        """Train and evaluate what the log does not have yet, and give the best run's folder the name of the task.

        Returns:
            What `main` returns of the task.
        """
        split, metric = self.task.validation[0], self.task.metrics[0]
        known = {
            (event["learning_rate"], event["batch_size"], event["seed"]): event["scores"]
            for event in self.log.events("run")
            if event["task"] == self.name
        }
        best: dict[str, Any] = {}
        points: list[dict[str, Any]] = []
        for learning_rate, batch_size in product(self.run.learning_rates, self.run.batch_sizes):
            for seed in self.run.seeds:
                if (learning_rate, batch_size, seed) not in known:
                    known[learning_rate, batch_size, seed] = self._train(learning_rate, batch_size, seed)
            runs = [{"seed": seed} | known[learning_rate, batch_size, seed] for seed in self.run.seeds]
            deciding = [scores[split][metric] for scores in runs]
            middle = self.run.seeds[deciding.index(median_low(deciding))]
            point = {"learning_rate": learning_rate, "batch_size": batch_size, "median": median(deciding)}
            points.append(point | {"seed": middle, "runs": runs})
            best = max(points, key=lambda point: point["median"])
            chosen = self._folder(best["learning_rate"], best["batch_size"], best["seed"])
            if self.args.process_index == 0:
                for point, seed in product(points, self.run.seeds):
                    if (folder := self._folder(point["learning_rate"], point["batch_size"], seed)) != chosen:
                        shutil.rmtree(folder, ignore_errors=True)
        PartialState().wait_for_everyone()
        if not self.kept.exists():
            self._predict(chosen)
            if self.args.process_index == 0:
                chosen.rename(self.kept)
        return {"split": split, "metric": metric, "best": best, "points": points}

    def publish(self, best: dict[str, Any], command: list[str]) -> None:
        """Write the card of the best run, and publish it where the flags ask for it.

        Args:
            best: point of the grid, from `search`.
            command: the words of the command line.

        Raises:
            OSError: it could not be published.
            ValueError: the Hub refuses it.
        """
        from sublayers.training.trainers.publish import describe_data, publish, result

        data = describe_data(self.data_args, {"name": f"GLUE {self.name}", "id": HUB_NAME}, self.name)
        results = [
            result(data, split, metric, score, scores["seed"])
            for scores in best["runs"]
            for split in self.task.validation
            for metric, score in scores.get(split, {}).items()
        ]
        own = replace(self.args, hub_model_id=self.repository, output_dir=str(self.kept))
        is_ours = publish(self.kept, own, command, data, results, self.run.seeds, self.run.model_name_or_path)
        if self.repository and not is_ours:
            with hub_errors(self.repository):
                self._make_trainer(str(self.kept), own).push_to_hub()

    def add_rows(self, table: Table, best: dict[str, Any]) -> None:
        """Add the scores of the best point to a table, a row for each split and metric."""
        point = (str(best["learning_rate"]), str(best["batch_size"]))
        for split, metric in product(self.task.validation, self.task.metrics):
            if scores := [run[split][metric] for run in best["runs"] if split in run]:
                values = (f"{100 * median(scores):.1f}", " ".join(f"{100 * score:.1f}" for score in scores))
                table.add_row(self.name + split.removeprefix("validation"), metric, *values, *point)

    def _tokenize(self, rows: Dataset, split: str) -> Dataset:
        # `datasets` caches rows by all that the function refers to, which must not be the runs
        columns, tokenizer, max_length = list(self.task.columns), self.tokenizer, self.run.max_length

        def encode(batch: dict[str, list[str]]) -> Any:
            return tokenizer(*(batch[column] for column in columns), truncation=True, max_length=max_length)

        return rows.map(encode, batched=True, remove_columns=columns, desc=f"tokenizing {self.name}, {split}")

    def _folder(self, learning_rate: float, batch_size: int, seed: int) -> Path:
        return self.kept.with_name(f"{self.name}-{learning_rate}-{batch_size}-{seed}")

    def _train(self, learning_rate: float, batch_size: int, seed: int) -> dict[str, dict[str, float]]:
        from sublayers.training.trainers.resume import find_checkpoint
        from sublayers.training.trainers.run import train_and_evaluate

        self.console.rule(f"{self.name}: learning rate {learning_rate}, batch size {batch_size}, seed {seed}")
        folder = self._folder(learning_rate, batch_size, seed)
        args = replace(
            self.args,
            output_dir=str(folder),
            learning_rate=learning_rate,
            per_device_train_batch_size=batch_size,
            seed=seed,
            # a run that was killed has left checkpoints
            resume_from_checkpoint="true" if folder.exists() else None,
            # only the best one is published
            push_to_hub=False,
        )
        checkpoint = find_checkpoint(args)
        trainer = self._make_trainer(self.run.model_name_or_path, args)
        # the best run's folder is that of the task, trained or not
        trainer.leaves_model = True
        validation = {split: self.splits[split] for split in self.task.validation if split in self.splits}
        metrics = train_and_evaluate(trainer, checkpoint, validation.items())
        scores = {split: {each: metrics[f"{split}_{each}"] for each in self.task.metrics} for split in validation}
        if args.process_index == 0:
            point = {"learning_rate": learning_rate, "batch_size": batch_size, "seed": seed}
            self.log.append("run", task=self.name, **point, scores=scores)
        return scores

    def _predict(self, folder: Path) -> None:
        from sublayers.training.metrics.glue import write_submission

        tests = {split: rows for split, rows in self.splits.items() if split.startswith("test")}
        if not tests:
            return
        trainer = self._make_trainer(str(folder), replace(self.args, output_dir=str(folder), push_to_hub=False))
        for split, rows in tests.items():
            predictions = trainer.predict(rows).predictions
            if trainer.is_world_process_zero():
                file = folder.with_name("submission") / f"{self.task.files[split.removeprefix('test')]}.tsv"
                # a run that was killed may have left a part of the file
                file.unlink(missing_ok=True)
                write_submission(self.task, np.asarray(predictions), file)

    def _make_trainer(self, model: str, args: GlueTrainingArguments) -> "ResumableTrainer":
        from transformers import AutoModelForSequenceClassification

        from sublayers.hub.loading import load
        from sublayers.training.metrics.glue import GlueMetric
        from sublayers.training.trainers.resumable_trainer import ResumableTrainer

        metric = GlueMetric(self.name, keep_in_memory=True)
        # a new head is random
        set_seed(args.seed)
        return ResumableTrainer(
            model=load(
                AutoModelForSequenceClassification,
                model,
                id2label=dict(enumerate(self.task.labels)),
                label2id={label: number for number, label in enumerate(self.task.labels)},
                problem_type="regression" if self.task.scored else "single_label_classification",
                # a head for another number of labels gives way to a new one
                ignore_mismatched_sizes=True,
            ),
            args=args,
            train_dataset=self.splits.get("train"),
            eval_dataset=self.splits[self.task.validation[0]],
            processing_class=self.tokenizer,
            compute_metrics=lambda found: metric.compute(predictions=found.predictions, references=found.label_ids),
            preprocess_logits_for_metrics=_answers,
        )


def _answers(logits: torch.Tensor | tuple[torch.Tensor, ...], _: torch.Tensor | None) -> torch.Tensor:
    # some models add hidden states
    logits = logits[0] if isinstance(logits, tuple) else logits
    return logits.argmax(-1) if logits.shape[-1] > 1 else logits.squeeze(-1)
