"""The choice of an order for each sentence: the predictor, what teaches it, and the rows that each order runs.

Zhu et al. (2021), section 3.
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_outputs import ModelOutput
from transformers.utils.import_utils import is_tracing

# of all rows, or of each (batch,)
Order = int | torch.Tensor


def mean_state(states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """Average the states (batch, length, hidden) that the mask (batch, length) shows: (batch, hidden)."""
    if attention_mask is None:
        return states.mean(1)
    weights = attention_mask.to(states.dtype)[..., None]
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1)


class OrderPredictor(nn.Linear):
    """Score the orders for each sentence by the mean of its states: (batch, hidden) -> (batch, orders).

    It takes what nn.Linear takes, as adapters beside a linear map read the same input.
    """

    def __init__(self, hidden_size: int, num_orders: int, dropout: float):
        super().__init__(hidden_size, num_orders, bias=False)
        self.dropout = dropout

    def forward(self, means: torch.Tensor) -> torch.Tensor:
        """Score, and drop scores in training."""
        return nn.functional.dropout(super().forward(means), self.dropout, self.training)


class OrderStatistics(NamedTuple):
    """What a part of a batch does not know by itself: the sentences in all, and the mean probability of each order.

    Orders of the encoder (M,) and of the decoder (N,), or None where they are not predicted.
    """

    num_sentences: int | None
    encoder_probabilities: torch.Tensor | None
    decoder_probabilities: torch.Tensor | None


def clamp(probabilities: torch.Tensor, least: float) -> torch.Tensor:
    """Keep each of the probabilities (..., orders) between the least one and what that leaves."""
    return probabilities.clamp(least, 1 - (probabilities.shape[-1] - 1) * least)


def confidences(logits: torch.Tensor, config: Any, temperature: float) -> torch.Tensor:
    """Draw the weight of each order from the scores of some passes (equations 1 and 2).

    (passes, batch, orders) -> (batch, orders)
    """
    probabilities = logits.float().softmax(-1)
    if config.clamp_gumbel:
        probabilities = clamp(probabilities, config.min_order_probability)
    drawn = list(probabilities) if config.gumbel_per_pass else [probabilities.mean(0)]
    samples = [nn.functional.gumbel_softmax(each.log(), tau=temperature, dim=-1) for each in drawn]
    return torch.stack(samples).mean(0)


def divergence_from_uniform(probabilities: torch.Tensor) -> torch.Tensor:
    """KL divergence of the uniform distribution from others, in nats: (..., orders) -> (...)."""
    return -probabilities.log().mean(-1) - math.log(probabilities.shape[-1])


def auxiliary_losses(
    logits: torch.Tensor, config: Any, whole: torch.Tensor | None, num_sentences: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Say how unequally the orders are used, and how undecided the choices are (equations 5 and 6).

    The losses () of scores (passes, batch, orders) are means over the batch. If it is a part of one with
    `num_sentences`, whose mean probabilities are `whole` (orders,), they are this part's share of that one's.
    """
    passes = logits.float().softmax(-1)
    num_sentences = num_sentences or passes.shape[1]
    mean = passes.mean(0).sum(0) / num_sentences
    if whole is None:
        diversity = divergence_from_uniform(mean)
    else:
        # the gradient of the whole batch's divergence reaches each part through its share of the mean
        slope = -1 / (len(whole) * whole)
        diversity = mean.detach().sum() * divergence_from_uniform(whole) + (slope * (mean - mean.detach())).sum()
    decided = divergence_from_uniform(clamp(passes, config.min_order_probability).mean(0))
    return diversity, -decided.sum() / num_sentences


def drop_blocks(rate: float, num_blocks: int, num_sublayers: int) -> set[int]:
    """Draw the places of an order whose blocks a training step leaves out (LayerDrop, Fan et al. 2019)."""
    length = num_sublayers // num_blocks
    dropped = (torch.rand(num_blocks) < rate).tolist() if rate else []
    return {length * block + place for block, drop in enumerate(dropped) if drop for place in range(length)}


class CacheByOrder(Cache):
    """A cache for the rows of each order, all of the kind of an empty one."""

    is_compileable = False

    def __init__(self, empty: Cache):
        super().__init__(layers=empty.layers)
        self.empty = empty
        self.parts: dict[int, Cache] = {}
        self.rows: dict[int, torch.Tensor] = {}

    def part(self, order: int, rows: torch.Tensor) -> Cache:
        """Return the cache of an order, whose rows (rows,) are the same at every step."""
        if order not in self.parts:
            self.parts[order], self.rows[order] = copy.deepcopy(self.empty), rows
            # whoever asks for lengths is told these, all are alike
            self.layers = self.parts[order].layers
        return self.parts[order]

    def reorder_cache(self, beam_idx: torch.LongTensor):
        """Let beams trade places within their source, and so within their order."""
        for order, part in self.parts.items():
            rows = self.rows[order]
            part.reorder_cache(torch.searchsorted(rows, beam_idx[rows]))  # type: ignore[arg-type]

    def crop(self, tokens_to_remove: int) -> None:
        """Remove tokens from every part."""
        for part in self.parts.values():
            part.crop(tokens_to_remove)

    def reset(self) -> None:
        """Empty every part."""
        for part in self.parts.values():
            part.reset()


def cache_of_order(cache: EncoderDecoderCache, order: int, rows: torch.Tensor) -> EncoderDecoderCache:
    """Return the cache of an order, whose rows are (rows,), within that of all rows, which is divided if it is empty.

    Raises:
        ValueError: the cache was filled when all rows had one order.
    """
    for name in ("self_attention_cache", "cross_attention_cache"):
        whole = getattr(cache, name)
        if not isinstance(whole, CacheByOrder):
            if whole.get_seq_length():
                raise ValueError("this cache holds rows of one order; force that order again, or give a new cache")
            setattr(cache, name, CacheByOrder(whole))
    caches: Any = (cache.self_attention_cache, cache.cross_attention_cache)
    return EncoderDecoderCache(*(whole.part(order, rows) for whole in caches))


def rows_by_order(order: torch.Tensor) -> dict[int, torch.Tensor]:
    """Find the rows that chose each of the orders (batch,)."""
    return {int(number): (order == number).nonzero()[:, 0] for number in order.unique()}


def select_rows(inputs: dict[str, torch.Tensor | None], rows: torch.Tensor | None) -> dict[str, torch.Tensor | None]:
    """Take some rows of inputs (batch or 1, ...), or None for all; a single row is that of the whole batch."""
    if rows is None:
        return inputs
    return {name: value if value is None or len(value) == 1 else value[rows] for name, value in inputs.items()}


def merge_outputs(outputs: Sequence[ModelOutput], merge: Callable[[list[torch.Tensor]], torch.Tensor]) -> ModelOutput:
    """Make one output of several, tensor by tensor."""
    first = outputs[0]
    merged: dict[str, Any] = {}
    for name in first:
        values = [output[name] for output in outputs]
        if isinstance(first[name], torch.Tensor):
            merged[name] = merge(values)
        elif isinstance(first[name], tuple):
            # states that nobody asked for are None
            parts = zip(*values, strict=True)
            merged[name] = tuple(None if each[0] is None else merge([*each]) for each in parts)
    return type(first)(**merged)


def choose_order(forced: Order | None, logits: torch.Tensor | None, orders: Sequence[str], batch: int) -> Order:
    """Choose the order of each row (batch,) by its scores (batch, orders), or one for all (equation 4).

    Raises:
        ValueError: a forced order that there is not, or one for another number of rows.
    """
    if forced is None:
        return 0 if logits is None else logits.argmax(-1)
    numbers = [forced]
    if isinstance(forced, torch.Tensor):
        if forced.shape != (batch,):
            raise ValueError(f"forced orders of shape {(*forced.shape,)} do not fit {batch} sources; give one for each")
        # a graph that is traced cannot depend on them
        numbers = [] if is_tracing(forced) else forced.tolist()
    for number in numbers:
        if not 0 <= number < len(orders):
            raise ValueError(f"there is no order {number}; give a position from 0 to {len(orders) - 1} in {[*orders]}")
    return forced


def order_of_each_row(order: Order, batch: int, device: torch.device) -> torch.Tensor:
    """Give each row its order: (batch,)."""
    return order if isinstance(order, torch.Tensor) else torch.full((batch,), order, device=device)


def run_rows(
    order: Order, num_orders: int, run: Callable[[int, torch.Tensor | None], ModelOutput], dense: bool
) -> ModelOutput:
    """Run each row in its order, and bring the outputs back into the rows' places.

    `run` takes an order and its rows, or None for all of them. A `dense` run makes every row in every order and then
    selects, since a graph that is traced cannot depend on who chose what.
    """
    if isinstance(order, int):
        return run(order, None)
    if dense:
        rows = torch.arange(order.shape[0], device=order.device)
        every = [run(number, None) for number in range(num_orders)]
        return merge_outputs(every, lambda tensors: torch.stack(tensors)[order, rows])
    rows_of = rows_by_order(order)
    if len(rows_of) == 1:
        return run(next(iter(rows_of)), None)
    places = torch.cat([*rows_of.values()]).argsort()
    parts = [run(number, rows) for number, rows in rows_of.items()]
    return merge_outputs(parts, lambda tensors: torch.cat(tensors)[places])
