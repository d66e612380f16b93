"""A stack that runs sublayers in any order."""

from collections.abc import Callable, Container, Iterable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.utils.import_utils import is_tracing

from sublayers.configuration.alphabet import ALPHABET
from sublayers.configuration.sublayer_order import by_weights, expand, has_fixed_states, reaches, tail_start
from sublayers.modeling.attention import CrossAttention, SelfAttention, takes_single_queries
from sublayers.modeling.convolution import Convolution
from sublayers.modeling.dropout import dropout
from sublayers.modeling.feed_forward import FeedForward
from sublayers.modeling.local_attention import LocalAttention
from sublayers.modeling.memory import RecurrentSublayer
from sublayers.modeling.mixer import Batch, Inputs, Mixer
from sublayers.modeling.plan import Packing, Plan
from sublayers.modeling.relative_attention import RelativeAttention
from sublayers.modeling.single_input_attention import SingleInputAttention
from sublayers.modeling.span_attention import SpanAttention
from sublayers.modeling.sublayer import Sublayer


class Layout(NamedTuple):
    """Where positions leave a stack.

    Attributes:
        leaving: which positions alone stay behind which places of the order.
        tail: the place of the order where the tail begins, if every state is needed there; None elsewhere.
    """

    leaving: dict[int, torch.Tensor]
    tail: int | None = None


def slot(order: str, index: int) -> int:
    """Number a sublayer of an order among those before it that have slots in the same cache.

    They take the slots 0, 1, ...: a cache with gaps silently breaks generation.
    """
    cache = ALPHABET[order[index]].cache
    return sum(ALPHABET[letter].cache == cache for letter in order[:index])


def build_self_attention(config, order: str, index: int, is_causal: bool) -> Sublayer:
    """Make the sublayer `s`, whose kind depends on how the model knows positions."""
    number = slot(order, index)
    if config.position_embedding_type == "relative":
        return RecurrentSublayer(config, RelativeAttention(config, number))
    if config.position_embedding_type == "key_table":
        return RecurrentSublayer(config, SpanAttention(config, number))
    return Sublayer(config, SelfAttention(config, number, is_causal))


def build_local_attention(config, order: str, index: int, is_causal: bool) -> Sublayer:
    """Make the sublayer `w`."""
    return Sublayer(config, LocalAttention(config, slot(order, index), is_causal))


def build_single_input_attention(config, order: str, index: int, is_causal: bool) -> Sublayer:
    """Make the sublayer `m`."""
    return Sublayer(config, SingleInputAttention(config, slot(order, index), is_causal))


def build_cross_attention(config, order: str, index: int, is_causal: bool) -> Sublayer:
    """Make the sublayer `c`."""
    return Sublayer(config, CrossAttention(config, slot(order, index)))


def build_feed_forward(config, order: str, index: int, is_causal: bool) -> Sublayer:
    """Make the sublayer `f`."""
    before_attention = order[index + 1 : index + 2] in ("s", "w", "m")
    act = config.pre_attention_act if before_attention else None
    return Sublayer(config, FeedForward(config, act or config.hidden_act), config.feed_forward_scale)


def build_convolution(config, order: str, index: int, is_causal: bool) -> Sublayer:
    """Make the sublayer `d` or `l`; the convolutions of a stack share the list of kernel sizes."""
    number = sum(letter in "dl" for letter in order[:index])
    kernel_size = config.kernel_sizes[: number + 1][-1]
    return Sublayer(config, Convolution(config, slot(order, index), kernel_size, is_causal, order[index] == "d"))


# how the sublayer of each letter is made
BUILDERS: dict[str, Callable[..., Sublayer]] = {
    "s": build_self_attention,
    "w": build_local_attention,
    "m": build_single_input_attention,
    "c": build_cross_attention,
    "f": build_feed_forward,
    "d": build_convolution,
    "l": build_convolution,
}


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


class SublayerStack(nn.ModuleList):
    """The sublayers of an order, one after the other: (batch, length, hidden) -> (batch, length or kept, hidden).

    Further orders of the same letters run the same sublayers. Where rows have different orders, a sublayer runs at once
    for all rows that have come to it.

    In the tail of an order, no position changes what another one sees. So positions that nobody reads leave the stack
    where the tail begins.
    """

    def __init__(self, config, orders: Sequence[str], is_causal: bool):
        order = expand(orders[0])
        super().__init__()
        for i, letter in enumerate(order):
            layer: Any = BUILDERS[letter](config, order, i, is_causal)
            # the map carries the number: initialisation sees one map at a time, and quantisers replace plain maps only
            layer.mixer.output_map.num_sublayers = len(order)
            if not ALPHABET[letter].is_position_wise:
                layer.dropout = dropout(config, "attention_output_dropout")
            if not (i or config.first_norm):
                layer.norm = nn.Identity()
            self.append(layer)
        self.config, self.is_causal = config, is_causal
        # the letters of the sublayers, as they were made and as they run
        self.built = self.order = order
        self.set_orders(orders)
        # an update of a cache takes all rows of the batch
        self.joints = {i for i, letter in enumerate(order) if ALPHABET[letter].cache == "self"}

    def __getitem__(self, index):
        """Return a sublayer or, for a slice, a plain list of some: without the others they are no order to run."""
        return nn.ModuleList([*self][index]) if isinstance(index, slice) else super().__getitem__(index)

    def run_in(self, order: str) -> None:
        """Run the sublayers in another order of the same letters from now on; which is which does not change.

        Some or all `m` may run as `s`. This is for training: what is saved runs in the order of the configuration.

        Raises:
            ValueError: an order of other letters.
        """
        letters, wanted, own = expand(order), by_weights(order), by_weights(self.built)
        fits, running = sorted(wanted) == sorted(own), ""
        if fits:
            running = "".join(letter for _, letter in sorted(zip(self.locate(wanted, own), letters, strict=True)))
            fits = all(x in (y, ALPHABET[y].weights_of) for x, y in zip(running, self.built, strict=True))
        if not fits:
            raise ValueError(f"{order!r} has other sublayers than {self.built!r}; give an order of the same letters")
        self.order = running
        self.set_orders([order, *self.orders[1:]])

    def set_orders(self, orders: Sequence[str]) -> None:
        """Run in these orders from now on; their sublayers are among those of the stack."""
        sizes = self.config.sizes._replace(is_causal=self.is_causal)
        self.orders = [*orders]
        self.indices = [self.locate(expand(order), self.order) for order in orders]
        self.tails = [tail_start(order) for order in orders]
        self.fixes = [has_fixed_states(order) for order in orders]
        self.reaches = [reaches(order, sizes) for order in orders]

    @staticmethod
    def locate(order: str, first: str) -> list[int]:
        """Say where in the first order the sublayers of another stand: its n-th `s` is the n-th `s` there."""
        found = {letter: iter([i for i, other in enumerate(first) if other == letter]) for letter in set(first)}
        return [next(found[letter]) for letter in order]

    def forward(
        self,
        hidden_states: torch.Tensor,
        batch: Batch,
        order: int | torch.Tensor = 0,
        dropped: Container[int] = (),
        **kwargs,
    ) -> torch.Tensor:
        """Run every sublayer in the order with this number, as the batch's plan says, and return what the plan leaves.

        Those at the places of the order that are `dropped` are left out. The numbers of several orders, (batch,) or
        (sources,), are one for each row, or for the rows that share a source; there, nothing leaves early. `kwargs` are
        for attention kernels.
        """
        numbers = self.numbers(order)
        layout = self.lay_out(batch, numbers)
        steps = self.steps(batch.plan, order, numbers, dropped)
        return self.run(hidden_states, batch.plan, self.prepare(batch, **kwargs), layout, steps)

    def lay_out(self, batch: Batch, numbers: Sequence[int]) -> Layout:
        """Say which positions alone stay behind which places of the order, and pack the batch where this needs it."""
        plan = batch.plan
        if len(numbers) > 1:
            if not plan.is_whole:
                plan.pack()
            return Layout({})
        near, tail, fixes = self.reaches[numbers[0]], self.tails[numbers[0]], self.fixes[numbers[0]]
        # only the masks of sdpa can be narrowed, and a cache wants the keys of all tokens
        narrows = self.config._attn_implementation == "sdpa" and batch.cache is None
        if narrows and len(near) > 1 and plan.reads_one and batch.hides_only_padding:
            plan.pack()
            return Layout(plan.near(near, batch.attention_mask))
        if fixes and not plan.takes_mean and not takes_single_queries(self.config):
            # every position asks, and what is read is chosen in the end
            plan.leaving = None
        leaving = {} if plan.leaving is None else {tail - 1: plan.leaving}
        return Layout(leaving, tail if fixes or plan.takes_mean else None)

    def prepare(self, batch: Batch, **kwargs) -> dict[str, Inputs]:
        """Let the first mixer of each kind prepare the inputs of all, by their letters."""
        return {letter: self.first(letter).prepare(batch, **kwargs) for letter in dict.fromkeys(self.order)}

    def first(self, letter: str) -> Mixer:
        """Return the first mixer of a kind."""
        layer: Any = self[self.order.index(letter)]
        return layer.mixer

    def run(
        self,
        hidden_states: torch.Tensor,
        plan: Plan,
        inputs: dict[str, Inputs],
        layout: Layout,
        steps: Iterable[tuple[int | None, torch.Tensor | None]],
    ) -> torch.Tensor:
        """Run what was laid out and prepared, see `forward`: (batch, length, hidden) -> what the plan leaves."""
        hidden_states, packing = plan.enter(hidden_states), plan.packing
        leaving, tail = layout
        for i, (place, tokens) in enumerate([(None, None), *steps], start=-1):
            kept, begins_tail = leaving.get(i), i + 1 == tail
            if place is not None:
                read = None if begins_tail else kept
                hidden_states = self.run_one(place, hidden_states, inputs, packing, read, tokens)
            if begins_tail:
                inputs = {
                    letter: self.first(letter).begin_tail(given, hidden_states, packing, kept)
                    for letter, given in inputs.items()
                }
            if kept is None:
                continue
            if begins_tail or place is None:
                hidden_states = plan.summarise(hidden_states, kept)
            # behind the last of these places only a tail sees other positions
            if packing is not None and (begins_tail or i < max(leaving)):
                packing, places = packing.only(kept)
            if packing is not None and i < max(leaving):
                inputs = {
                    letter: self.first(letter).narrow(given, kept, packing, places) for letter, given in inputs.items()
                }
        return plan.leave(hidden_states)

    def run_one(
        self,
        place: int,
        states: torch.Tensor,
        inputs: dict[str, Inputs],
        packing: Packing | None,
        kept: torch.Tensor | None = None,
        tokens: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run a sublayer: (batch, length, hidden) -> (batch, length or kept, hidden).

        `tokens` are those that it changes, as a mask (batch, length) or the numbers of packed tokens; None: all.
        """
        layer: Any = self[place]
        given = inputs[self.order[place]]

        def run(states: torch.Tensor, packing: Packing | None) -> torch.Tensor:
            return layer(states, *given.sources, read_positions=kept, packing=packing, **given.named)

        if tokens is None:
            return run(states, packing)
        if packing is None:
            return torch.where(tokens[..., None], run(states, None), states)
        # the sublayer takes the other tokens for padding
        return states.index_copy(1, tokens, run(states[:, tokens], packing.part(tokens)))

    def steps(
        self, plan: Plan, order: int | torch.Tensor, numbers: Sequence[int], dropped: Container[int] = ()
    ) -> list[tuple[int | None, torch.Tensor | None]]:
        """Say which sublayers run, one after the other, and for which tokens; None: for all, or no sublayer."""
        if len(numbers) == 1:
            return [(None if i in dropped else place, None) for i, place in enumerate(self.indices[numbers[0]])]
        rows: Any = order
        rows = rows.repeat_interleave(plan.batch // rows.shape[0])[:, None].expand(-1, plan.length)
        rows = plan.enter(rows)
        runs, chosen = self.runs(numbers, dropped), {}
        # self-attention, which needs all positions, runs for all of the orders
        for some in {some for _, some in runs if len(some) < len(numbers)}:
            tokens = (rows[..., None] == rows.new_tensor(some)).any(-1)
            chosen[some] = tokens if plan.packing is None else tokens[0].nonzero()[:, 0]
        return [(place, chosen.get(some)) for place, some in runs]

    def numbers(self, order: int | torch.Tensor) -> list[int]:
        """Find the orders that rows (batch,) have; a graph that is traced cannot depend on them, and gets all."""
        if isinstance(order, int):
            return [order]
        return [*range(len(self.indices))] if is_tracing(order) else order.unique().tolist()

    def runs(self, numbers: Iterable[int], dropped: Container[int] = ()) -> list[tuple[int, tuple[int, ...]]]:
        """Say which sublayers run, one after the other, and for which of the orders, see `share_runs`."""
        runs = share_runs({number: self.indices[number] for number in numbers}, self.joints)
        return [each for each in runs if each[0] not in dropped]
