"""The super-network: every layer a mixture of all sublayers and of none, whose weights are learned with the model's.

Mandava, Migacz and Florea (2021), "Pay Attention when Required", section 2.2.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from torch.nn.functional import gumbel_softmax
from torch.utils.data import SequentialSampler, Subset
from transformers import PreTrainedModel, TrainerCallback

from sublayers.configuration.order import compact
from sublayers.modeling.mixers.mixer import Batch
from sublayers.modeling.stack import Step, SublayerStack
from sublayers.training.data.segments import Segments, training_segments
from sublayers.training.lab.search.settings import Settings
from sublayers.training.trainers.pair_trainer import PairTrainer
from sublayers.training.trainers.resumable_trainer import ResumableTrainer
from sublayers.training.trainers.stream_trainer import Memory, StreamTrainer

# the number of points of the curves
RECORDED = 100


class Mixture(SublayerStack):
    """A stack of an order (letters)n that runs as n layers, each the weighted sum of its sublayers and of its input.

    It has the stack's sublayers under their names. With weights of 0 and 1 it is the stack of the chosen sublayers. In
    models with memory, the attention of every layer remembers the layer's input, whatever the weights are.

    Args:
        stack: of the order.
        letters: the candidates of a layer.
    """

    def __init__(self, stack: SublayerStack, letters: str):
        nn.ModuleList.__init__(self, stack)
        self.letters, self.alphabet, self.candidates = stack.letters, stack.alphabet, letters
        # (layers, letters + 1), the last of the identity
        self.weights: torch.Tensor = torch.full((len(stack) // len(letters), len(letters) + 1), 1 / (len(letters) + 1))

    def forward(
        self,
        hidden_states: torch.Tensor,
        batch: Batch,
        **kwargs,
    ) -> torch.Tensor:
        """Run every sublayer at all positions: (batch, length, hidden) -> (batch, length or kept, hidden)."""
        plan, inputs = batch.plan, self.prepare(batch, **kwargs)
        hidden_states = plan.enter(hidden_states)
        for number, weights in enumerate(self.weights):
            mixed = weights[-1] * hidden_states
            for i, weight in enumerate(weights[:-1]):
                step = Step(number * len(self.candidates) + i)
                states = self.run_one(step, hidden_states, inputs, plan.packing)
                mixed = torch.addcmul(mixed, states, weight)
            hidden_states = mixed
        return plan.choose(hidden_states)


def mix(model: PreTrainedModel, field: str, letters: str) -> Mixture:
    """Let the stack of a model that has an order (letters)n run as a mixture; `field` is the name of the order."""
    body: Any = model.base_model
    body = getattr(body, field.partition("_")[0]) if model.config.is_encoder_decoder else body
    body.layers = Mixture(body.layers, letters)
    return body.layers


class Architecture:
    """What is learned of an order: logits of the candidates in each layer, (layers, letters + 1)."""

    def __init__(self, layers: int, settings: Settings, device: torch.device):
        self.settings = settings
        self.logits = torch.zeros(layers, len(settings.letters) + 1, device=device, requires_grad=True)
        self.optimizer = torch.optim.Adam(
            [self.logits], settings.architecture_learning_rate, weight_decay=settings.architecture_weight_decay
        )
        # the weight in the loss of the mean cost above the budget
        self.price_weight = 0.0

    @property
    def probabilities(self) -> torch.Tensor:
        """Those of the candidates in each layer: (layers, letters + 1)."""
        return self.logits.softmax(-1)

    def draw(self, temperature: float) -> torch.Tensor:
        """Draw the weights of a mixture, with their gradient: (layers, letters + 1)."""
        return gumbel_softmax(self.logits, tau=temperature)

    def excess(self) -> torch.Tensor:
        """Find by which share of the budget the mean cost is above it; negative if below. A scalar."""
        settings: Any = self.settings
        return settings.price.expected(settings.letters, self.probabilities) / settings.budget - 1

    def step(self, loss: torch.Tensor) -> None:
        """Improve the logits by the loss of a mixture that was drawn, and by the price if there is a budget."""
        if self.settings.budget is not None:
            excess = self.excess()
            self.price_weight = max(0.0, self.price_weight + self.settings.price_rate * excess.item())
            loss = loss + self.price_weight * excess
        # gradients are computed for the logits alone, not for the model's weights
        (self.logits.grad,) = torch.autograd.grad(loss, [self.logits])
        self.optimizer.step()

    def order(self) -> str:
        """Read the order off: the most probable candidate of each layer, changed where it would exceed the budget.

        While it does, the change that costs the least probability for what it saves is made. Where all layers are left
        out, the most probable sublayer that the budget allows is the order.
        """
        settings, logs = self.settings, self.probabilities.detach().log().tolist()
        names = [*settings.letters, ""]
        budget = float("inf") if settings.budget is None else settings.budget

        def cost(chosen: list[int]) -> float:
            order = "".join(names[i] for i in chosen)
            return settings.price.cost(order) if settings.price and order else 0.0

        chosen = [row.index(max(row)) for row in logs]
        while (now := cost(chosen)) > budget:
            changes = [
                ((logs[layer][chosen[layer]] - logs[layer][i]) / saved, changed)
                for layer in range(len(chosen))
                for i in range(len(names))
                if (saved := now - cost(changed := [*chosen[:layer], i, *chosen[layer + 1 :]])) > 0
            ]
            chosen = min(changes)[1]
        if order := "".join(names[i] for i in chosen):
            return compact(order)
        single = [(row[i], names[i]) for row in logs for i in range(len(settings.letters)) if cost([i]) <= budget]
        return max(single)[1]


class TurnCallback(TrainerCallback):
    """Let a super-network's architecture take its turns after steps of the model, and end the search."""

    def __init__(self, trainer: "SupernetMixin"):
        self.trainer = trainer

    def on_step_end(self, args, state, control, **kwargs):
        """Train the architecture; end the search when its order does not change any more."""
        control.should_training_stop |= self.trainer.take_turn(state.global_step, state.max_steps)


class SupernetMixin:
    """What makes a Trainer train a super-network: a mixture in the place of the stack, and turns for its architecture.

    Args:
        settings: of the search.
        kwargs: arguments of the Trainer; its model has the order (letters)n, and its data are divided in two.
    """

    def __init__(self, *args: Any, settings: Settings, train_dataset: Any, **kwargs: Any):
        self.held_out, rest = self.divide(train_dataset, settings.held_out_share, kwargs["args"].seed)
        super().__init__(*args, train_dataset=rest, **kwargs)  # type: ignore[call-arg]
        trainer: Any = self
        self.settings = settings
        self.mixture = mix(trainer.model, settings.field, settings.letters)
        self.architecture = Architecture(len(self.mixture.weights), settings, trainer.args.device)
        self.temperature = settings.temperatures[0]
        self.turns = self._held_out_batches()
        self.curve: list[dict[str, Any]] = []
        self.last_change = 0
        self.last_choice: list[int] = []
        trainer.add_callback(TurnCallback(self))

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Compute the gradients of a batch in a mixture that is drawn for it."""
        with torch.no_grad():
            self.mixture.weights = self.architecture.draw(self.temperature)
        return super().training_step(*args, **kwargs)  # type: ignore[misc]

    def divide(self, data: Any, share: float, seed: int) -> tuple[Any, Any]:
        """Divide training data at random: a share for the architecture, and the rest for the weights.

        Raises:
            ValueError: one of them would have nothing.
        """
        shuffled = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
        first = round(share * len(data))
        if not 0 < first < len(data):
            fault = f"{len(data)} training examples cannot be divided between weights and architecture"
            raise ValueError(f"{fault}; give more text or another --held_out_share")
        # columns of a Dataset are read whole
        choose: Any = data.select if isinstance(data, Dataset) else partial(Subset, data)
        return choose(shuffled[:first].tolist()), choose(shuffled[first:].tolist())

    def take_turn(self, step: int, max_steps: int) -> bool:
        """Train the architecture if it is its turn after a step of the model; say whether the search is over."""
        settings = self.settings
        begin = round(settings.warmup_share * max_steps)
        if (tuned := step - begin) > 0:
            first, last = settings.temperatures
            self.temperature = first * (last / first) ** (tuned / (max_steps - begin))
            share = settings.architecture_update_share
            # turns are spread evenly over the steps
            if int(share * tuned) > int(share * (tuned - 1)):
                self.mixture.weights = self.architecture.draw(self.temperature)
                self.architecture.step(self.held_out_loss())
        choice = self.architecture.logits.argmax(-1).tolist()
        if choice != self.last_choice or step <= begin:
            self.last_change, self.last_choice = step, choice
        if step % max(1, max_steps // RECORDED) == 0 or step == max_steps:
            probabilities = [[round(p, 4) for p in row] for row in self.architecture.probabilities.tolist()]
            point = {"step": step, "temperature": self.temperature, "price_weight": self.architecture.price_weight}
            self.curve.append(point | {"probabilities": probabilities})
        return step - self.last_change >= max(1.0, settings.patience * (max_steps - begin))

    def held_out_loss(self) -> torch.Tensor:
        """Compute the loss of the next batch that the model never learns from, a scalar."""
        trainer: Any = self
        inputs = trainer._prepare_inputs(next(self.turns))
        with trainer.compute_loss_context_manager():
            return trainer.compute_loss(trainer.model, inputs)

    def _held_out_batches(self) -> Iterator[Any]:
        trainer: Any = self
        # the rows keep the order of the division
        size, order = trainer._train_batch_size, SequentialSampler
        loader = trainer._get_dataloader(self.held_out, "held-out data", size, order)
        while True:
            yield from loader


class SupernetTrainer(SupernetMixin, ResumableTrainer):
    """Trains the super-network of a single stack."""


class SupernetPairTrainer(SupernetMixin, PairTrainer):
    """Trains the super-network of an encoder or a decoder."""


class SupernetStreamTrainer(SupernetMixin, StreamTrainer):
    """Trains the super-network of a model with memory, whose architecture reads a stream with a memory of its own."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.held_out_memories: dict[str, Memory] = {}

    def divide(self, data: Segments, share: float, seed: int) -> tuple[Segments, Segments]:
        """Give the end of the text to the architecture; each part is divided as `training_segments` does it."""
        cut = round((1 - share) * len(data.tokens))
        rest, held_out = (training_segments(part, data.length, data.rows) for part in np.split(data.tokens, [cut]))
        return held_out, rest

    def held_out_loss(self) -> torch.Tensor:
        """Compute the loss of the held-out segment after the last one, with the memory of those."""
        own, self.memories = self.memories, self.held_out_memories
        loss = super().held_out_loss()
        self.memories = own
        return loss
