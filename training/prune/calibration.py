"""What a model answers to some texts with any of its sublayers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import cycle, groupby
from typing import Any

import torch
from tqdm.auto import tqdm

from sublayers.modeling.mixers.mixer import Batch
from sublayers.modeling.modeling_sublayers import SublayersPreTrainedModel
from sublayers.modeling.stack import Step, SublayerStack
from sublayers.training.distill.subsets import Subset, split, stacks_of

# runs a model on the batch of a number, and measures how far its answers are from what they should be
Measure = Callable[[Any, int], float]


class Calibration:
    """Losses of a model with any of its sublayers, each beginning that several have in common run once.

    Args:
        model: whose stacks run in their orders, without a cache.
        measure: the loss of a model on the batch with a number.
        sizes: how much each batch counts.
    """

    def __init__(self, model: SublayersPreTrainedModel, measure: Measure, sizes: Sequence[int]):
        self.model, self.measure, self.sizes, self.stacks = model, measure, sizes, stacks_of(model)

    @torch.inference_mode()
    def losses(self, subsets: Sequence[Subset], bar: Any = None) -> dict[Subset, float]:
        """Measure the mean loss over all batches for each subset, shown on a bar that has room for them or its own."""
        found = dict.fromkeys(sorted(subsets), 0.0)
        # sorted, those with a common beginning follow each other
        parts = [split(subset, *self.model.config.orders.values()) for subset in found]
        with nullcontext(bar) if bar is not None else measuring(len(found)) as steps:
            for number, size in enumerate(self.sizes):
                for subset, loss in zip(found, self._measure(parts, number), strict=True):
                    found[subset] += loss * size / sum(self.sizes)
                    steps.update(1 / len(self.sizes))
        return found

    def _measure(self, subsets: Sequence[Sequence[Subset]], number: int, depth: int = 0) -> Iterator[float]:
        """Measure subsets, each the places of each stack, that agree in the first stacks, which are diverted."""
        if depth == len(self.stacks):
            yield self.measure(self.model, number)
            return
        stack = self.stacks[depth]
        groups = {places: [*some] for places, some in groupby(subsets, key=lambda each: each[depth])}
        runs = [self._run(stack, [*groups], states, batch) for states, batch in self._enter(stack, number)]
        for some, *left in zip(groups.values(), *runs, strict=True):
            following = cycle(left)

            def leave(hidden_states: torch.Tensor, batch: Batch, following: Any = following, **kwargs):
                return next(following)

            with diverted(stack, leave):
                yield from self._measure(some, number, depth + 1)

    def _enter(self, stack: SublayerStack, number: int) -> list[tuple[torch.Tensor, Batch]]:
        """Take what a stack gets of a batch, which may run in parts."""
        given: list[tuple[torch.Tensor, Batch]] = []

        def record(hidden_states: torch.Tensor, batch: Batch, **kwargs):
            given.append((hidden_states, batch))
            return batch.plan.choose(batch.plan.enter(hidden_states))

        with diverted(stack, record):
            self.measure(self.model, number)
        return given

    def _run(
        self, stack: SublayerStack, subsets: Sequence[Subset], states: torch.Tensor, batch: Batch
    ) -> Iterator[torch.Tensor]:
        """Run subsets of a stack one after the other, each from where it differs from the one before."""
        inputs, packing = stack.prepare(batch), batch.plan.packing
        path: list[tuple[int, torch.Tensor]] = [(-1, batch.plan.enter(states))]
        for subset in subsets:
            shared = 0
            while shared < min(len(subset), len(path) - 1) and path[shared + 1][0] == subset[shared]:
                shared += 1
            del path[shared + 1 :]
            for place in subset[shared:]:
                path.append((place, stack.run_one(Step(place), path[-1][1], inputs, packing)))
            yield batch.plan.choose(path[-1][1])


def measuring(number: int = 0) -> Any:
    """Make a bar for a number of subsets; each batch is a part of the work of a subset."""
    form = "{l_bar}{bar}| {n:.0f}/{total} [{elapsed}<{remaining}]"
    return tqdm(total=number, desc="Measuring subsets", bar_format=form, leave=False)


@contextmanager
def diverted(stack: SublayerStack, forward: Callable[..., torch.Tensor]) -> Iterator[None]:
    """Let a stack compute something else for a while."""
    stack.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        del stack.forward
