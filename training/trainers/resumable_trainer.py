"""The Trainer of all training commands, which goes on from a checkpoint as if it had never stopped."""

import copy
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from math import isfinite, isnan, nan
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.fsdp import StateDictType
from torch.utils.data import SequentialSampler
from transformers import PreTrainedTokenizerBase, Trainer, TrainerCallback, TrainerState
from transformers.trainer import FSDP_MODEL_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput, has_length

from sublayers.hub.self_contained import write_code
from sublayers.hub.tokenizers import save_tokenizers
from sublayers.hub.trainer_callback import SelfContainedCallback
from sublayers.modeling.modeling_sublayers import SublayersPreTrainedModel
from sublayers.training.folders import is_of_a_file
from sublayers.training.trainers.arguments import schedule_settings
from sublayers.training.trainers.resume import has_states_of

# where the Trainer's state keeps the sums of the losses
LOSSES = "losses"
# errors that the Trainer raises for bad values
MISFITS = (ArithmeticError, AttributeError, ImportError, LookupError, RuntimeError, TypeError)


class LossCallback(TrainerCallback):
    """Give a Trainer that resumes the sums of the losses before, which it would begin anew."""

    def __init__(self, trainer: "ResumableTrainer"):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        """Take the sums out of the state."""
        if state.global_step:
            # a checkpoint of another Trainer lacks the sums
            unknown = {"logged": nan, "not_logged": 0.0, "logged_step": state.global_step}
            losses = state.stateful_callbacks.get(LOSSES, unknown)
            self.trainer._total_loss_scalar = losses["logged"]
            self.trainer._tr_loss += losses["not_logged"]
            self.trainer._globalstep_last_logged = losses["logged_step"]


class EpochCallback(TrainerCallback):
    """Call a function of the training data with the epoch, which the Trainer does not do in every process."""

    def __init__(self, set_epoch: Callable[[int], Any]):
        self.set_epoch = set_epoch

    def on_epoch_begin(self, args, state, control, **kwargs):
        """Set the epoch, which counts whole and parts of epochs."""
        self.set_epoch(int(state.epoch or 0))


class ResumableTrainer(Trainer):
    """A Trainer whose resumed runs end with the weights and report the losses of runs that never stopped.

    The model that it saves in the end needs no installation; its checkpoints, which only a training reads, have no
    code. A command publishes its model itself, when there are scores and a card to publish.

    Attributes:
        leaves_model: whether the run leaves a model in its folder.
        about: what the card says of this run beside what its command knows; `tests`, beside the data of its flags.
        use_cache: of the model's configuration, which the Trainer sets to its own.

    Raises, besides what the Trainer raises:
        OSError: there is no room for a checkpoint or the model.
        ValueError: a loss or a weight is not finite; no such weights are saved.
    """

    def __init__(self, model: Any, *args, **kwargs):
        self.about: dict[str, Any] = {}
        self.use_cache = getattr(model.config, "use_cache", False)
        super().__init__(model, *args, **kwargs)
        if self.args.fsdp and not self.is_fsdp_enabled:
            raise ValueError("Accelerate shards models on accelerators only; leave --fsdp out on CPUs")
        self.leaves_model = self.args.do_train
        self.add_callback(LossCallback(self))
        # `publish` uploads the model
        self.remove_callback(SelfContainedCallback)

    def evaluations(self) -> Iterator[tuple[str, Any]]:
        """Give the data on which a run is evaluated at its end, each after the prefix of its metrics."""
        if self.args.do_eval:
            yield "eval", self.eval_dataset

    def train(self, resume_from_checkpoint: str | None = None, **kwargs) -> TrainOutput:  # type: ignore[override]
        """Train, or go on from a checkpoint."""
        if resume_from_checkpoint:
            # counts are the checkpoint's where flags are shares of all steps, since the Trainer warns of differences
            state = TrainerState.load_from_json(str(Path(resume_from_checkpoint) / TRAINER_STATE_NAME))
            for name in ("logging_steps", "eval_steps", "save_steps"):
                if 0 < (getattr(self.args, name) or 0) < 1:
                    setattr(self.args, name, getattr(state, name))
        return super().train(resume_from_checkpoint, **kwargs)

    def _get_eval_sampler(self, eval_dataset: Any) -> SequentialSampler | None:
        # predictions are read in the order of the data, which grouping by length would change
        return SequentialSampler(eval_dataset) if has_length(eval_dataset) else None

    def create_optimizer(self, *args, **kwargs) -> torch.optim.Optimizer:
        """Make the optimizer that the flags name; it has to read all of `--optim_args`."""
        with _reading_flags("optim"):
            self._check_optimizer_settings()
            return super().create_optimizer(*args, **kwargs)

    def _check_optimizer_settings(self) -> None:
        given = [*filter(None, (self.args.optim_args or "").replace(" ", "").split(","))]
        for setting in given:
            without = copy.copy(self.args)
            without.optim_args = ",".join(other for other in given if other != setting)
            model: Any = self.model
            made = [self.get_optimizer_cls_and_kwargs(args, model) for args in (self.args, without)]
            # an optimizer of the command's own has settings of its own
            if self.optimizer_cls_and_kwargs or made[0] == made[1]:
                raise ValueError(f"the optimizer does not read {setting} of --optim_args; leave it out")

    def create_scheduler(self, num_training_steps: int, *args, **kwargs) -> Any:
        """Make the schedule of learning rates that the flags name; where it begins, turns and ends they are finite."""
        with _reading_flags("lr_scheduler_type and --lr_scheduler_kwargs"):
            ours: Any = self.args
            given, ours.lr_scheduler_kwargs = ours.lr_scheduler_kwargs, schedule_settings(ours, num_training_steps)
            schedule: Any = super().create_scheduler(num_training_steps, *args, **kwargs)
            ours.lr_scheduler_kwargs = given
            # transformers' own arguments have no drops, and a schedule by what is measured has no shares
            drops, shares = getattr(ours, "learning_rate_drops", []), getattr(schedule, "lr_lambdas", [])
            if drops := [drop if drop >= 1 else drop * num_training_steps for drop in drops]:
                if not shares:
                    raise ValueError("it cannot drop at given updates; leave --learning_rate_drops out")
                schedule.lr_lambdas = shares = [
                    lambda step, share=share: share(step) * 0.1 ** sum(step >= drop for drop in drops)
                    for share in shares
                ]
            steps = (0, self.args.get_warmup_steps(num_training_steps), num_training_steps // 2, num_training_steps)
            for share, step in product(shares, steps):
                if not isfinite(share(step)):
                    raise ArithmeticError(f"{share(step)} at step {step}")
            return schedule

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, and report the mean loss of all steps; losses have to be finite."""
        if "train_loss" in logs:
            # the Trainer divides by other steps than it summed up
            logs["train_loss"] = self._total_loss_scalar / max(self.state.global_step, 1)
            if isnan(logs["train_loss"]):
                del logs["train_loss"]
        for name, value in logs.items():
            if name.endswith("loss") and not isfinite(value):
                self._refuse(f"{name} is {value}")
        super().log(logs, start_time)

    def training_step(self, *args, **kwargs) -> torch.Tensor:
        """Compute the gradients of a batch, whose loss has to be finite."""
        loss = super().training_step(*args, **kwargs)
        if not loss.isfinite():
            self._refuse(f"the loss is {loss.item()}")
        return loss

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, whose weights have to be finite."""
        model: Any = self.model
        for name, parameter in model.named_parameters():
            if not parameter.isfinite().all():
                self._refuse(f"{name} is not finite")
        # the model is a part of a checkpoint
        if _internal_call:
            super().save_model(output_dir, _internal_call)
            if self.is_fsdp_enabled and self.args.should_save:
                # shards of weights come without what else is needed to resume
                for part in filter(None, (model.config, self.processing_class)):
                    part.save_pretrained(output_dir)
            return
        folder = output_dir or str(self.args.output_dir)
        while_training, model.config.use_cache = model.config.use_cache, self.use_cache
        with writing(folder):
            if self.is_fsdp_enabled:
                # whatever checkpoints hold, the run leaves whole weights
                self._save(folder, state_dict=self.accelerator.get_state_dict(model))
            else:
                super().save_model(folder)
            if self.args.should_save and isinstance(model, SublayersPreTrainedModel):
                write_code(model.config, folder)
                if isinstance(self.processing_class, PreTrainedTokenizerBase):
                    save_tokenizers([self.processing_class], folder, model.config)
        model.config.use_cache = while_training

    def push_to_hub(self, *args, **kwargs) -> Any:
        """Do nothing for a model of this package: `publish` uploads it."""
        return None if isinstance(self.model, SublayersPreTrainedModel) else super().push_to_hub(*args, **kwargs)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not isinstance(self.model, SublayersPreTrainedModel):
            super()._push_from_checkpoint(checkpoint_folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.is_fsdp_enabled:
            kind = self.accelerator.state.fsdp_plugin.state_dict_type
            name = FSDP_MODEL_NAME + ("_0" if kind == StateDictType.SHARDED_STATE_DICT else ".bin")
            if not Path(resume_from_checkpoint, name).exists():
                raise ValueError(
                    f"{resume_from_checkpoint} has no {name}; continue with the --fsdp and --fsdp_config that the run "
                    "was started with"
                )
        try:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        except (CheckpointException, RuntimeError) as error:
            raise ValueError(
                f"the weights in {resume_from_checkpoint} are not of this model; continue with the flags that the run "
                "was started with"
            ) from error

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        # the Trainer's state, which is written next, says that the checkpoint is whole
        self.accelerator.wait_for_everyone()

    def _load_rng_state(self, checkpoint: str | None) -> None:
        # the states of other processes have no meaning
        if checkpoint and has_states_of(checkpoint, self.args.world_size):
            super()._load_rng_state(checkpoint)

    def _determine_best_metric(self, *args, **kwargs) -> bool:
        with _reading_flags("metric_for_best_model"):
            return super()._determine_best_metric(*args, **kwargs)

    def _run_epoch(self, *args, **kwargs) -> None:
        # the Trainer stops after a step only, so a training that is complete would get one more
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*args, **kwargs)
        else:
            self.control.should_training_stop = True

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        kept: Any = self.state.stateful_callbacks
        kept[LOSSES] = {
            "logged": self._total_loss_scalar,
            "not_logged": self.accelerator.gather(self._tr_loss).mean().item(),
            "logged_step": self._globalstep_last_logged,
        }
        folder = Path(str(self.args.output_dir), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        if self.args.should_save and folder.exists():
            # the folder is from another run that went further; a mixture of both would look complete
            shutil.rmtree(folder)
        self.accelerator.wait_for_everyone()
        with writing(folder):
            super()._save_checkpoint(model, trial)

    def _refuse(self, fault: str) -> NoReturn:
        raise ValueError(
            f"{fault} after {self.state.global_step} steps, so the model is of no use; start again with other "
            "settings, such as a lower --learning_rate"
        )


@contextmanager
def _reading_flags(names: str) -> Iterator[None]:
    try:
        yield
    except MISFITS as error:
        said = " ".join(str(error).split())
        raise ValueError(f"--{names} cannot be followed ({type(error).__name__}: {said}); give other values") from error


@contextmanager
def writing(folder: str | Path) -> Iterator[None]:
    """Say in one sentence that what a run needs to keep cannot be written.

    Raises:
        OSError: it cannot.
    """
    try:
        yield
    except Exception as error:
        # torch, too, has an error of its own for a full disk, which does not say so
        if not (isinstance(error, (OSError, RuntimeError)) or is_of_a_file(error)):
            raise
        raise OSError(
            f"{folder} cannot be written, perhaps for lack of room ({error}); make room and continue with "
            "--resume_from_checkpoint"
        ) from error
