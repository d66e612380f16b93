"""How long stacks of sublayers take."""

from copy import copy
from dataclasses import replace
from functools import partial
from math import inf
from statistics import median
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from sublayers.configuration.alphabet import ALPHABET
from sublayers.configuration.configuration_recurrent_lm import RecurrentLMConfig
from sublayers.configuration.configuration_reordered_bert import ReorderedBertConfig
from sublayers.configuration.configuration_sandwich_lm import SandwichLMConfig
from sublayers.configuration.configuration_sublayers import SublayersConfig
from sublayers.configuration.order import Order
from sublayers.configuration.sublayer_cost import READS, read_positions
from sublayers.modeling.body import shared_positions
from sublayers.modeling.linear import run_in_onednn
from sublayers.modeling.mixers.mixer import Batch, Source
from sublayers.modeling.plan import Plan
from sublayers.modeling.stack import SublayerStack
from sublayers.training.metrics.timing import Call, time_in_turn

REPEATS = 9


def can_be_measured(config: SublayersConfig) -> bool:
    """Say whether a family's stacks run on their own; those with memory do not."""
    return not isinstance(config, RecurrentLMConfig)


def milliseconds(
    config: SublayersConfig, orders: list[str], length: int, reads: list[str], rows: int = 1, seconds: float = inf
) -> dict[str, dict[str, float]]:
    """Measure what `time_stacks` measures, as the medians of the rounds. Raises what it raises."""
    times = time_stacks(config, orders, length, reads, rows, seconds)
    return {order: {read: median(measured) for read, measured in by_read.items()} for order, by_read in times.items()}


@torch.inference_mode()
def time_stacks(
    config: SublayersConfig, orders: list[str], length: int, reads: list[str], rows: int = 1, seconds: float = inf
) -> dict[str, dict[str, list[float]]]:
    """Measure how long stacks of these orders take for some sequences, in turn, in each of some rounds: ms.

    Args:
        config: of the family, with its sizes.
        orders: what is run; all share their sublayers, so that many need little memory.
        length: tokens of a sequence and, for cross-attention, of its source.
        reads: which positions are read, see `price`; "next" is a token that a decoder generates after them.
        rows: how many sequences.
        seconds: for each of the reads, after which no new round begins.

    Raises:
        ValueError: the family has memory, whose stacks need more than a sequence.
    """
    if not can_be_measured(config):
        raise ValueError(f"milliseconds of {config.model_type} are not measured here; give another --cost")
    config = copy(config)
    # what models take by default
    config._attn_implementation, config._experts_implementation = "sdpa", "grouped_mm"
    counted = [Order(order).counts for order in orders]
    pool = Order("".join(letter * max(counts[letter] for counts in counted) for letter in ALPHABET))
    # a mask that hides half of the keys halves the work
    is_causal = isinstance(config, SandwichLMConfig) or "c" in pool
    stack = SublayerStack(config, pool, is_causal).eval()
    run_in_onednn(stack)
    # all orders run the same weights, and each order has its sublayers at other places of the stack
    stacks = {order: copy(stack) for order in orders}
    for order in orders:
        stacks[order].set_order(Order(order))
    text = torch.randn(rows, length, config.hidden_size)
    positions = shared_positions(config)
    takes_mean = isinstance(config, ReorderedBertConfig) and config.tail_query == "mean"

    def batch(states: torch.Tensor, plan: Plan, cache: EncoderDecoderCache | None = None) -> Batch:
        own = None if cache is None else cache.self_attention_cache
        start = 0 if own is None else own.get_seq_length()
        numbers, source = torch.arange(start, start + states.shape[1])[None], Source(text, cache=cache)
        return Batch(states, plan, numbers=numbers, cache=own, positions=positions, source=source)

    def decode(order: str, cache: EncoderDecoderCache) -> None:
        stacks[order](token, batch(token, Plan.of(token), cache))

    token = text[:, -1:]
    found: dict[str, dict[str, list[float]]] = {order: {} for order in orders}
    for read in reads:
        places = torch.arange(length - read_positions(length)[READS.get(read, "one")], length)[None]
        calls: dict[Any, Call] = {}
        for order in orders:
            plan = Plan.of(text, read=None if read == "all" else places, takes_mean=takes_mean and read == "one")
            if read == "next":
                # the cache reads from the configuration what each slot keeps
                own = config if config.is_encoder_decoder else config.with_orders({"sublayer_order": order})
                cache = EncoderDecoderCache(DynamicCache(config=own), DynamicCache())
                stacks[order](text, batch(text, plan, cache))
                calls[order] = partial(decode, order, cache)
                continue
            # the time of what all sublayers share, such as masks, is not counted
            whole = batch(text, plan)
            plan, layout = stacks[order].lay_out(whole)
            inputs = stack.prepare(replace(whole, plan=plan))
            calls[order] = partial(stack.run, text, plan, inputs, layout, stacks[order].steps)
        times = time_in_turn(f"timing, {length} tokens, {read} read", calls, REPEATS, text.device, seconds)
        for order in orders:
            found[order][read] = times[order]
    return found
