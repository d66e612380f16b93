"""What a model answers to some texts with any of its sublayers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from tqdm.auto import tqdm

from sublayers.modeling.mixer import Batch
from sublayers.modeling.modeling_sublayers import SublayersPreTrainedModel
from sublayers.modeling.stack import SublayerStack
from sublayers.training.distill.subsets import Subset

# asks a model about the texts of a batch, and says how far its answers are from what they should be
Measure = Callable[[Any, int], float]


class Calibration:
    """Losses of a model with any of its sublayers, each beginning that several have in common run once.

    Args:
        model: whose stack runs in its order, without a cache.
        measure: the loss of a model on the batch with a number.
        sizes: how much each batch counts.
    """

    def __init__(self, model: SublayersPreTrainedModel, measure: Measure, sizes: Sequence[int]):
        self.model, self.measure, self.sizes = model, measure, sizes
        body: Any = model.base_model
        self.stack: SublayerStack = body.layers

    @torch.inference_mode()
    def losses(self, subsets: Sequence[Subset]) -> dict[Subset, float]:
        """Measure the mean loss over all batches for each subset of places of the order."""
        found = dict.fromkeys(subsets, 0.0)
        steps = tqdm(total=len(self.sizes) * len(found), desc="Measuring subsets", unit="subset", leave=False)
        for number, size in enumerate(self.sizes):
            # sorted, those with a common beginning follow each other
            runs = [self._run(sorted(found), states, batch) for states, batch in self._enter(number)]
            for subset, *left in zip(sorted(found), *runs, strict=True):
                following = iter(left)

                def leave(hidden_states: torch.Tensor, batch: Batch, following: Any = following, **kwargs):
                    return whole(batch, next(following))

                with diverted(self.stack, leave):
                    found[subset] += self.measure(self.model, number) * size / sum(self.sizes)
                steps.update()
        steps.close()
        return found

    def _enter(self, number: int) -> list[tuple[torch.Tensor, Batch]]:
        """Take what the stack gets of a batch, which may run in parts."""
        given: list[tuple[torch.Tensor, Batch]] = []

        def record(hidden_states: torch.Tensor, batch: Batch, **kwargs):
            given.append((hidden_states, batch))
            return whole(batch, hidden_states)

        with diverted(self.stack, record):
            self.measure(self.model, number)
        return given

    def _run(self, subsets: Sequence[Subset], states: torch.Tensor, batch: Batch) -> Iterator[torch.Tensor]:
        """Run subsets one after the other, each from where it differs from the one before."""
        inputs, packing = self.stack.prepare(batch), batch.plan.packing
        path: list[tuple[int, torch.Tensor]] = [(-1, batch.plan.enter(states))]
        for subset in subsets:
            shared = 0
            while shared < min(len(subset), len(path) - 1) and path[shared + 1][0] == subset[shared]:
                shared += 1
            del path[shared + 1 :]
            for place in subset[shared:]:
                path.append((place, self.stack.run_one(place, path[-1][1], inputs, packing)))
            yield batch.plan.leave(path[-1][1])


def whole(batch: Batch, states: torch.Tensor) -> torch.Tensor:
    """Let the head choose what it reads among the states of all tokens."""
    batch.plan.leaving = None
    return states


@contextmanager
def diverted(stack: SublayerStack, forward: Callable[..., torch.Tensor]) -> Iterator[None]:
    """Let a stack compute something else for a while."""
    stack.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        del stack.forward
