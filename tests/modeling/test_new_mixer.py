"""What a new kind of sublayer costs: a module, a row of the alphabet and a builder."""

import pytest
import torch
from common import randomize, tokens
from families import small
from torch import nn

from sublayers import PARBertConfig, PARBertForSequenceClassification, SandwichLMConfig, SandwichLMForCausalLM, compact
from sublayers.configuration.alphabet import ALPHABET, Letter
from sublayers.configuration.sublayer_cost import cache_bytes, flops, parameters
from sublayers.configuration.sublayer_order import tail_start
from sublayers.hub.model_card import stacks
from sublayers.modeling.plan import Plan, select_positions
from sublayers.modeling.stack import BUILDERS
from sublayers.modeling.sublayer import Sublayer
from sublayers.training import cli


class Mean(nn.Module):
    """The mean of a sequence, mapped: (batch, length, hidden) -> (batch, length or kept, hidden)."""

    reads_source = False

    def __init__(self, hidden_size: int):
        super().__init__()
        self.map = nn.Linear(hidden_size, hidden_size, bias=False)

    @property
    def output_map(self):
        return self.map

    def forward(self, hidden_states, read_positions=None, **kwargs):
        states = self.map(hidden_states.mean(1, keepdim=True).expand_as(hidden_states))
        return states if read_positions is None else select_positions(states, read_positions), None


@pytest.fixture
def mean(monkeypatch):
    row = Letter(
        "mean",
        "#000000",
        "⬛",
        stacks=("single",),
        cache=None,
        is_position_wise=False,
        parameters=lambda sizes: sizes.hidden_size**2,
        multiply_adds=lambda sizes, work: work.read * sizes.hidden_size**2,
        tensor_parallel_plan={},
    )
    monkeypatch.setitem(ALPHABET, "m", row)
    monkeypatch.setitem(BUILDERS, "m", lambda config, *place: Sublayer(config, Mean(config.hidden_size)))


@pytest.mark.usefixtures("mean")
def test_a_row_and_a_builder_make_a_letter_part_of_every_order():
    assert compact("mmsfsf") == "m2(sf)2"
    assert tail_start("sfmff") == 3
    assert parameters("mf", 8, 16) == 8 * 8 + 16 + parameters("f", 8, 16)
    assert flops("m", 8, 16, length=5, read=2) == 2 * 2 * 64
    assert cache_bytes("ms", 8, 5) == cache_bytes("s", 8, 5)

    config = small(PARBertConfig, sublayer_order="fmf")
    model = randomize(PARBertForSequenceClassification(config)).eval()
    assert config.num_hidden_layers == 0
    batch = tokens(2, 7)
    every = model.model(batch).last_hidden_state
    torch.testing.assert_close(
        model.model(batch, plan=Plan(batch, read=torch.tensor([[3]]))).last_hidden_state, every[:, 3:4]
    )
    mixer = model.model.layers[1].mixer
    weight = mixer.map.weight.clone()
    nn.init.zeros_(mixer.map.weight)
    assert not torch.allclose(model.model(batch).last_hidden_state, every)
    assert weight.shape == (config.hidden_size, config.hidden_size)
    assert stacks(config)[0]["drawing"] == "🟪⬛🟪"


@pytest.mark.usefixtures("mean")
def test_commands_draw_and_count_a_new_letter(capsys):
    cli.main(["order", "smf", "--hidden-size", "8"])
    drawn = capsys.readouterr().out
    assert "mean" in drawn
    assert " m " in drawn


def test_a_letter_without_a_row_or_a_builder_is_not_taken_for_another(mean, monkeypatch):
    monkeypatch.delitem(BUILDERS, "m")
    config = small(SandwichLMConfig, sublayer_order="mf")
    with pytest.raises(KeyError, match=r"^'m'$"):
        SandwichLMForCausalLM(config)
    monkeypatch.delitem(ALPHABET, "m")
    with pytest.raises(ValueError, match="'m' is not a sublayer"):
        small(SandwichLMConfig, sublayer_order="mf")
