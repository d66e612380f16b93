"""A stack that runs sublayers in any order."""

from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import nn
from transformers.utils.import_utils import is_tracing

from sublayers.configuration.alphabet import ALPHABET
from sublayers.configuration.sublayer_order import expand, tail_start, windows_behind
from sublayers.modeling.attention import CrossAttention, SelfAttention
from sublayers.modeling.convolution import Convolution
from sublayers.modeling.dropout import dropout
from sublayers.modeling.feed_forward import FeedForward
from sublayers.modeling.local_attention import LocalAttention, Window
from sublayers.modeling.memory import RecurrentSublayer
from sublayers.modeling.norm import hidden_norm
from sublayers.modeling.plan import Packing, Plan, select_positions
from sublayers.modeling.relative_attention import RelativeAttention
from sublayers.modeling.span_attention import SpanAttention
from sublayers.modeling.sublayer import Sublayer


def final_norm(config) -> nn.Module:
    """Make the norm behind a stack, if the configuration has one."""
    return hidden_norm(config) if config.final_norm else nn.Identity()


def slot(order: str, index: int) -> int:
    """Number a sublayer of an order among those before it that have slots in the same cache.

    They take the slots 0, 1, ...: a cache with gaps silently breaks generation.
    """
    cache = ALPHABET[order[index]].cache
    return sum(ALPHABET[letter].cache == cache for letter in order[:index])


def build_self_attention(config, order: str, index: int, is_causal: bool) -> Sublayer:
    """Make the sublayer `s`, which knows positions by the embeddings or, of models with memory, on its own."""
    number = slot(order, index)
    if config.position_embedding_type == "relative":
        return RecurrentSublayer(config, RelativeAttention(config, number))
    if config.position_embedding_type == "key_table":
        return RecurrentSublayer(config, SpanAttention(config, number))
    return Sublayer(config, SelfAttention(config, number, is_causal))


def build_local_attention(config, order: str, index: int, is_causal: bool) -> Sublayer:
    """Make the sublayer `w`."""
    return Sublayer(config, LocalAttention(config, slot(order, index), is_causal))


def build_cross_attention(config, order: str, index: int, is_causal: bool) -> Sublayer:
    """Make the sublayer `c`."""
    return Sublayer(config, CrossAttention(config, slot(order, index)))


def build_feed_forward(config, order: str, index: int, is_causal: bool) -> Sublayer:
    """Make the sublayer `f`."""
    before_attention = order[index + 1 : index + 2] in ("s", "w")
    act = config.pre_attention_act if before_attention else None
    return Sublayer(config, FeedForward(config, act or config.hidden_act), config.feed_forward_scale)


def build_convolution(config, order: str, index: int, is_causal: bool) -> Sublayer:
    """Make the sublayer `d` or `l`; the convolutions of a stack share the list of kernel sizes."""
    number = sum(letter in "dl" for letter in order[:index])
    kernel_size = config.kernel_sizes[: number + 1][-1]
    return Sublayer(config, Convolution(config, slot(order, index), kernel_size, is_causal, order[index] == "d"))


# from a letter, its place in an order and what the stack is for to the sublayer
BUILDERS: dict[str, Callable[..., Sublayer]] = {
    "s": build_self_attention,
    "w": build_local_attention,
    "c": build_cross_attention,
    "f": build_feed_forward,
    "d": build_convolution,
    "l": build_convolution,
}


# what sublayers get beside the states, by their letters
Inputs = dict[str, dict[str, Any]]


def lay_out(given: Inputs, change: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
    """Change the layout of the rotations, where positions are rotary."""
    name = "position_embeddings"
    return {
        letter: {**inputs, name: tuple(change(part) for part in inputs[name])} if inputs.get(name) else {**inputs}
        for letter, inputs in given.items()
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

    What follows the last attention or convolution is position-wise, so positions that nobody reads leave the stack
    there.
    """

    def __init__(self, config, orders: Sequence[str], is_causal: bool):
        order = expand(orders[0])
        super().__init__()
        for i, letter in enumerate(order):
            layer: Any = BUILDERS[letter](config, order, i, is_causal)
            # a mark, since maps are initialised one by one, and quantisers want them plain
            layer.mixer.output_map.num_sublayers = len(order)
            if not ALPHABET[letter].is_position_wise:
                layer.dropout = dropout(config, "attention_output_dropout")
            if not (i or config.first_norm):
                layer.norm = nn.Identity()
            self.append(layer)
        self.config, self.order = config, order
        self.set_orders(orders)
        # a cache takes all rows of a batch at once
        self.joints = {i for i, letter in enumerate(order) if ALPHABET[letter].cache == "self"}

    def __getitem__(self, index):
        """Return a sublayer or, for a slice, a plain list of some: without the others they are no order to run."""
        return nn.ModuleList([*self][index]) if isinstance(index, slice) else super().__getitem__(index)

    def run_in(self, order: str) -> None:
        """Run the sublayers in another order of the same letters from now on; which is which does not change.

        This is for training: what is saved runs in the order of the configuration.

        Raises:
            ValueError: an order of other letters.
        """
        if sorted(expand(order)) != sorted(self.order):
            raise ValueError(f"{order!r} has other sublayers than {self.order!r}; give an order of the same letters")
        self.set_orders([order, *self.orders[1:]])

    def set_orders(self, orders: Sequence[str]) -> None:
        """Run in these orders from now on; their sublayers are among those of the stack."""
        self.orders = [*orders]
        self.indices = [self.locate(expand(order), self.order) for order in orders]
        self.last_attention = [tail_start(order) - 1 for order in orders]
        self.windows_behind = [windows_behind(order) for order in orders]

    @staticmethod
    def locate(order: str, first: str) -> list[int]:
        """Say where in the first order the sublayers of another stand: its n-th `s` is the n-th `s` there."""
        found = {letter: iter([i for i, other in enumerate(first) if other == letter]) for letter in set(first)}
        return [next(found[letter]) for letter in order]

    def forward(
        self,
        hidden_states: torch.Tensor,
        plan: Plan,
        encoder_hidden_states: torch.Tensor | None = None,
        cross_inputs: dict[str, Any] | None = None,
        local_inputs: dict[str, Any] | None = None,
        order: int | torch.Tensor = 0,
        dropped: Container[int] = (),
        **kwargs,
    ) -> torch.Tensor:
        """Run every sublayer in the order with this number, as the plan says, and return what the plan leaves.

        Cross-attention reads the encoder's states and `cross_inputs`; what else is given is for the other sublayers,
        where `local_inputs` replace what local attention has otherwise. Those at the places of the order that are
        `dropped` are left out. The numbers of several orders, (batch,) or (sources,), are one for each row, or for the
        rows that share a source; there, nothing leaves early.
        """
        sources: dict[bool, Any] = {True: (encoder_hidden_states,), False: ()}
        given: Inputs = dict.fromkeys(BUILDERS, kwargs)
        given |= {"c": cross_inputs or {}, "w": kwargs | (local_inputs or {})}

        def run(given: Inputs, place: int, states: torch.Tensor, packing: Packing | None, asked=None) -> torch.Tensor:
            layer: Any = self[place]
            inputs = given[self.order[place]]
            # by position, so that every kind of checkpointing finds the encoder's gradient
            return layer(states, *sources[layer.mixer.reads_source], read_positions=asked, packing=packing, **inputs)

        if isinstance(order, torch.Tensor):
            numbers = self.numbers(order)
            if len(numbers) > 1:
                return self.run_several(hidden_states, plan, order, (*numbers,), dropped, run, given)
            order = numbers[0]
        window = given["w"].get("attention_mask")
        is_local = isinstance(window, Window) and len(self.windows_behind[order]) > 1
        if is_local and plan.reads_one and kwargs.get("past_key_values") is None:
            return self.run_narrowing(hidden_states, plan, order, dropped, run, given)
        hidden_states, kept = plan.enter(hidden_states), plan.leaving
        # flash and flex attention cannot be asked for single queries: there the last attention runs in full
        by_query = self.config._attn_implementation in ("eager", "sdpa")
        last_attention = self.last_attention[order]
        if kept is not None and last_attention < 0:
            hidden_states = select_positions(hidden_states, kept)
        for i, place in enumerate(self.indices[order]):
            leaving = kept if i == last_attention else None
            if i in dropped:
                hidden_states = hidden_states if leaving is None else select_positions(hidden_states, leaving)
                continue
            hidden_states = run(given, place, hidden_states, plan.packing, leaving if by_query else None)
            if leaving is not None and not by_query:
                hidden_states = select_positions(hidden_states, leaving)
        return plan.leave(hidden_states)

    def run_narrowing(
        self,
        hidden_states: torch.Tensor,
        plan: Plan,
        order: int,
        dropped: Container[int],
        run: Callable[..., torch.Tensor],
        given: Inputs,
    ) -> torch.Tensor:
        """Run an order that ends with local attentions for one token of each row: (batch, length, hidden) -> one each.

        They see no further than their windows, so that each needs fewer tokens around it than the one before.
        """
        batch, length = hidden_states.shape[:2]
        packing = plan.packing or Packing(batch, length, None)
        hidden_states = packing.pack(hidden_states)
        if plan.packing is None:
            given = lay_out(given, packing.pack)
        window, behind, read = given["w"]["attention_mask"], self.windows_behind[order], plan.read
        for i, place in enumerate([None, *self.indices[order]], start=-1):
            leaving = None
            if i in behind:
                leaving = packing.locate(window.rows(read, behind[i])[:, 0, 0].expand(batch, -1))
            if place is None or i in dropped:
                hidden_states = hidden_states if leaving is None else select_positions(hidden_states, leaving)
            else:
                hidden_states = run(given, place, hidden_states, packing, leaving)
            if leaving is not None:
                packing, window = window.narrow(packing, leaving)
                given = lay_out(given, partial(select_positions, positions=leaving))
                given["w"]["attention_mask"] = window
        return hidden_states[0][:, None]

    def run_several(
        self,
        hidden_states: torch.Tensor,
        plan: Plan,
        order: torch.Tensor,
        everyone: tuple[int, ...],
        dropped: Container[int],
        run: Callable[..., torch.Tensor],
        given: Inputs,
    ) -> torch.Tensor:
        """Run for each row (batch, length, hidden) the sublayers of its order, (batch,) or (sources,)."""
        batch, length = hidden_states.shape[:2]
        order = order.repeat_interleave(batch // order.shape[0])[:, None].expand(-1, length)
        packing = None
        if not plan.is_whole:
            packing = plan.packing or Packing(batch, length, None)
            hidden_states, order = packing.pack(hidden_states), packing.pack(order)
            if plan.packing is None:
                given = lay_out(given, packing.pack)
        runs, chosen = self.runs(everyone, dropped), {}
        for _, numbers in runs:
            tokens = (order[..., None] == order.new_tensor(numbers)).any(-1)
            chosen[numbers] = tokens if packing is None else tokens[0].nonzero()[:, 0]
        for place, numbers in runs:
            tokens = chosen[numbers]
            if numbers == everyone:
                # among them self-attention, which needs positions
                hidden_states = run(given, place, hidden_states, packing)
            elif packing is None:
                hidden_states = torch.where(tokens[..., None], run(given, place, hidden_states, None), hidden_states)
            else:
                # the other tokens are as good as padding
                states = run(given, place, hidden_states[:, tokens], packing.part(tokens))
                hidden_states = hidden_states.index_copy(1, tokens, states)
        return plan.leave(hidden_states) if packing is None else packing.pad(hidden_states)

    def numbers(self, order: torch.Tensor) -> list[int]:
        """Find the orders that rows (batch,) have; a graph that is traced cannot depend on them, and gets all."""
        return [*range(len(self.indices))] if is_tracing(order) else order.unique().tolist()

    def runs(self, numbers: Iterable[int], dropped: Container[int] = ()) -> list[tuple[int, tuple[int, ...]]]:
        """Say which sublayers run, one after the other, and for which of the orders, see `share_runs`."""
        runs = share_runs({number: self.indices[number] for number in numbers}, self.joints)
        return [each for each in runs if each[0] not in dropped]
