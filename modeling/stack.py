"""A stack that runs sublayers in any order."""

from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
from torch import nn

from sublayers.configuration.alphabet import ALPHABET
from sublayers.configuration.sublayer_order import expand, tail_start
from sublayers.modeling.attention import CrossAttention, SelfAttention
from sublayers.modeling.convolution import Convolution
from sublayers.modeling.feed_forward import FeedForward
from sublayers.modeling.memory import RecurrentSublayer
from sublayers.modeling.plan import Plan, select_positions
from sublayers.modeling.relative_attention import RelativeAttention
from sublayers.modeling.span_attention import SpanAttention
from sublayers.modeling.sublayer import Sublayer


def final_norm(config) -> nn.Module:
    """Make the norm behind a stack, if the configuration has one."""
    if not config.final_norm:
        return nn.Identity()
    return nn.LayerNorm(config.hidden_size, config.layer_norm_eps, elementwise_affine=config.norm_affine)


def slot(order: str, index: int) -> int:
    """Number a sublayer of an order among those before it that have slots in the same cache.

    They take the slots 0, 1, ...: a cache with gaps breaks generation without a word.
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


def build_cross_attention(config, order: str, index: int, is_causal: bool) -> Sublayer:
    """Make the sublayer `c`."""
    return Sublayer(config, CrossAttention(config, slot(order, index)))


def build_feed_forward(config, order: str, index: int, is_causal: bool) -> Sublayer:
    """Make the sublayer `f`."""
    before_attention = order[index + 1 : index + 2] == "s"
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
    "c": build_cross_attention,
    "f": build_feed_forward,
    "d": build_convolution,
    "l": build_convolution,
}


class SublayerStack(nn.ModuleList):
    """The sublayers of an order, one after the other: (batch, length, hidden) -> (batch, length or kept, hidden).

    Further orders of the same letters run the same sublayers.

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
            self.append(layer)
        self.config = config
        self.indices = [self.locate(expand(other), order) for other in orders]
        self.last_attention = [tail_start(other) - 1 for other in orders]

    def __getitem__(self, index):
        """Return a sublayer or, for a slice, a plain list of some: without the others they are no order to run."""
        return nn.ModuleList([*self][index]) if isinstance(index, slice) else super().__getitem__(index)

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
        order: int = 0,
        dropped: Container[int] = (),
        **kwargs,
    ) -> torch.Tensor:
        """Run every sublayer in the order of that number as planned, and return what the plan leaves.

        Cross-attention reads the encoder's states and `cross_inputs`; what else is given is for the other sublayers.
        Those at the places of the order that are `dropped` are left out.
        """
        hidden_states, kept = plan.enter(hidden_states), plan.leaving
        # flash and flex attention cannot be asked for single queries: there the last attention runs in full
        by_query = self.config._attn_implementation in ("eager", "sdpa")
        last_attention = self.last_attention[order]
        if kept is not None and last_attention < 0:
            hidden_states = select_positions(hidden_states, kept)
        for i, place in enumerate(self.indices[order]):
            layer: Any = self[place]
            leaving = kept if i == last_attention else None
            if i in dropped:
                hidden_states = hidden_states if leaving is None else select_positions(hidden_states, leaving)
                continue
            asked = leaving if by_query else None
            # by position, so that every kind of checkpointing finds the encoder's gradient
            sources = (encoder_hidden_states,) if layer.mixer.reads_source else ()
            inputs = cross_inputs or {} if layer.mixer.reads_source else kwargs
            hidden_states = layer(hidden_states, *sources, read_positions=asked, packing=plan.packing, **inputs)
            if leaving is not None and not by_query:
                hidden_states = select_positions(hidden_states, leaving)
        return plan.leave(hidden_states)
