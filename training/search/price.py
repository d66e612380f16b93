"""What orders cost: a sum over their sublayers, which has an exact mean where the order is not decided."""

from copy import copy
from functools import partial
from math import inf
from statistics import median
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import Cache, DynamicCache

from sublayers.configuration.alphabet import ALPHABET
from sublayers.configuration.configuration_recurrent_lm import RecurrentLMConfig
from sublayers.configuration.configuration_sandwich_lm import SandwichLMConfig
from sublayers.configuration.configuration_sublayers import SublayersConfig
from sublayers.configuration.sublayer_cost import cache_bytes, flops, parameters, read_positions
from sublayers.configuration.sublayer_order import expand, tail_start
from sublayers.modeling.body import shared_positions
from sublayers.modeling.linear import run_in_onednn
from sublayers.modeling.mixer import Batch, Source
from sublayers.modeling.plan import Plan
from sublayers.modeling.stack import SublayerStack
from sublayers.training.metrics.timing import Call, time_in_turn
from sublayers.training.search.settings import READS, Cost

# more sublayers of a kind in a row, so that the clock sees something
IN_A_ROW = 4
REPEATS = 9


class Price(NamedTuple):
    """What a sublayer of each kind costs.

    From the last attention of an order on, that one included, only the positions that are read are computed.

    Attributes:
        full: by letter, for a sublayer before the last attention.
        read: by letter, for the others.
    """

    full: dict[str, float]
    read: dict[str, float]

    def cost(self, order: str) -> float:
        """Add up the sublayers of an order. Raises what `expand` raises."""
        letters, last = expand(order), tail_start(order) - 1
        return sum((self.full if i < last else self.read)[letter] for i, letter in enumerate(letters))

    def expected(self, letters: str, probabilities: torch.Tensor) -> torch.Tensor:
        """Find the mean cost of the orders that are drawn letter by letter, exactly and with its gradient.

        The layers are drawn independently, so the letter of one says nothing about those behind it. No attention stands
        behind layer l with probability q_l = prod_{j>l} (1 - a_j), where a_j is the probability of an attention in
        layer j. A letter there costs (1 - q_l) * full + q_l * read in the mean, whichever it is: an attention without
        another one behind it is the last one, and a feed-forward sublayer is in the tail. The mean of the sum is the
        sum over all layers and letters.

        Args:
            letters: the candidates of every layer; the identity, which costs nothing, comes after them.
            probabilities: (layers, letters + 1).

        Returns:
            The mean cost, a scalar.
        """
        mixers = [i for i, letter in enumerate(letters) if not ALPHABET[letter].is_position_wise]
        without = 1 - probabilities[:, mixers].sum(1)
        behind = without.flip(0).cumprod(0).flip(0)
        none_behind = torch.cat([behind[1:], behind.new_ones(1)])[:, None]
        full, read = (probabilities.new_tensor([table[letter] for letter in letters]) for table in self)
        return (probabilities[:, :-1] * (full * (1 - none_behind) + read * none_behind)).sum()


def price(config: SublayersConfig, letters: str, cost: Cost, length: int, read: str) -> Price:
    """Find what sublayers of a family cost.

    Args:
        config: of the family, with its sizes.
        letters: the kinds of sublayers.
        cost: FLOPs, parameters, bytes of keys and values in half precision, or milliseconds measured on this machine.
        length: tokens of a sequence.
        read: which of its positions are read: "all", "masked" or "one".

    Raises:
        ValueError: milliseconds of a family with memory.
    """
    if cost == "milliseconds":
        return _measured(config, letters, length, read)
    positions = read_positions(length)[READS[read]]
    sizes = config.sizes._asdict()

    def of(letter: str, read: int) -> float:
        if cost == "flops":
            return flops(letter, length=length, read=read, **sizes)
        return cache_bytes(letter, length=length, **sizes) if cost == "cache" else parameters(letter, **sizes)

    return Price(
        {letter: of(letter, length) for letter in letters}, {letter: of(letter, positions) for letter in letters}
    )


def can_be_measured(config: SublayersConfig) -> bool:
    """Say whether a family's stacks run on their own; those with memory do not."""
    return not isinstance(config, RecurrentLMConfig)


def _measured(config: SublayersConfig, letters: str, length: int, read: str) -> Price:
    single = {letter: letter * (IN_A_ROW if ALPHABET[letter].is_position_wise else 1) for letter in letters}
    full = milliseconds(config, [letter * IN_A_ROW for letter in letters], length, ["all"])
    some = milliseconds(config, [*single.values()], length, [read])
    return Price(
        {letter: full[letter * IN_A_ROW]["all"] / IN_A_ROW for letter in letters},
        {letter: some[row][read] / len(row) for letter, row in single.items()},
    )


@torch.inference_mode()
def milliseconds(
    config: SublayersConfig, orders: list[str], length: int, reads: list[str], rows: int = 1, seconds: float = inf
) -> dict[str, dict[str, float]]:
    """Measure how long stacks of these orders take for some sequences, in turn, as the median of some rounds.

    Args:
        config: of the family, with its sizes.
        orders: what is run; all share their sublayers, so that many need little memory.
        length: tokens of a sequence and, for cross-attention, of its source.
        reads: which positions are read, see `price`; "next" is a token that is generated behind them, by a decoder.
        rows: how many sequences.
        seconds: for each of the reads, after which no new round begins.

    Raises:
        ValueError: the family has memory, whose stacks need more than a sequence.
    """
    if not can_be_measured(config):
        raise ValueError(f"milliseconds of {config.model_type} are not measured here; give another --cost")
    config = copy(config)
    config._attn_implementation = "sdpa"
    expanded = [expand(order) for order in orders]
    pool = "".join(letter * max(order.count(letter) for order in expanded) for letter in ALPHABET)
    # a mask that hides half of the keys halves the work
    is_causal = isinstance(config, SandwichLMConfig) or "c" in pool
    stack = SublayerStack(config, [pool], is_causal).eval()
    stack.set_orders(expanded)
    run_in_onednn(stack)
    text = torch.randn(rows, length, config.hidden_size)
    positions = shared_positions(config)

    def batch(states: torch.Tensor, plan: Plan, cache: Cache | None = None) -> Batch:
        start = 0 if cache is None else cache.get_seq_length()
        numbers = torch.arange(start, start + states.shape[1])[None]
        return Batch(states, plan, numbers=numbers, past_key_values=cache, positions=positions, source=Source(text))

    def decode(order: int, cache: Cache) -> None:
        # whose place is another one in each step
        stack(token, batch(token, Plan(token), cache), order=order)

    token = text[:, -1:]
    found: dict[str, dict[str, float]] = {order: {} for order in orders}
    if "next" in reads:
        # by it the cache knows what each slot keeps
        config.sublayer_order = pool
    for read in reads:
        places = torch.arange(length - read_positions(length)[READS.get(read, "one")], length)[None]
        calls: dict[Any, Call] = {}
        for number, order in enumerate(orders):
            plan = Plan(text, read=None if read == "all" else places)
            if read == "next":
                cache = DynamicCache(config=config)
                stack(text, batch(text, plan, cache), order=number)
                calls[order] = partial(decode, number, cache)
                continue
            # what all sublayers share is not counted
            whole = batch(text, plan)
            leaving, inputs = stack.lay_out(whole, [number]), stack.prepare(whole)
            calls[order] = partial(stack.run, text, plan, inputs, leaving, stack.steps(plan, number, [number]))
        times = time_in_turn(f"timing, {length} tokens, {read} read", calls, REPEATS, text.device, seconds)
        for order in orders:
            found[order][read] = median(times[order])
    return found
