"""Tiny inputs, random weights and gradients, for all tests."""

import copy
import itertools
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForMultipleChoice, PreTrainedModel, Trainer, TrainingArguments

from sublayers import expand
from sublayers.modeling.plan import select_positions

# random weights, and what the original implementations make of them
REFERENCE = Path(__file__).parent / "reference"

PAD, BOS, EOS, VOCAB = 1, 0, 2, 61


def every_backend(test):
    """Run a test with each kind of attention; flex attention takes seconds to compile and need not be."""
    test = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")(test)
    return pytest.mark.parametrize("backend", ["eager", "flex_attention"])(test)


def every_other_local(order: str) -> str:
    """The order with local attention in the place of its second, fourth, ... self-attention."""
    places = itertools.count()
    return "".join("w" if letter == "s" and next(places) % 2 else letter for letter in expand(order))


def randomize(model: PreTrainedModel) -> PreTrainedModel:
    """Give every parameter a random value, so that a term that is left out shows."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            parameter.normal_(std=0.3, generator=generator)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1)
    return model.eval()


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(3, VOCAB, (rows, length), generator=torch.Generator().manual_seed(rows * length))


def token_ids(head: type, rows: int, length: int) -> torch.Tensor:
    """Tokens in the shape that a head reads: one of them takes several texts in each row."""
    if head is AutoModelForMultipleChoice:
        return tokens(2 * rows, length).view(rows, 2, length)
    return tokens(rows, length)


def gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def backward(model: nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradients of a loss alone, which the model does not keep."""
    model.zero_grad()
    loss.backward()
    found = gradients(model)
    model.zero_grad()
    return found


def assert_same(actual: dict, expected: dict, **tolerance):
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, msg=lambda m, name=name: f"{name}: {m}", **tolerance)


class GradientCatcher(Trainer):
    """A Trainer that keeps the gradients of its first step instead of taking it."""

    def caught(self) -> dict[str, torch.Tensor]:
        found = {}

        def catch(optimizer, *_):
            found.update(gradients(self.model))

        self.create_optimizer().register_step_pre_hook(catch)
        self.train()
        return found


def train_gradients(model, rows: list[dict], folder, data_collator=None, **arguments) -> dict[str, torch.Tensor]:
    """Gradients of the Trainer's first optimizer step over all rows, in their order."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=1,
        max_grad_norm=0,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        train_sampling_strategy="sequential",
        **arguments,
    )
    return GradientCatcher(copy.deepcopy(model), arguments, data_collator, train_dataset=rows).caught()


def assert_accumulates(model, rows: list[dict], folder, expected: dict | None = None, atol=1e-5, rtol=1e-4):
    """The Trainer's gradients of one step are as expected, from all rows at once and from two at a time."""
    whole = train_gradients(model, rows, folder, per_device_train_batch_size=len(rows))
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": len(rows) // 2}
    for found in (whole, train_gradients(model, rows, folder, **options)):
        assert_same(found, whole if expected is None else expected, atol=atol, rtol=rtol)


def silence(body, places):
    """Let the sublayers at some places of a body add nothing."""

    def nothing(states, *sources, read_positions=None, **kwargs):
        return states if read_positions is None else select_positions(states, read_positions)

    for place in places:
        body.layers[place].forward = nothing
