"""The grid of `sublayers glue`: its runs, what is kept of them, and what follows the last one of a task."""

import shutil
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median, median_low
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from optuna import Study, Trial
from optuna.trial import FrozenTrial
from rich.table import Table
from transformers import PreTrainedTokenizerBase, set_seed

from sublayers.hub.upload import hub_errors
from sublayers.training.data.files import used
from sublayers.training.data.glue import GLUE_TASKS, HUB_NAME, GlueDataArguments, Splits
from sublayers.training.trainers.arguments import TrainerArguments
from sublayers.training.trials import TASK, results

if TYPE_CHECKING:
    from sublayers.training.trainers.resumable_trainer import ResumableTrainer

# of each axis of the grid, the argument of the Trainer that it sets, and the flag that has its values
AXES = {"learning_rate": "learning_rate", "batch_size": "per_device_train_batch_size", "epochs": "num_train_epochs"}
VALUES = {"learning_rate": "learning_rates", "batch_size": "batch_sizes", "epochs": "epochs"}
# what names a run
POINT = ("task_name", *AXES, "seed")


def is_run(trial: FrozenTrial) -> bool:
    """Say whether a trial is a run; the others end a task."""
    return "finish" not in trial.user_attrs[TASK]


def share(value: Any) -> Any:
    """Give what the first process has to the others of a launch, which call this at the same time."""
    return broadcast_object_list([value])[0]


@dataclass
class Grid:
    """Does the runs of all tasks, and what follows the last run of each.

    Attributes:
        runs: by task.
        command: the words of the command line.
    """

    runs: dict[str, "TaskRuns"]
    command: list[str]

    def __call__(self, trial: Trial) -> float:
        """Do what a trial asks for; return the metric that decides, of a run or of the best point."""
        task = share(trial.user_attrs[TASK])
        if "finish" in task:
            best = share(self.runs[task["finish"]].search(trial.study)["best"])
            self._finish(task, best)
            return best[self.runs[task["finish"]].run.select]
        scores = self._train(task)
        trial.set_user_attr("scores", scores)
        runs = self.runs[task["task_name"]]
        runs.remove_losers(trial.study, task, scores)
        return scores[runs.split][runs.metric]

    def follow(self) -> dict[str, Any]:
        """Train and predict together with the first process of a launch; return the results."""
        while not (found := share(None)).keys() & self.runs.keys():
            if "finish" in found:
                self._finish(found, share(None))
            else:
                self._train(found)
        return found

    def _train(self, task: dict[str, Any]) -> dict[str, Any]:
        return self.runs[task["task_name"]].train(task, task["seed"])

    def _finish(self, task: dict[str, Any], best: dict[str, Any]) -> None:
        self.runs[task["finish"]].finish(best, self.command)


@dataclass
class TaskRuns:
    """The runs of one task.

    Attributes:
        name: of the task.
        splits: its data, as `load_task` reads them.
        tokenizer: that of the model.
        run: the command's flags for what is fine-tuned how often.
        data_args: where the data are from.
        args: of each run, but for its point of the grid and its seed.
    """

    name: str
    splits: Splits
    tokenizer: PreTrainedTokenizerBase
    run: Any
    data_args: GlueDataArguments
    args: TrainerArguments

    def __post_init__(self):
        self.task = GLUE_TASKS[self.name]
        # what decides
        self.split, self.metric = self.task.validation[0], self.task.metrics[0]
        # only the folder of a finished task has this name
        self.kept = Path(str(self.args.output_dir), self.name)
        # with all tasks, each has a model of its own
        suffix = f"-{self.name}" if self.run.task_name == "all" else ""
        repository = f"{self.args.hub_model_id}{suffix}" if self.args.hub_model_id else self.name
        self.repository = repository if self.args.push_to_hub else None
        limits = {"train": self.data_args.max_train_samples}
        limits |= dict.fromkeys(self.task.validation, self.data_args.max_eval_samples)
        self.used = {
            split: used(rows, limits[split]) for split, rows in self.splits.items() if not split.startswith("test")
        }
        with self.args.main_process_first(desc="tokenizing"):
            self.splits = {split: self._tokenize(rows, split) for split, rows in self.splits.items()}

    def search(self, study: Study, *more: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
        """Find the best of the points whose runs are all done, by its median or its best run, as `--select` says.

        Args:
            study: that has the scores of runs.
            more: runs and their scores that it does not have yet.

        Returns:
            What `main` returns of the task.
        """
        known = [(trial.user_attrs[TASK], trial.user_attrs["scores"]) for trial in results(study) if is_run(trial)]
        scores = {tuple(task[name] for name in POINT): found for task, found in [*known, *more]}
        points: list[dict[str, Any]] = []
        for values in product(*(getattr(self.run, flag) for flag in VALUES.values())):
            keys = [(self.name, *values, seed) for seed in self.run.seeds]
            if not scores.keys() >= {*keys}:
                continue
            runs = [{"seed": seed} | scores[key] for seed, key in zip(self.run.seeds, keys, strict=True)]
            deciding = [each[self.split][self.metric] for each in runs]
            chosen = max(deciding) if self.run.select == "best" else median_low(deciding)
            point = dict(zip(AXES, values, strict=True)) | {"median": median(deciding), "best": max(deciding)}
            points.append(point | {"seed": self.run.seeds[deciding.index(chosen)], "runs": runs})
        best = max(points, key=lambda point: point[self.run.select], default=None)
        return {"split": self.split, "metric": self.metric, "best": best, "points": points}

    def remove_losers(self, study: Study, task: dict[str, Any], scores: dict[str, Any]) -> None:
        """Remove the folders of all runs of complete points but the best one, with the scores of a new run."""
        found = self.search(study, (task, scores))
        for point, seed in product(found["points"], self.run.seeds):
            if point != found["best"] or seed != point["seed"]:
                shutil.rmtree(self._folder(point, seed), ignore_errors=True)

    def finish(self, best: dict[str, Any], command: list[str]) -> None:
        """Predict with the best run, give its folder the name of the task, and `publish` it."""
        PartialState().wait_for_everyone()
        if not self.kept.exists():
            chosen = self._folder(best, best["seed"])
            self._predict(chosen)
            if self.args.process_index == 0:
                chosen.rename(self.kept)
        if self.args.process_index == 0 and self.args.do_train:
            self.publish(best, command)

    def publish(self, best: dict[str, Any], command: list[str]) -> None:
        """Write the card of the best run, and publish it where the flags ask for it.

        Args:
            best: point of the grid, from `search`.
            command: the words of the command line.

        Raises:
            OSError: it could not be published.
            ValueError: the Hub refuses it.
        """
        from sublayers.training.trainers.publish import all_arguments, describe_data, describe_used, publish, result

        named = describe_data(self.data_args, {"name": f"GLUE {self.name}", "id": HUB_NAME}, self.name)
        data = describe_used(named, self.used)
        results = [
            result(data, split, metric, score, scores["seed"])
            for scores in best["runs"]
            for split in self.task.validation
            for metric, score in scores.get(split, {}).items()
        ]
        own = replace(
            self.args,
            hub_model_id=self.repository,
            output_dir=str(self.kept),
            **{argument: best[axis] for axis, argument in AXES.items()},
        )
        arguments = all_arguments(own, self.run, self.data_args)
        is_ours = publish(
            self.kept, own, arguments, command, data, results, self.run.seeds, self.run.model_name_or_path
        )
        if self.repository and not is_ours:
            with hub_errors(self.repository):
                self._make_trainer(str(self.kept), own).push_to_hub()

    def add_rows(self, table: Table, best: dict[str, Any]) -> None:
        """Add the scores of the best point to a table, a row for each split and metric."""
        point = [str(best[axis]) for axis in AXES]
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

    def _folder(self, point: dict[str, Any], seed: int) -> Path:
        return self.kept.with_name("-".join([self.name, *(str(point[axis]) for axis in AXES), str(seed)]))

    def train(self, point: dict[str, Any], seed: int) -> dict[str, dict[str, float]]:
        """Train and evaluate with a point of the grid and a seed; return the scores by split."""
        from sublayers.training.trainers.resume import find_checkpoint
        from sublayers.training.trainers.run import train_and_evaluate

        folder = self._folder(point, seed)
        args = replace(
            self.args,
            output_dir=str(folder),
            **{argument: point[axis] for axis, argument in AXES.items()},
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
        return {split: {each: metrics[f"{split}_{each}"] for each in self.task.metrics} for split in validation}

    def _predict(self, folder: Path) -> None:
        from sublayers.training.metrics.glue import write_submission

        tests = {split: rows for split, rows in self.splits.items() if split.startswith("test")}
        if not tests:
            return
        trainer = self._make_trainer(str(folder), replace(self.args, output_dir=str(folder), push_to_hub=False))
        for split, rows in tests.items():
            predictions = trainer.predict(rows).predictions
            if trainer.is_world_process_zero():
                file = folder.with_name("submission") / f"{self.task.submitted[split.removeprefix('test')]}.tsv"
                # a run that was killed may have left a part of the file
                file.unlink(missing_ok=True)
                write_submission(self.task, np.asarray(predictions), file)

    def _make_trainer(self, model: str, args: TrainerArguments) -> "ResumableTrainer":
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
