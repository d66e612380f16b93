import math
from itertools import product

import pytest
import torch

from sublayers import PARBertConfig, PARTransformerXLConfig, SandwichLMConfig, SandwichSeq2SeqConfig, random_unbalanced
from sublayers.configuration.sublayer_cost import cache_bytes, flops, parameters
from sublayers.training.lab.search.price import Price, price
from sublayers.training.metrics.order_times import can_be_measured, milliseconds

SIZES = {"hidden_size": 16, "intermediate_size": 48, "num_attention_heads": 2}
BERT = PARBertConfig(**SIZES)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("read", "positions"), [("all", 40), ("masked", 6), ("one", 1)])
def test_the_price_of_an_order_is_what_the_order_costs(seed, read, positions):
    order = random_unbalanced(9, seed)
    costs = {"flops": flops(order, 16, 48, 40, positions, num_attention_heads=2)}
    costs |= {"parameters": parameters(order, 16, 48), "cache": cache_bytes(order, 16, 40)}
    for name, cost in costs.items():
        assert price(BERT, "sf", name, 40, read).cost(order) == cost


def test_a_decoder_and_a_model_with_memory_cost_what_theirs_do():
    seq2seq = SandwichSeq2SeqConfig(**SIZES, kernel_sizes=[3, 5])
    assert price(seq2seq, "scf", "flops", 40, "all").cost("sccf") == flops("sccf", 16, 48, 40, 40)
    found = price(seq2seq, "df", "parameters", 40, "all").cost("dfd")
    assert found == parameters("dfd", 16, 48, kernel_size=5, num_attention_heads=2)
    memory = PARTransformerXLConfig(**SIZES, memory_length=24)
    found = price(memory, "sf", "flops", 40, "one").cost("sffsf")
    assert found == flops("sffsf", 16, 48, 40, 1, memory_length=24)


@pytest.mark.parametrize("letters", ["sf", "scf", "df"])
def test_the_expected_cost_is_the_mean_over_all_orders(letters):
    table = Price(*({letter: cost + i for i, letter in enumerate(letters)} for cost in (10.0, 1.0)))
    logits = torch.randn(5, len(letters) + 1, dtype=torch.float64, requires_grad=True)
    probabilities = logits.softmax(-1)
    mean = 0
    # every choice of a letter or nothing in each layer
    for choice in product(range(len(letters) + 1), repeat=5):
        order = "".join([*letters, ""][i] for i in choice)
        probability = math.prod(probabilities[layer, i] for layer, i in enumerate(choice))
        mean = mean + probability * (table.cost(order) if order else 0)
    found = table.expected(letters, probabilities)
    torch.testing.assert_close(found, mean)
    gradients = [torch.autograd.grad(value, logits, retain_graph=True)[0] for value in (found, mean)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("config", [BERT, SandwichLMConfig(**SIZES), SandwichSeq2SeqConfig(**SIZES)])
def test_milliseconds_are_measured_of_stacks_and_of_their_sublayers(config):
    letters = "scf" if config.is_encoder_decoder else "sf"
    orders = [letters, f"({letters})2f3"]
    found = milliseconds(config, orders, 12, ["all", "one"])
    assert [*found] == orders
    assert all(time > 0 for times in found.values() for time in times.values())
    table = price(config, letters, "milliseconds", 12, "one")
    assert {*table.full} == {*table.read} == {*letters}
    assert table.cost(orders[1]) > 0


def test_stacks_with_memory_are_not_measured():
    config = PARTransformerXLConfig(**SIZES)
    assert not can_be_measured(config)
    with pytest.raises(ValueError, match="milliseconds of par_transformer_xl are not measured here"):
        price(config, "sf", "milliseconds", 12, "all")
