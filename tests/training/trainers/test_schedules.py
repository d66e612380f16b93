"""Schedules of learning rates follow the steps of a training, or are refused."""

import shlex

import pytest
import torch
import yaml
from transformers import PreTrainedConfig

from sublayers.training.commands import distill, glue, pretrain, seq2seq, squad
from sublayers.training.flags import RECIPES, parse_flags, recipes
from sublayers.training.lab.runs import own_flags
from sublayers.training.lab.search import run_supernet
from sublayers.training.lab.search.settings import expand_recipe
from sublayers.training.trainers.arguments import TrainerArguments, schedule_settings
from sublayers.training.trainers.resumable_trainer import ResumableTrainer

PARSERS = {"pretrain": pretrain.parse, "seq2seq": seq2seq.parse, "distill": distill.parse}
PARSERS |= {"glue": glue.parse, "squad": squad.parse}
MORE = {"distill": "--sublayer_order s6f6", "seq2seq": "--train_file a.jsonl --source a --target b"}
MORE |= {"glue": "--task_name cola --model_name_or_path bert", "squad": "--model_name_or_path bert"}
# the steps of a short training, of one as long as the recipe says, and of one in between
STEPS = (30, None, 2000)


def commands():
    """The flags of every recipe, by its name; those of a study have the flags of several commands."""
    for command in PARSERS:
        for name in recipes(command):
            yield command, name, [name, *MORE.get(command, "").split()]
    for name, path in recipes("study").items():
        settings = yaml.safe_load(path.read_text("utf-8"))
        for flags, used_by, more in (
            ("pretraining_flags", "pretrain", "--objective mlm"),
            ("distill_flags", "distill", MORE["distill"]),
        ):
            if flags in settings:
                yield used_by, name, [*shlex.split(settings[flags]), *more.split()]
    for name in recipes("search"):
        kinds = [run_supernet.SupernetArguments, run_supernet.ArchitectureArguments]
        yield "pretrain", name, own_flags(expand_recipe(["pretrain", name]), kinds, "usage")[1]


def read(*flags):
    return parse_flags(["--output_dir=unused", "--use_cpu", "--do_train", *flags], [TrainerArguments], "usage")[0]


def shares(args, steps):
    """The shares of the learning rate at many steps, from the first on."""
    trainer = ResumableTrainer.__new__(ResumableTrainer)
    trainer.args, trainer.lr_scheduler = args, None
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=args.learning_rate)
    [share] = trainer.create_scheduler(steps, optimizer).lr_lambdas
    every = max(1, steps // 1000)
    return {step: share(step) for step in [*range(0, min(steps, 50)), *range(0, steps, every)]}


def test_every_recipe_is_here():
    assert {name for _, name, _ in commands()} == {path.stem for path in RECIPES.rglob("*.yaml")}


@pytest.mark.parametrize(("command", "name", "flags"), [pytest.param(*each, id=each[1]) for each in commands()])
@pytest.mark.parametrize("steps", STEPS)
def test_a_recipe_learns_in_any_number_of_steps_or_says_that_its_schedule_does_not_fit(command, name, flags, steps):
    words = ["teacher"] if command == "distill" else []
    parse = PARSERS[command]
    [run, *_, planned] = parse([*words, *flags])
    counted = int(planned.warmup_steps) if planned.warmup_steps > 1 else 0
    decay = (planned.lr_scheduler_kwargs or {}).get("num_decay_steps", 0)
    if steps is not None and counted + decay * steps > steps:
        sentence = rf" warmup_steps={counted}( and .*)? does not fit into a training of {steps} steps; train longer, or"
        with pytest.raises(ValueError, match=sentence):
            parse([*words, *flags, "--max_steps", str(steps)])
        return
    if steps is not None and len(getattr(run, "epochs", ())) > 1:
        with pytest.raises(ValueError, match=f"--max_steps {steps} leaves --epochs without effect"):
            parse([*words, *flags, "--max_steps", str(steps)])
        return
    [*_, args] = parse([*words, *flags, *([] if steps is None else ["--max_steps", str(steps)])])
    found = shares(args, args.max_steps if args.max_steps > 0 else 2000)
    assert max(found.values()) > 0.98
    # no step but the first of the warm-up learns nothing
    assert [step for step, share in found.items() if share <= 0] in ([], [0])


def test_the_recipe_of_short_texts_has_its_warm_up_and_decay_at_its_own_steps_and_as_shares_elsewhere():
    for steps, warmup, decay in ((600, 20, 300), (30, 1, 15), (2, 1, 1), (1, 1, 0)):
        [*_, args] = distill.parse(["teacher", "short_texts", "--sublayer_order=sf", f"--max_steps={steps}"])
        assert args.get_warmup_steps(steps) == warmup
        assert schedule_settings(args, steps) == {"num_decay_steps": decay}
        # what a checkpoint keeps of the flags is what was given
        shares(args, steps)
        assert args.lr_scheduler_kwargs == {"num_decay_steps": 0.5}


def test_a_schedule_that_fits_to_the_step_is_taken():
    flags = ("--lr_scheduler_type=warmup_stable_decay", "--warmup_steps=10")
    found = shares(read("--max_steps=30", *flags, '--lr_scheduler_kwargs={"num_decay_steps": 20}'), 30)
    assert found[10] == 1
    assert 0 < found[29] < found[20] < 1


def test_the_learning_rate_drops_to_a_tenth():
    flags = ("--lr_scheduler_type=constant_with_warmup", "--warmup_steps=4", "--learning_rate_drops", "20", "0.8")
    found = shares(read(*flags), 40)
    assert [found[step] for step in (2, 4, 19)] == [0.5, 1, 1]
    assert [found[step] for step in (20, 31, 32, 39)] == pytest.approx([0.1, 0.1, 0.01, 0.01])
    with pytest.raises(ValueError, match=r"--learning_rate_drops 0\.0 is no update"):
        read("--learning_rate_drops", "0")
    with pytest.raises(ValueError, match="cannot drop at given updates; leave --learning_rate_drops out"):
        shares(read("--lr_scheduler_type=reduce_lr_on_plateau", "--learning_rate_drops=3", "--eval_strategy=epoch"), 9)


@pytest.mark.parametrize("kind", ["constant", "constant_with_warmup"])
def test_settings_that_a_schedule_does_not_read_are_refused(kind):
    flags = (f"--lr_scheduler_type={kind}", '--lr_scheduler_kwargs={"min_lr": 0.1}')
    with pytest.raises(ValueError, match=rf"the schedule {kind} has no settings; leave .*'min_lr'.* out"):
        read("--max_steps=30", *flags)
    with pytest.raises(ValueError, match="has no settings"):
        shares(read(*flags), 30)


@pytest.mark.parametrize("kind", ["constant", "reduce_lr_on_plateau", "greedy"])
def test_the_warm_up_of_a_schedule_without_one_is_not_counted(kind):
    read("--max_steps=30", f"--lr_scheduler_type={kind}", "--warmup_steps=31", "--eval_strategy=epoch")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.config, self.linear = PreTrainedConfig(), torch.nn.Linear(2, 1)

    def forward(self, x, labels):
        return {"loss": (self.linear(x) - labels).square().mean()}


@pytest.mark.parametrize(("epochs", "warmup"), [(1, 2), (1, 3), (3, 6), (3, 7)])
def test_the_steps_of_epochs_count_too(epochs, warmup, tmp_path):
    args = read(f"--num_train_epochs={epochs}", f"--warmup_steps={warmup}")
    args.output_dir, args.report_to = str(tmp_path), []
    args.disable_tqdm = True
    trainer = ResumableTrainer(Model(), args, train_dataset=[{"x": torch.ones(2), "labels": torch.ones(1)}] * 16)
    # batches of 8
    if warmup > 2 * epochs:
        sentence = f"warmup_steps={warmup} does not fit into a training of {2 * epochs} steps"
        with pytest.raises(ValueError, match=sentence):
            trainer.train()
    else:
        assert trainer.train().global_step == 2 * epochs
