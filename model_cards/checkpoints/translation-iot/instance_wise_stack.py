"""A stack whose rows run in different orders of the same sublayers (IOT)."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import torch
from transformers.utils.import_utils import is_tracing

from .order import Order
from .mixers_mixer import Batch
from .plan import Plan
from .stack import Layout, Step, SublayerStack


def share_runs(orders: dict[int, list[int]], joints: set[int]) -> list[tuple[int, tuple[int, ...]]]:
    """Run several orders of the same sublayers in few runs, each a sublayer with the orders that have come to it.

    `joints` come in the same sequence in all orders, and run for all at once. Between them, a sublayer waits for the
    orders that come to it later.
    """
    ahead, runs = {number: [*order] for number, order in orders.items()}, []
    while any(ahead.values()):
        near = {number: [*takewhile(lambda place: place not in joints, rest)] for number, rest in ahead.items()}
        if not any(near.values()):
            near = {number: rest[:1] for number, rest in ahead.items()}
        following = {rest[0] for rest in near.values() if rest}
        place = min(following, key=lambda each: (sum(each in rest[1:] for rest in near.values()), each))
        numbers = tuple(number for number, rest in near.items() if rest[:1] == [place])
        runs.append((place, numbers))
        for number in numbers:
            ahead[number].pop(0)
    return runs


class InstanceWiseStack(SublayerStack):
    """Sublayers that each row runs in one of several orders: (batch, length, hidden) -> (batch, length, hidden).

    Rows whose next sublayer is the same are batched together.
    """

    def __init__(self, config, orders: Sequence[Order], is_causal: bool):
        super().__init__(config, orders[0], is_causal)
        self.paths = [self.locate(order.letters, self.letters) for order in orders]
        # an update of a cache takes all rows of the batch
        self.joints = {*orders[0].slots("self")}

    def forward(  # type: ignore[override]
        self,
        hidden_states: torch.Tensor,
        batch: Batch,
        order: int | torch.Tensor = 0,
        dropped: Container[int] = (),
        **kwargs,
    ) -> torch.Tensor:
        """Run every sublayer at all positions, in the order with this number.

        The numbers of several orders, (batch,) or (sources,), are one for each row, or for the rows that share a
        source. Sublayers at the places that are `dropped` are left out. `kwargs` are for attention kernels.
        """
        numbers = self.numbers(order)
        if len(numbers) > 1 and not batch.plan.is_whole:
            batch = replace(batch, plan=batch.plan.packed())
        inputs, steps = self.prepare(batch, **kwargs), self.choose_steps(batch.plan, order, numbers, dropped)
        return self.run(hidden_states, batch.plan, inputs, Layout({}), steps)

    def choose_steps(
        self, plan: Plan, order: int | torch.Tensor, numbers: Sequence[int], dropped: Container[int] = ()
    ) -> list[Step]:
        """Say which sublayers run, one after the other, and for which tokens."""
        if len(numbers) == 1:
            return [Step(place) for i, place in enumerate(self.paths[numbers[0]]) if i not in dropped]
        rows: Any = order
        rows = rows.repeat_interleave(plan.batch // rows.shape[0])[:, None].expand(-1, plan.length)
        rows = plan.enter(rows)
        runs, chosen = self.runs(numbers, dropped), {}
        # self-attention, which needs all positions, runs for all of the orders
        for some in {some for _, some in runs if len(some) < len(numbers)}:
            tokens = (rows[..., None] == rows.new_tensor(some)).any(-1)
            chosen[some] = tokens if plan.packing is None else tokens[0].nonzero()[:, 0]
        return [Step(place, tokens=chosen.get(some)) for place, some in runs]

    def numbers(self, order: int | torch.Tensor) -> list[int]:
        """Find the orders that rows (batch,) have; a graph that is traced cannot depend on them, and gets all."""
        if isinstance(order, int):
            return [order]
        return [*range(len(self.paths))] if is_tracing(order) else order.unique().tolist()

    def runs(self, numbers: Iterable[int], dropped: Container[int] = ()) -> list[tuple[int, tuple[int, ...]]]:
        """Say which sublayers run, one after the other, and for which of the orders, see `share_runs`."""
        runs = share_runs({number: self.paths[number] for number in numbers}, self.joints)
        return [each for each in runs if each[0] not in dropped]
