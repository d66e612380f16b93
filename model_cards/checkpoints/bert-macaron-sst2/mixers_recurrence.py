"""Recurrence with a state of fixed size, two mixers of the stack: Mamba-2 and the gated delta rule.

Dao and Gu (2024), "Transformers are SSMs", section 7; Yang et al. (2024), "Gated Delta Networks: Improving Mamba2 with
Delta Rule", section 3.3.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad, silu, softplus
from transformers import initialization as init
from transformers.cache_utils import Cache, LinearAttentionCacheLayerMixin
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule
from transformers.utils.import_utils import (
    is_flash_linear_attention_available,
    is_mamba_2_ssm_available,
    is_tracing,
)

from .letters_recurrence import shape as find_shape
from .order import Order
from .mixers_convolution import sum_under, tokens_of
from .mixers_linear_attention import attend_linearly
from .mixers_mixer import Batch, Drawn, Inputs, Mixer
from .mixers_span_attention import behind_padding, move
from .plan import Packing, select_positions
from .sublayer import Sublayer

# the steps with which a new model begins, drawn on a logarithmic scale (Mamba, section 3.6)
STEPS = (0.001, 0.1)
# the decay rates of a new gated delta rule
LEAST_RATE, LARGEST_RATE = 0.01, 16.0
# added to the squares of keys and queries before they get the length 1
LENGTH_EPS = 1e-6


def separate(position_ids: torch.Tensor, batch: int) -> Packing | None:
    """Give each text a row of its own, at whose right end it stands; None: each row is one text.

    A text begins where a position (batch or 1, length) does not follow the one before.
    """
    if is_tracing(position_ids):
        return None
    starts = pad(position_ids.expand(batch, -1).diff(dim=1) != 1, (1, 0), value=True).flatten()
    number = starts.cumsum(0) - 1
    counts = number.bincount()
    if len(counts) == batch:
        return None
    longest = int(counts.max())
    to_end = counts.cumsum(0)[number] - torch.arange(len(number), device=number.device)
    return Packing(len(counts), longest, (number + 1) * longest - to_end)


def has_gaps(tokens: torch.Tensor, cache: Cache | None) -> bool:
    """Say whether padding may stand between tokens (batch, length), or between what a cache remembers and them.

    A graph is traced for every mask.
    """
    if is_tracing(tokens):
        return True
    changes = tokens[:, 1:] != tokens[:, :-1]
    if cache is None:
        return bool(changes.sum(1).gt(1).any())
    return bool((changes & tokens[:, :-1]).any()) or bool(cache.get_seq_length())


def runs_kernels(value: torch.Tensor, are_available: Callable[[], bool]) -> bool:
    """Say whether values (batch, length, heads, head_dim) are read by a kernel for whole texts."""
    return value.is_cuda and value.shape[1] > 1 and are_available()


class GroupedRMSNorm(nn.Module):
    """An RMS norm of some groups of channels, each on its own: (..., width) -> the same."""

    def __init__(self, width: int, groups: int, eps: float):
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Normalise, in 32 bits at least."""
        rows = states.to(torch.promote_types(states.dtype, torch.float32)).unflatten(-1, (self.groups, -1))
        rows = nn.functional.rms_norm(rows, rows.shape[-1:], eps=self.eps).flatten(-2)
        return rows.type_as(states) * self.weight


class DepthwiseConvolution(nn.Conv1d):
    """A convolution of each channel on its own: (batch, kernel - 1 + length, channels) -> (batch, length, channels)."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Sum over the kernel, which a CPU does faster than the convolutions of libraries, with the channels last."""
        return sum_under(self.weight[:, 0].T, states, self.kernel_size[0] - 1, bias=self.bias)


class Recurrence(Mixer, Drawn):
    """A short convolution and a recurrence, whose output is gated: (batch, length, hidden) -> (same or kept, hidden).

    Padding changes neither what is convolved nor the state. Texts that follow each other in a row have states of their
    own.
    """

    def __init__(self, config, slot: int):
        super().__init__()
        self.layer_idx = slot
        self.shape = own = find_shape(config.sizes)
        self.in_proj = nn.Linear(config.hidden_size, own.inner_width, bias=False)
        self.conv1d = DepthwiseConvolution(
            own.channels, own.channels, own.conv_kernel, groups=own.channels, bias=not own.is_delta
        )
        # by these names, checkpoints have the logarithms of decay rates, and what is added to steps
        self.A_log = nn.Parameter(torch.zeros(own.heads))
        self.dt_bias = nn.Parameter(torch.zeros(own.heads))
        self.out_proj = nn.Linear(own.width, config.hidden_size, bias=False)

    @property
    def output_map(self) -> nn.Module:
        """The linear map whose result joins the residual stream."""
        return self.out_proj

    def draw_weights(self, config) -> None:
        """Begin with steps of many lengths, and with a convolution as torch makes one."""
        init.kaiming_uniform_(self.conv1d.weight, a=math.sqrt(5))
        low, high = map(math.log, STEPS)
        steps = torch.empty_like(self.dt_bias).uniform_(low, high).exp()
        # softplus takes it back
        init.copy_(self.dt_bias, steps + torch.log(-torch.expm1(-steps)))

    def prepare(self, batch: Batch, **kwargs) -> Inputs:
        """Tell tokens from padding, and texts from each other.

        Raises:
            ValueError: a cache that was made without the configuration, a model that looks both ways, or texts that
                only attention could tell apart.
        """
        cache, positions = batch.cache, batch.position_ids
        if cache is not None and not any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in cache.layers):
            raise ValueError("the cache has no place for the states of sublayers r; make it with config=model.config")
        if kwargs.get("is_causal") is False:
            raise ValueError("sublayers r look back only; leave is_causal=False out")
        if positions is None and any(kwargs.get(name) is not None for name in ("cu_seq_lens_q", "seq_idx")):
            raise ValueError("sublayers r tell texts in a row apart by position_ids that restart; give them, too")
        rows = batch.states.shape[0]
        named: dict[str, Any] = {"cache": cache}
        if (tokens := tokens_of(batch)) is not None:
            tokens = tokens.expand(rows, -1)
            if is_tracing(tokens) or not tokens.all():
                named |= {"tokens": tokens, "has_gaps": has_gaps(tokens, cache)}
        elif positions is not None:
            named["texts"] = separate(positions, rows)
        return Inputs(named)

    def forward(
        self,
        hidden_states: torch.Tensor,
        tokens: torch.Tensor | None = None,
        has_gaps: bool = False,
        texts: Packing | None = None,
        cache: Cache | None = None,
        read_positions: torch.Tensor | None = None,
        packing: Packing | None = None,
        slot: Any = None,
    ) -> tuple[torch.Tensor, None]:
        """Read all tokens, and return all positions or only `read_positions` (batch or 1, kept).

        Args:
            hidden_states: (batch, length, hidden), or packed tokens (1, tokens, hidden).
            tokens: where there is no padding, (batch, length); None: everywhere.
            has_gaps: whether padding may stand between tokens.
            texts: rows of their own for several texts in a row.
            cache: holds the state and the last tokens before the convolution.
            read_positions: the only ones whose output is mapped and returned.
            packing: where packed tokens belong.
            slot: of the cache.
        """
        own, conv_state, state = self.shape, None, None
        gate, rows = self.in_proj(hidden_states).split([own.width, own.inner_width - own.width], -1)
        rows = rows if packing is None else packing.pad(rows)
        shape = rows.shape[:2]
        if texts is not None:
            rows = texts.pad(rows.flatten(0, 1)[None])
            tokens = texts.pad(rows.new_ones(1, shape.numel(), dtype=torch.bool))
        if cache is not None:
            # channels come before tokens there
            conv_state, state = cache.get_conv_state(slot), cache.get_recurrent_state(slot)
        channels, numbers = rows.split([own.channels, rows.shape[-1] - own.channels], -1)
        channels, conv_state = self.convolve(channels, tokens, has_gaps, conv_state)
        mixed, state = self.mix(channels, numbers, tokens, state)
        if texts is not None:
            mixed = texts.pack(mixed)[0].unflatten(0, shape)
            # the last text of each row goes on
            last = texts.index[shape[1] - 1 :: shape[1]] // texts.length  # type: ignore[index]
            conv_state, state = conv_state[last], state[last]
        if cache is not None:
            cache.update_conv_state(conv_state.mT, slot)
            cache.update_recurrent_state(state, slot)
            # transformers asks a slot how many tokens it has seen
            counted = mixed.new_ones(shape[0], 1, shape[1], 1, dtype=torch.uint8)
            cache.update(counted, counted[..., :0], slot)
        mixed = mixed if packing is None else packing.pack(mixed)
        if read_positions is not None:
            mixed, gate = select_positions(mixed, read_positions), select_positions(gate, read_positions)
        return self.out_proj(self.close(mixed, gate)), None

    def convolve(
        self, channels: torch.Tensor, tokens: torch.Tensor | None, has_gaps: bool, conv_state: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mix each token with the few before it, channel by channel: (batch, length, channels) -> the same.

        Returns also the last ones, for tokens to come: (batch, kernel - 1, channels), in 32 bits at least.
        """
        before, places = self.shape.conv_kernel - 1, None
        channels = channels if tokens is None else channels.masked_fill(~tokens[..., None], 0)
        if conv_state is None:
            channels = pad(channels, (0, 0, before, 0))
        else:
            channels = torch.cat([conv_state[..., -before:].mT.type_as(channels), channels], 1)
        if has_gaps and tokens is not None:
            # padding moves to the front, before what is remembered
            places = behind_padding(pad(tokens, (before, 0), value=True))
            channels = move(channels[:, None], places)[:, 0]
        dtype = torch.promote_types(channels.dtype, torch.float32)
        conv_state = channels[:, channels.shape[1] - before :].to(dtype)
        mixed = self.conv1d(channels)
        if places is not None:
            mixed = select_positions(mixed, (places[:, before:] - before).clamp(min=0))
        return silu(mixed), conv_state

    def split(self, channels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Divide channels (batch, length, channels) into values, keys and queries: (batch, length, heads, width)."""
        own = self.shape
        value, key, query = channels.split([own.width, *[own.groups * own.state_size] * 2], -1)
        value = value.unflatten(-1, (own.heads, own.head_dim))
        return value, *(each.unflatten(-1, (own.groups, own.state_size)) for each in (key, query))

    def step_sizes(self, numbers: torch.Tensor, tokens: torch.Tensor | None) -> torch.Tensor:
        """Turn a number for each head into how much a token changes the state: (batch, length, heads); padding: 0."""
        dtype = torch.promote_types(numbers.dtype, torch.float32)
        steps = softplus(numbers.to(dtype) + self.dt_bias)
        return steps if tokens is None else steps.masked_fill(~tokens[..., None], 0)

    def mix(
        self, channels: torch.Tensor, numbers: torch.Tensor, tokens: torch.Tensor | None, state: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the recurrence over convolved channels and numbers of heads: (batch, length, width), and its state."""
        raise NotImplementedError

    def close(self, mixed: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Normalise and gate what was read: (batch, length, width) each."""
        raise NotImplementedError


class Mamba2(Recurrence):
    """The recurrence of Mamba-2: decays and what is written depend on the same step, and values pass by, too."""

    def __init__(self, config, slot: int):
        super().__init__(config, slot)
        self.least_step = config.recurrence_time_step_min
        self.D = nn.Parameter(torch.ones(self.shape.heads))
        self.norm = GroupedRMSNorm(self.shape.width, self.shape.groups, config.layer_norm_eps)

    def draw_weights(self, config) -> None:
        """Begin with the decay rates 1, 2, 3 and so on, one for each head."""
        super().draw_weights(config)
        init.copy_(self.A_log, torch.arange(1, self.shape.heads + 1).log())
        init.ones_(self.D)
        init.zeros_(self.conv1d.bias)  # type: ignore[arg-type]

    def mix(self, channels, numbers, tokens, state) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Recurrence.mix`."""
        value, key, query = self.split(channels)
        steps = self.step_sizes(numbers, None).clamp(min=self.least_step)
        steps = steps if tokens is None else steps.masked_fill(~tokens[..., None], 0)
        rates = -self.A_log.to(steps.dtype).exp()
        if runs_kernels(value, is_mamba_2_ssm_available):
            earlier = None if state is None else state.mT
            options = {"initial_states": earlier, "return_final_states": True}
            read, state = mamba2_chunk_scan(value, steps, rates, key, query, self.shape.chunk_size, **options)
            state = state.mT
        else:
            written = value * steps[..., None]
            read, state = attend_linearly(query, key, written, steps * rates, None, state, self.shape.chunk_size)
        return (read + self.D[:, None] * value).flatten(2).type_as(channels), state

    def close(self, mixed, gate) -> torch.Tensor:
        """See `Recurrence.close`; the gate comes first."""
        return self.norm(mixed * silu(gate))


class GatedDelta(Recurrence):
    """The gated delta rule: keys and queries have the length 1, and a token writes what its key does not yet give."""

    def __init__(self, config, slot: int):
        super().__init__(config, slot)
        self.largest_rate = 2.0 if config.recurrence_allow_neg_eigval else 1.0
        self.norm = GroupedRMSNorm(self.shape.head_dim, 1, config.layer_norm_eps)

    def draw_weights(self, config) -> None:
        """Begin with decay rates of any size."""
        super().draw_weights(config)
        init.copy_(self.A_log, torch.empty_like(self.A_log).uniform_(LEAST_RATE, LARGEST_RATE).log())

    def mix(self, channels, numbers, tokens, state) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Recurrence.mix`."""
        value, key, query = self.split(channels)
        decays, rate = numbers.chunk(2, -1)
        steps = self.step_sizes(decays, tokens)
        log_decay = steps * -self.A_log.to(steps.dtype).exp()
        rate = self.largest_rate * rate.sigmoid()
        rate = rate if tokens is None else rate.masked_fill(~tokens[..., None], 0)
        if runs_kernels(value, is_flash_linear_attention_available):
            options = {"initial_state": state, "output_final_state": True, "use_qk_l2norm_in_kernel": True}
            read, state = torch_chunk_gated_delta_rule(query, key, value, log_decay, rate, **options)
        else:
            query, key = (x * (x.square().sum(-1, keepdim=True) + LENGTH_EPS).rsqrt() for x in (query, key))
            query = query * self.shape.state_size**-0.5
            read, state = attend_linearly(query, key, value, log_decay, rate, state, self.shape.chunk_size)
        return read.flatten(2).type_as(channels), state

    def close(self, mixed, gate) -> torch.Tensor:
        """See `Recurrence.close`; heads are normalised before they are gated."""
        heads = self.norm(mixed.unflatten(-1, (self.shape.heads, -1))).flatten(-2)
        return heads * silu(gate)


KINDS = {"mamba2": Mamba2, "gated_delta": GatedDelta}


def build(config, order: Order, place: int, is_causal: bool) -> Sublayer:
    """Make the sublayer at a place of an order."""
    return Sublayer(config, KINDS[config.recurrence](config, order.slot(place)))
