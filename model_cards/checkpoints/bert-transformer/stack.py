"""A stack that runs sublayers in any order."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from .order import Order
from .dropout import dropout
from .mixers_attention import takes_single_queries
from .mixers_builders import BUILDERS
from .mixers_mixer import Batch, Inputs, Mixer
from .plan import Packing, Plan


class Layout(NamedTuple):
    """Where positions leave a stack.

    Attributes:
        leaving: which positions alone stay after which places of the order.
        tail: the place of the order where the tail begins, if every state is needed there; None elsewhere.
    """

    leaving: dict[int, torch.Tensor]
    tail: int | None = None


class Step(NamedTuple):
    """A sublayer's run.

    Attributes:
        sublayer: its number in the stack.
        slot: of the cache or memory; None: that of the place where the sublayer runs first.
        tokens: that it changes, a mask (batch, length) or the numbers of packed ones; None: all.
    """

    sublayer: int
    slot: int | None = None
    tokens: torch.Tensor | None = None


class SublayerStack(nn.ModuleList):
    """The sublayers of an order, one after the other: (batch, length, hidden) -> (batch, length or kept, hidden).

    A sublayer that runs at several places is there once. In the tail of an order, no position changes what another one
    sees. So positions that nobody reads leave the stack where the tail begins.
    """

    def __init__(self, config, order: Order, is_causal: bool):
        super().__init__()
        for place in order.first_places:
            layer: Any = BUILDERS[order.letters[place]](config, order, place, is_causal)
            # the map carries the number: initialisation sees one map at a time, and quantisers replace plain maps only
            layer.mixer.output_map.num_sublayers = len(order)
            if not order.kinds[place].is_position_wise:
                layer.dropout = dropout(config, "attention_output_dropout")
            if not (place or config.first_norm):
                layer.norm = nn.Identity()
            self.append(layer)
        self.config, self.is_causal = config, is_causal
        # the letters of the sublayers, as they were made and as they run
        self.built = self.letters = order.unique_letters
        self.set_order(order)

    def __getitem__(self, index):
        """Return a sublayer or, for a slice, a plain list of some: without the others they are no order to run."""
        return nn.ModuleList([*self][index]) if isinstance(index, slice) else super().__getitem__(index)

    def run_in(self, order: str | Order) -> None:
        """Run the sublayers in another order of the same letters from now on; which is which does not change.

        Some or all `m` may run as `s`. This is for training: what is saved runs in the order of the configuration.

        Raises:
            ValueError: an order of other letters, or one that shares sublayers.
        """
        order, built = Order(order), Order(self.built)
        if order == self.order:
            return
        if order.shares_sublayers or self.order.shares_sublayers:
            raise ValueError(f"{str(order)!r} cannot follow {str(self.order)!r}, as one of them shares sublayers")
        fits, running = sorted(order.by_weights) == sorted(built.by_weights), ""
        if fits:
            places = self.locate(order.by_weights, built.by_weights)
            running = "".join(letter for _, letter in sorted(zip(places, order, strict=True)))
            fits = all(x in (y, kind.twin) for x, y, kind in zip(running, built, built.kinds, strict=True))
        if not fits:
            raise ValueError(
                f"{str(order)!r} has other sublayers than {str(built)!r}; give an order of the same letters"
            )
        self.letters = running
        self.set_order(order)

    def set_order(self, order: Order) -> None:
        """Run in this order from now on; its sublayers are among those of the stack."""
        self.order = order
        found = self.locate(order.unique_letters, self.letters)
        self.steps = [Step(found[number], order.slot(place)) for place, number in enumerate(order.sublayers)]
        self.alphabet = order.alphabet
        self.tail, self.has_fixed_states = order.tail_start, order.has_fixed_states
        self.reaches = order.reaches(self.config.sizes._replace(is_causal=self.is_causal))

    @staticmethod
    def locate(order: str, first: str) -> list[int]:
        """Say where in the first order the sublayers of another stand: its n-th `s` is the n-th `s` there."""
        found = {letter: iter([i for i, other in enumerate(first) if other == letter]) for letter in set(first)}
        return [next(found[letter]) for letter in order]

    def forward(self, hidden_states: torch.Tensor, batch: Batch, **kwargs) -> torch.Tensor:
        """Run every sublayer as the batch's plan says, and return what is read.

        `kwargs` are for attention kernels.
        """
        plan, layout = self.lay_out(batch)
        # a compiler cannot see that nothing changes here
        batch = batch if plan is batch.plan else replace(batch, plan=plan)
        return self.run(hidden_states, plan, self.prepare(batch, **kwargs), layout, self.steps)

    def lay_out(self, batch: Batch) -> tuple[Plan, Layout]:
        """Say which positions alone stay after which places of the order, and pack the batch where this needs it."""
        plan = batch.plan
        # only the masks of sdpa can be narrowed, and a cache wants the keys of all tokens
        narrows = self.config._attn_implementation == "sdpa" and batch.cache is None
        if narrows and len(self.reaches) > 1 and plan.reads_one and batch.hides_only_padding:
            plan = plan.packed()
            return plan, Layout(plan.near(self.reaches, batch.attention_mask))
        tail = self.tail if self.has_fixed_states or plan.takes_mean else None
        if self.has_fixed_states and not plan.takes_mean and not takes_single_queries(self.config):
            # every position has a query, and what is read is chosen in the end
            return plan, Layout({}, tail)
        return plan, Layout({} if plan.leaving is None else {self.tail - 1: plan.leaving}, tail)

    def prepare(self, batch: Batch, **kwargs) -> dict[str, Inputs]:
        """Let the first mixer of each kind in the order prepare the inputs of all, by their letters."""
        return {letter: self.first(letter).prepare(batch, **kwargs) for letter in self.alphabet}

    def first(self, letter: str) -> Mixer:
        """Return the first mixer of a kind."""
        layer: Any = self[self.letters.index(letter)]
        return layer.mixer

    def run(
        self,
        hidden_states: torch.Tensor,
        plan: Plan,
        inputs: dict[str, Inputs],
        layout: Layout,
        steps: Iterable[Step],
    ) -> torch.Tensor:
        """Run what was laid out and prepared: (batch, length, hidden) -> what is read."""
        hidden_states, packing = plan.enter(hidden_states), plan.packing
        leaving, tail = layout
        for i, step in enumerate([None, *steps], start=-1):
            kept, begins_tail = leaving.get(i), i + 1 == tail
            if step is not None:
                read = None if begins_tail else kept
                hidden_states = self.run_one(step, hidden_states, inputs, packing, read)
            if begins_tail:
                inputs = {
                    letter: self.first(letter).begin_tail(given, hidden_states, packing, kept)
                    for letter, given in inputs.items()
                }
            if kept is None:
                continue
            if begins_tail or step is None:
                hidden_states = plan.summarise(hidden_states, kept)
            # after the last of these places only a tail sees other positions
            if packing is not None and (begins_tail or i < max(leaving)):
                packing, places = packing.only(kept)
            if packing is not None and i < max(leaving):
                inputs = {
                    letter: self.first(letter).narrow(given, kept, packing, places) for letter, given in inputs.items()
                }
        return plan.leave(hidden_states) if leaving else plan.choose(hidden_states)

    def run_one(
        self,
        step: Step,
        states: torch.Tensor,
        inputs: dict[str, Inputs],
        packing: Packing | None,
        kept: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run a sublayer: (batch, length, hidden) -> (batch, length or kept, hidden)."""
        number, slot, tokens = step
        layer: Any = self[number]
        given = inputs[self.letters[number]]
        slot = layer.mixer.layer_idx if slot is None else slot

        def run(states: torch.Tensor, packing: Packing | None) -> torch.Tensor:
            return layer(states, *given.sources, read_positions=kept, packing=packing, slot=slot, **given.named)

        if tokens is None:
            return run(states, packing)
        if packing is None:
            return torch.where(tokens[..., None], run(states, None), states)
        # the sublayer takes the other tokens for padding
        return states.index_copy(1, tokens, run(states[:, tokens], packing.part(tokens)))
