"""Dynamic and lightweight convolution, two mixers of the stack, and what short convolutions share with them.

Wu et al. (2019), "Pay Less Attention with Lightweight and Dynamic Convolutions".
"""

from typing import Any

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask
from transformers.cache_utils import Cache

from .order import Order
from .mixers_mixer import Batch, Inputs, Mixer
from .plan import Packing, select_positions
from .sublayer import Sublayer

# positions that share a matrix; more of them would add zeros
BLOCK = 64


def convolve(windows: torch.Tensor, kernels: torch.Tensor) -> torch.Tensor:
    """Sum what lies under the kernel of each position.

    (batch, heads, length + width - 1, head_dim), (batch or 1, heads, length, width) -> (batch, heads, length,
    head_dim).
    """
    length, width = kernels.shape[-2:]
    # an exported graph computes the same at every length
    is_exported = torch.jit.is_tracing() or torch.compiler.is_exporting()
    if is_exported or length <= BLOCK:
        return band(kernels) @ windows
    number = -(-length // BLOCK)
    size = -(-length // number)
    missing = number * size - length
    kernels = nn.functional.pad(kernels, (0, 0, 0, missing)).unflatten(-2, (number, size))
    windows = nn.functional.pad(windows, (0, 0, 0, missing)).unfold(-2, size + width - 1, size)
    return (band(kernels) @ windows.transpose(-1, -2)).flatten(-3, -2)[..., :length, :]


def band(kernels: torch.Tensor) -> torch.Tensor:
    """Let each kernel stand one place further right than the one before: (..., length, width + length - 1).

    At the lengths of sentences the product of such a matrix is several times as fast as sums over copies of all
    windows, and takes less memory.
    """
    length = kernels.shape[-2]
    rows = nn.functional.pad(kernels, (0, length)).flatten(-2)
    return rows[..., :-length].unflatten(-1, (length, -1))


def sum_under(
    kernel: torch.Tensor,
    windows: torch.Tensor,
    before: int,
    texts: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sum what lies under a short kernel of each channel, whose place number `before` is the position itself.

    (width, channels), (batch, length + width - 1, channels) -> (batch, length, channels). Of a row with several
    `texts`, which are numbered for each position, (batch or 1, length), each position sees its own. The `bias`,
    (channels,), is added.
    """
    width = len(kernel)
    # not `length`: torch.jit.trace compares graphs by names, and callers have another value of that one
    number = windows.shape[1] - width + 1
    if texts is not None:
        others = nn.functional.pad(texts, (before, width - 1 - before), value=-1)
    mixed = windows[:, before : before + number] * kernel[before]
    mixed = mixed if bias is None else mixed + bias
    for i in range(width):
        if i == before:
            continue
        seen = windows[:, i : i + number]
        if texts is not None:
            seen = seen.masked_fill((others[:, i : i + number] != texts)[..., None], 0)
        mixed = torch.addcmul(mixed, seen, kernel[i])
    return mixed


def find_tokens(mask: torch.Tensor | BlockMask, new_length: int, past_length: int | torch.Tensor) -> torch.Tensor:
    """Tell the new tokens from padding by its mask or by that of any attention backend: (batch or 1, new length)."""
    if isinstance(mask, BlockMask):
        queries = torch.arange(new_length, device=mask.kv_num_blocks.device)
        rows = torch.arange(mask.shape[0], device=queries.device)[:, None]
        seen = mask.mask_mod(rows, rows.new_zeros(()), queries, queries + past_length)
        return seen.expand(len(rows), -1)
    if mask.ndim == 2:
        return mask[:, -new_length:].bool()
    # on the diagonal, a token sees itself and padding does not
    queries = torch.arange(new_length, device=mask.device)
    seen = mask[:, 0, queries, queries + past_length]
    return seen if seen.dtype == torch.bool else seen == 0


def tokens_of(batch: Batch, *names: str) -> torch.Tensor | None:
    """Tell the new tokens of a batch from padding, (batch or 1, length); None: no mask was given.

    Of masks that transformers makes ahead, one of all positions or, before it, one of these names.
    """
    mask, cache = batch.attention_mask, batch.cache
    if isinstance(mask, dict):
        mask = next((mask[name] for name in (*names, "full_attention") if name in mask), None)
    if mask is None:
        return None
    return find_tokens(mask, batch.states.shape[1], 0 if cache is None else cache.get_seq_length())


class Convolution(Mixer):
    """A gate, if any, and a convolution for each head: (batch, length, hidden) -> (batch, length or kept, hidden).

    The kernels (softmax over their width) are made from each position's own state, or are the same everywhere.
    Encoders centre them; those of a decoder end at the position itself.
    """

    def __init__(self, config, layer_idx: int, kernel_size: int, is_causal: bool, is_dynamic: bool):
        super().__init__()
        self.layer_idx = layer_idx
        self.num_heads = config.num_attention_heads
        self.before = kernel_size - 1 if is_causal else (kernel_size - 1) // 2
        self.after = kernel_size - 1 - self.before
        self.is_dynamic = is_dynamic
        self.is_gated = config.gated_convolutions
        self.in_proj = nn.Linear(config.hidden_size, (1 + self.is_gated) * config.hidden_size)
        # a kernel that is the same at all positions is a projection of the number 1
        in_features = config.hidden_size if is_dynamic else 1
        self.weight_proj = nn.Linear(in_features, self.num_heads * kernel_size, bias=False)
        self.dropout = nn.Dropout(config.attention_dropout)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size)

    @property
    def output_map(self) -> nn.Module:
        """The linear map whose result joins the residual stream."""
        return self.out_proj

    def prepare(self, batch: Batch, **kwargs) -> Inputs:
        """Tell tokens from padding."""
        return Inputs({"tokens": tokens_of(batch), "cache": batch.cache})

    def split_heads(self, states: torch.Tensor, packing: Packing | None = None) -> torch.Tensor:
        """Lay states out by head: (batch, length, channels) -> (batch, heads, length, channels / heads)."""
        states = states if packing is None else packing.pad(states)
        return states.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def make_kernels(self, states: torch.Tensor, packing: Packing | None) -> torch.Tensor:
        """Make the kernels of all positions, (batch, heads, length, width), or one, (1, heads, 1, width)."""
        if self.is_dynamic:
            kernels = self.split_heads(self.weight_proj(states), packing)
        else:
            kernels = self.split_heads(self.weight_proj(states.new_ones(1, 1, 1)))
        return self.dropout(nn.functional.softmax(kernels, dim=-1, dtype=torch.float32).to(states.dtype))

    def windows(self, states: torch.Tensor, cache: Cache | None, slot: int) -> torch.Tensor:
        """Put the states before and after around new ones, (batch, heads, length, head_dim)."""
        if cache is None:
            return nn.functional.pad(states, (0, 0, self.before, self.after))
        # counted before the update, since a static cache counts in place
        positions = torch.arange(-self.before, states.shape[2], device=states.device)
        positions = positions + cache.get_seq_length(slot)
        past, _ = cache.update(states, states, slot)
        return past.index_select(2, positions.clamp(min=0)).masked_fill(positions[:, None] < 0, 0)

    def forward(
        self,
        hidden_states: torch.Tensor,
        tokens: torch.Tensor | None = None,
        cache: Cache | None = None,
        read_positions: torch.Tensor | None = None,
        packing: Packing | None = None,
        slot: Any = None,
    ) -> tuple[torch.Tensor, None]:
        """Mix all positions, or return only `read_positions` (batch or 1, kept).

        Where `tokens` (batch or 1, length) is false, there is padding. It counts as zeros, as all outside of the text.
        With a packing, hidden states and positions are those of the packed tokens, (1, tokens, hidden) and (1, kept),
        and rows exist between the projections only.
        """
        states = self.in_proj(hidden_states)
        states = nn.functional.glu(states) if self.is_gated else states
        kernels = self.make_kernels(states, packing)
        states = self.split_heads(states, packing)
        if tokens is not None:
            states = states.masked_fill(~tokens[:, None, :, None], 0)
        kernels = kernels.expand(-1, -1, states.shape[2], -1)
        mixed = convolve(self.windows(states, cache, slot), kernels).transpose(1, 2).flatten(2)
        mixed = mixed if packing is None else packing.pack(mixed)
        return self.out_proj(mixed if read_positions is None else select_positions(mixed, read_positions)), None


def build_convolution(config, order: Order, place: int, is_causal: bool, is_dynamic: bool) -> Sublayer:
    """Make the sublayer at a place of an order; the convolutions of a stack share the list of kernel sizes."""
    number = sum(order.kinds[first].group == "convolution" for first in order.first_places if first < place)
    kernel_size = config.kernel_sizes[: number + 1][-1]
    return Sublayer(config, Convolution(config, order.slot(place), kernel_size, is_causal, is_dynamic))
