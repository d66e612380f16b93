"""The trainings of a search, which are the trials of a study."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from transformers import TrainerCallback

from sublayers.configuration.configuration_reordered_seq2seq import ReorderedSeq2SeqConfig
from sublayers.configuration.field_values import unneeded_fields
from sublayers.configuration.order import Order
from sublayers.hub.model_card import num_parameters
from sublayers.training.commands import pretrain, seq2seq
from sublayers.training.folders import claim
from sublayers.training.lab.search.draw import Candidate
from sublayers.training.trainers.resume import find_checkpoint
from sublayers.training.trainers.run import train_and_evaluate
from sublayers.training.trials import TASK, results, run_trials

COMMANDS: dict[str, Any] = {"pretrain": pretrain, "seq2seq": seq2seq}


class Training(NamedTuple):
    """How orders are trained: the command, its flags without order and seed, and the name of the order's flag."""

    command: str
    flags: list[str]
    field: str

    def run(self, order: str, seed: int, folder: Path, *callbacks: TrainerCallback) -> dict[str, Any]:
        """Train and evaluate an order, or go on with it; return the number of its parameters and the metrics."""
        own = [f"--{self.field}={order}", f"--seed={seed}", f"--output_dir={folder}"]
        own += ["--resume_from_checkpoint=true"] if folder.exists() else []
        command = COMMANDS[self.command]
        *parsed, args = command.parse([*fitting_flags(self.flags, {self.field: order}), *own])
        with claim(folder):
            checkpoint = find_checkpoint(args)
            trainer = command.make_trainer(*parsed, args, checkpoint)
            for callback in callbacks:
                trainer.add_callback(callback)
            metrics = train_and_evaluate(trainer, checkpoint)
        return {"parameters": num_parameters(folder), "metrics": metrics}


class EarlyLosses(TrainerCallback):
    """Report the loss of each evaluation to a trial, which may end then."""

    def __init__(self, trial: optuna.Trial):
        self.trial, self.last = trial, 0

    def on_evaluate(self, args, state, control, **kwargs):
        """Count evaluations; the last one is at the end of the training."""
        number = state.global_step // max(1, int(state.eval_steps))
        if number > self.last:
            self.last = number
            self.trial.report(kwargs["metrics"]["eval_loss"], number)
            if self.trial.should_prune():
                raise optuna.TrialPruned


@dataclass(frozen=True)
class TrainOrder:
    """Trains the order of a trial with its seed, in a folder of the search's; the value is the loss."""

    training: Training
    folder: Path

    def __call__(self, trial: optuna.Trial) -> float:
        """Keep the order and the run as attributes, unless a process that died had done so."""
        order, seed = trial.user_attrs[TASK]["order"], trial.user_attrs[TASK]["seed"]
        trial.set_user_attr("order", order)
        if "runs" not in trial.user_attrs:
            found = self.training.run(order, seed, self.folder / "runs" / f"{order}-{seed}", EarlyLosses(trial))
            trial.set_user_attr("runs", [{"seed": seed} | found])
        return trial.user_attrs["runs"][0]["metrics"]["eval_loss"]


def fitting_flags(flags: list[str], orders: dict[str, str]) -> list[str]:
    """Leave out flags that only sublayers need which neither these orders have, by their fields, nor another stack."""
    stacks = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ReorderedSeq2SeqConfig.order_fields:
        stacks.add_argument(f"--{name}", default="")
    given = vars(stacks.parse_known_args(flags)[0]) | orders
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in unneeded_fields([Order(order) for order in given.values() if order]):
        parser.add_argument(f"--{name}", nargs="?")
    return parser.parse_known_args(flags)[1]


def train_orders(study: optuna.Study, training: Training, candidates: list[Candidate], args: Any) -> None:
    """Train every order with every seed of the flags, if that was not done, and note where the orders are from.

    Raises:
        ValueError: no training came to its end.
    """
    known = study.user_attrs.get("candidates", [])
    named = [(each["order"], each["name"]) for each in known]
    new = [candidate._asdict() for candidate in candidates if candidate[:2] not in named]
    study.set_user_attr("candidates", known + new)
    tasks = [{"order": candidate.order, "seed": seed} for seed in args.seeds for candidate in candidates]
    run_trials(study, TrainOrder(training, args.output_dir), args.output_dir, tasks, jobs=args.jobs, say=best)


def best(study: optuna.Study) -> str:
    """Say which order is the best so far."""
    done = results(study)
    if not done:
        return ""
    first = min(done, key=lambda trial: trial.values[0])
    return f"best so far {first.user_attrs['order']}, loss {first.values[0]:.4f}"
