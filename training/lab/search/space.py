"""The space of orders that the flags of a training span, and how they are trained and searched."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import optuna

from sublayers.configuration.configuration_recurrent_lm import RecurrentLMConfig
from sublayers.configuration.configuration_sublayers import SublayersConfig
from sublayers.configuration.order import Order
from sublayers.training.flags import expand_settings_file
from sublayers.training.lab.runs import data_names
from sublayers.training.lab.search.draw import Candidate
from sublayers.training.lab.search.price import Price, price
from sublayers.training.lab.search.report import BEGUN, SEARCH
from sublayers.training.lab.search.runs import COMMANDS, Training
from sublayers.training.lab.search.settings import SearchArguments, Settings
from sublayers.training.lab.search.supernet import SupernetPairTrainer, SupernetStreamTrainer, SupernetTrainer
from sublayers.training.results import provenance
from sublayers.training.trials import open_study

# what trains a super-network without memory
SUPERNET_TRAINERS: dict[str, Any] = {"pretrain": SupernetTrainer, "seq2seq": SupernetPairTrainer}


class Space(NamedTuple):
    """The orders that are searched: how they are trained, a configuration with the order that the flags give, and data.

    The number and the kinds of sublayers of this order limit what is searched.
    """

    training: Training
    config: SublayersConfig
    data: list[str]

    @property
    def order(self) -> str:
        """The order that the flags give."""
        return str(self.config.orders[self.training.field])

    @property
    def letters(self) -> str:
        """The kinds of its sublayers."""
        return Order(self.order).alphabet

    def check(self, candidates: list[Candidate]) -> None:
        """Check that the family can run orders. Raises ValueError where it lacks one of their sublayers."""
        for candidate in candidates:
            self.config.with_orders({self.training.field: candidate.order}).validate()

    def runs(self, order: str) -> bool:
        """Say whether the family can run an order."""
        try:
            self.check([Candidate(order, order)])
        except ValueError:
            return False
        return True

    def open_study(self, args: Any, argv: list[str], **settings: Any) -> optuna.Study:
        """Open the study of a new search, or of one that goes on, and note how its figures are made from now on.

        Args:
            args: with the folder of the search and its storage.
            argv: the words of the command line after `sublayers search`.
            settings: what no process of the search may change, besides the training.

        Raises:
            FileExistsError: the folder holds something else, or another search.
            OSError: the storage cannot be reached.
        """
        settings = {**self.training._asdict(), "letters": self.letters, **settings}
        study = open_study(SEARCH, args.output_dir, settings, args.storage)
        study.set_user_attr(BEGUN, provenance(["search", *argv], self.data))
        return study

    def price(self, study: optuna.Study, args: SearchArguments) -> Price:
        """Find what sublayers cost; times are measured once, and a search that goes on reads them again."""
        if "price" not in study.user_attrs:
            paid = price(self.config, self.letters, args.cost, args.length, args.read)
            study.set_user_attr("price", paid._asdict())
        return Price(**study.user_attrs["price"])

    def budget(self, paid: Price, share: float) -> float:
        """Turn a share of what the order costs that the flags give into a price. Raises ValueError if it is too low."""
        whole = paid.cost(self.order)
        if share * whole < (least := min(paid.read.values())):
            raise ValueError(f"no order meets a budget of {share}; the cheapest one needs {least / whole:.2g}")
        return share * whole

    def search(self, settings: Settings, steps: int | None, folder: Path, seed: int) -> tuple[float, dict[str, Any]]:
        """Train a super-network for some steps or as long as an order: its mean loss, and what it found and how."""
        place = folder / f"seed-{seed}"
        # a process that died may have left files
        shutil.rmtree(place, ignore_errors=True)
        order = f"({settings.letters}){len(Order(self.order))}"
        own = [f"--{settings.field}={order}", f"--seed={seed}", f"--output_dir={place}"]
        own += [f"--max_steps={steps}"] if steps else []
        flags = [*self.training.flags, *own, "--do_train", "--eval_strategy=no", "--save_strategy=no"]
        command, trainer_class = COMMANDS[self.training.command], SUPERNET_TRAINERS[self.training.command]
        trainer_class = SupernetStreamTrainer if isinstance(self.config, RecurrentLMConfig) else trainer_class
        trainer = command.make_trainer(*command.parse(flags), trainer_class=partial(trainer_class, settings=settings))
        metrics = trainer.train().metrics
        found = {"order": trainer.architecture.order(), "metrics": metrics, "curve": trainer.curve}
        return metrics["train_loss"], found


def read_space(command: str, flags: list[str], stack: str) -> Space:
    """Find what the flags of a command that trains an order, and the stack of an encoder-decoder, let us search.

    Raises:
        ValueError: flags that the command refuses, or a family that has no single order.
    """
    flags = expand_settings_file(flags, command)
    run, model_flags, data, args = COMMANDS[command].parse(flags)
    if run.model_name_or_path:
        raise ValueError("orders are trained from scratch; leave --model_name_or_path out")
    if not (args.do_train and args.do_eval):
        raise ValueError("orders are trained, then ranked by their loss; give both --do_train and --do_eval or neither")
    config: Any
    if command == "seq2seq":
        config, field = COMMANDS[command].make_config(run, model_flags, data), f"{stack}_sublayer_order"
    else:
        config, field = COMMANDS[command].make_config(run, model_flags), "sublayer_order"
    if field not in config.orders:
        raise ValueError(f"{config.model_type} chooses among orders by itself; search in another --model_type")
    if config.orders[field].shares_sublayers:
        raise ValueError(
            f"{str(config.orders[field])!r} shares sublayers between places, and orders are searched whose sublayers "
            "are their own; give one without names"
        )
    if isinstance(config.intermediate_size, list):
        raise ValueError(
            f"intermediate_size={config.intermediate_size} is for the f of one order, and many are searched; give one "
            "number"
        )
    return Space(Training(command, flags, field), config, data_names(data))


def check_mixture(space: Space) -> None:
    """Check that a super-network can be made of a family. Raises ValueError where it cannot."""
    if space.config.pre_attention_act not in (None, space.config.hidden_act):
        raise ValueError(
            f"pre_attention_act={space.config.pre_attention_act!r} is of those right before self-attention, which a "
            f"mixture does not know; give --pre_attention_act {space.config.hidden_act}, as hidden_act is"
        )
    if Order(space.order).has_fixed_states:
        raise ValueError(
            f"{space.order!r} has m, which attends to what stands in front of all m, and in a mixture all kinds stand "
            "everywhere; search random orders of it"
        )
    if len(Order(space.order)) < 2:
        raise ValueError(f"there is nothing to search in the order {space.order!r}; give a longer one")
