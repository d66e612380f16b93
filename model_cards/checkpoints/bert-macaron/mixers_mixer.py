"""What the stack and its mixers tell each other: a mixer prepares its inputs once for each batch."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.utils.import_utils import is_tracing

from .plan import Packing, Plan


@dataclass
class Source:
    """What cross-attention reads.

    Attributes:
        states: of the encoder, (sources, source length, hidden).
        attention_mask: hides the padding of the source, (sources, source length).
        cache: the cache of both attentions.
    """

    states: torch.Tensor
    attention_mask: torch.Tensor | None = None
    cache: EncoderDecoderCache | None = None


@dataclass
class Batch:
    """What a body knows of a batch. Each kind of mixer prepares its inputs from it.

    Attributes:
        states: the embedded tokens, (batch, length, hidden), whose shape, dtype and device masks are made for.
        plan: which positions are computed.
        attention_mask: hides padding, (batch, past and present length). Masks that transformers makes ahead come as
            they are, or in a dict by its names of layer types.
        numbers: of the tokens in their texts, (batch or 1, length), by which tables of positions are looked up.
        position_ids: what the caller of a causal model without a past gave, (batch or 1, length). Where they restart
            within a row, another text begins.
        cache: the cache of the stack's own sequence.
        positions: the module of positions that all attentions of the stack share.
        relative_bias: from a length to what attention adds for each distance, (1, heads, length, length).
        memory: what is remembered of earlier segments.
        source: of cross-attention.
    """

    states: torch.Tensor
    plan: Plan
    attention_mask: Any = None
    numbers: Any = None
    position_ids: torch.Tensor | None = None
    cache: Cache | None = None
    positions: Any = None
    relative_bias: Any = None
    memory: Any = None
    source: Source | None = None

    @property
    def past(self) -> Cache | None:
        """The cache, as transformers wants it to make a mask: it looks for several texts only without one."""
        return self.cache if self.position_ids is None else None

    @property
    def hides_only_padding(self) -> bool:
        """Whether the mask is that of padding alone: no past, one text in each row, and no fixed shapes."""
        mask, cache = self.attention_mask, self.cache
        if is_tracing(self.states):
            return False
        if cache is not None and (not isinstance(cache, Cache) or cache.is_compileable or cache.get_seq_length()):
            return False
        if mask is None:
            return self.position_ids is None
        return isinstance(mask, torch.Tensor) and mask.ndim == 2


@dataclass(frozen=True)
class Inputs:
    """What a mixer gets beside the states.

    Attributes:
        named: passed by name.
        sources: passed by position, so that every kind of gradient checkpointing finds their gradients.
    """

    named: dict[str, Any] = field(default_factory=dict)
    sources: tuple[torch.Tensor, ...] = ()


class Drawn:
    """A module with parameters that are those of no linear map, norm or table, and that draws them itself."""

    def draw_weights(self, config) -> None:
        """Draw the initial weights, as transformers' `initialization` does."""
        raise NotImplementedError


class Mixer(nn.Module):
    """The inner module of a sublayer: (batch, length, hidden) -> (batch, length or kept, hidden), and weights or None.

    `forward` takes the states, the sources of its inputs, `read_positions` and `packing` (see `Sublayer`), its named
    inputs and, if it has a cache or a memory, the `slot` there of the place where it runs. `output_map` is the linear
    map whose result joins the residual stream. A mixer that `normalises_sources` gets them as its states, after the
    norm, where norms stand before sublayers.
    """

    output_map: Any
    normalises_sources = False
    # the slot of the first place where it runs
    layer_idx: Any = None

    def prepare(self, batch: Batch, **kwargs) -> Inputs:
        """Make the inputs that all mixers of this kind share; `kwargs` are meant for attention kernels."""
        return Inputs()

    def begin_tail(
        self, inputs: Inputs, states: torch.Tensor, packing: Packing | None, kept: torch.Tensor | None
    ) -> Inputs:
        """Take over what the tail of the order attends to: states, packed or not, that stand still from there on.

        Of them, the tail computes the positions `kept` (batch or 1, kept); None: all.
        """
        return inputs

    def narrow(self, inputs: Inputs, kept: torch.Tensor, packing: Packing, places: torch.Tensor) -> Inputs:
        """Keep the inputs of the tokens `kept` (1, kept in all) of a packed batch.

        Their packing is the new one, and `places` (batch, new length) says where in its old row each token stood.
        """
        return inputs
