"""The choice of an order for each sentence: the predictor, what teaches it, and the rows that each order runs.

Zhu et al. (2021), section 3.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.modeling_outputs import ModelOutput
from transformers.utils.import_utils import is_tracing

from .mixers_cross_attention import CrossAttention

# one for all rows, or one for each (batch,)
OrderNumber = int | torch.Tensor


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
    """Keep each of the probabilities (..., orders) at `least` or more, and at most what the others then leave."""
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


def choose_order(
    forced: OrderNumber | None, logits: torch.Tensor | None, orders: Sequence[str], batch: int
) -> OrderNumber:
    """Choose the order of each row (batch,) by its scores (batch, orders), or one for all (equation 4).

    Raises:
        ValueError: a forced order that does not exist, or one for another number of rows.
    """
    if forced is None:
        return 0 if logits is None else logits.argmax(-1)
    numbers = [forced]
    if isinstance(forced, torch.Tensor):
        if forced.shape != (batch,):
            raise ValueError(f"forced orders of shape {(*forced.shape,)} do not fit {batch} sources; give one for each")
        # a traced graph cannot depend on values
        numbers = [] if is_tracing(forced) else forced.tolist()
    for number in numbers:
        if not 0 <= number < len(orders):
            raise ValueError(f"there is no order {number}; give a position from 0 to {len(orders) - 1} in {[*orders]}")
    return forced


def order_of_each_row(order: OrderNumber, batch: int, device: torch.device) -> torch.Tensor:
    """Give each row its order: (batch,)."""
    return order if isinstance(order, torch.Tensor) else torch.full((batch,), order, device=device)


def by_place(
    recorded: Sequence[torch.Tensor], runs: Sequence[tuple[int, tuple[int, ...]]], order: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Sort what each run recorded of all rows (batch, ...) by the place of the run in a row's order, (sources,)."""
    places: tuple[torch.Tensor, ...] = ()
    for number in sorted({number for _, numbers in runs for number in numbers}):
        own = [states for (_, numbers), states in zip(runs, recorded, strict=True) if number in numbers]
        rows = (order == number).repeat_interleave(own[0].shape[0] // order.shape[0])
        rows = rows.view(-1, *[1] * (own[0].ndim - 1))
        places = tuple(torch.where(rows, *each) for each in zip(own, places or own, strict=True))
    return places


def run_rows(
    body: Any, run: Callable[..., ModelOutput], order: OrderNumber, num_blocks: int, *args: Any, **kwargs: Any
) -> ModelOutput:
    """Run an encoder or decoder, each row in its order, and sort what is recorded by the places of the row's order."""
    stack, dropped = body.layers, drop_blocks(body.config.layerdrop * body.training, num_blocks, len(body.layers))
    asked = kwargs.get("output_hidden_states")
    asked = body.config.output_hidden_states if asked is None else asked
    if isinstance(order, torch.Tensor) and not isinstance(asked, bool):
        # the caller counts places of an order, while the stack records runs; all are recorded and sorted below
        kwargs["output_hidden_states"] = asked is not None
    outputs = run(*args, order=order, dropped=dropped, return_dict=True, **kwargs)
    if isinstance(order, int) or not (outputs.get("hidden_states") or outputs.get("cross_attentions")):
        return outputs
    runs = stack.runs(stack.numbers(order), dropped)
    if outputs.get("hidden_states"):
        first, *states = outputs["hidden_states"]
        states = [first, *by_place(states, runs, order)]
        if not isinstance(asked, bool):
            indices = {asked} if isinstance(asked, int) else {*asked}
            states = [each if {i, i - len(states)} & indices else None for i, each in enumerate(states)]
        outputs["hidden_states"] = (*states,)
    if outputs.get("cross_attentions"):
        crossing = [each for each in runs if isinstance(stack[each[0]].mixer, CrossAttention)]
        outputs["cross_attentions"] = by_place(outputs["cross_attentions"], crossing, order)
    return outputs
