"""What a new kind of sublayer costs: a module, a row of the alphabet and a builder, whatever inputs it needs."""

import ast
from pathlib import Path

import pytest
import torch
from common import randomize, tokens
from families import small
from torch import nn

from sublayers import (
    MacaronSeq2SeqConfig,
    MacaronSeq2SeqForConditionalGeneration,
    PARBertConfig,
    PARBertModel,
    SandwichLMConfig,
    SandwichLMForCausalLM,
    SandwichLMModel,
    compact,
)
from sublayers.configuration.alphabet import ALPHABET, Letter
from sublayers.configuration.sublayer_cost import cache_bytes, flops, parameters
from sublayers.configuration.sublayer_order import tail_start
from sublayers.hub.model_card import stacks
from sublayers.modeling import stack
from sublayers.modeling.mixer import Inputs, Mixer
from sublayers.modeling.plan import Plan, select_positions
from sublayers.modeling.stack import BUILDERS, slot
from sublayers.modeling.sublayer import Sublayer
from sublayers.training import cli

# so far a comb reaches to either side
REACH = 4


class Comb(Mixer):
    """Mix every second token that is near: (batch, length, hidden) -> (batch, length or kept, hidden).

    It has a mask of its own, positions of its own (the nearer, the heavier), and a cache of its own, of states.
    """

    def __init__(self, hidden_size: int, number: int, is_causal: bool):
        super().__init__()
        self.map = nn.Linear(hidden_size, hidden_size, bias=False)
        self.number, self.is_causal = number, is_causal

    @property
    def output_map(self):
        return self.map

    def prepare(self, batch, **kwargs):
        cache, length, past = batch.cache, batch.states.shape[1], 0
        if cache is not None:
            past = cache.get_seq_length()
        places = torch.arange(past + length)
        distances = places[past:, None] - places
        seen = (distances % 2 == 0) & (distances <= REACH) & (distances >= (0 if self.is_causal else -REACH))
        if batch.attention_mask is not None:
            seen = seen & (batch.attention_mask.bool()[:, None] | (distances == 0))
        scores = torch.where(seen, -distances.abs() / 2, -1e9).to(batch.states.dtype)
        return Inputs({"scores": scores.expand(len(batch.states), -1, -1), "cache": cache})

    def narrow(self, inputs, kept, packing, places):
        rows = torch.arange(len(places))[:, None, None]
        scores = inputs.named["scores"][rows, places[:, :, None], places[:, None]]
        real = packing.pad(torch.ones_like(kept, dtype=torch.bool))
        return Inputs({**inputs.named, "scores": scores.masked_fill(~real[:, None], -1e9)})

    def forward(self, hidden_states, scores, cache=None, read_positions=None, packing=None):
        values = self.map(hidden_states)
        values = values if packing is None else packing.pad(values)
        if cache is not None:
            values = cache.update(values[:, None], values[:, None, :, :0], self.number)[0][:, 0]
        if read_positions is not None:
            if packing is not None:
                packing, read_positions = packing.only(read_positions)
            scores = select_positions(scores, read_positions)
        mixed = scores.softmax(-1) @ values
        return (mixed if packing is None else packing.pack(mixed)), None


@pytest.fixture
def comb(monkeypatch):
    row = Letter(
        "comb",
        "#000000",
        "⬛",
        stacks=("single", "encoder", "decoder"),
        cache="self",
        is_position_wise=False,
        parameters=lambda sizes: sizes.hidden_size**2,
        multiply_adds=lambda sizes, work: work.length * sizes.hidden_size**2,
        tensor_parallel_plan={},
        reach=lambda sizes: (REACH, 0 if sizes.is_causal else REACH),
        cache_width=lambda sizes: sizes.hidden_size // 2,
    )

    def build(config, order, index, is_causal):
        return Sublayer(config, Comb(config.hidden_size, slot(order, index), is_causal))

    monkeypatch.setitem(ALPHABET, "y", row)
    monkeypatch.setitem(BUILDERS, "y", build)


def naive(sublayer, states, is_causal):
    """One comb on a text without padding (length, hidden), token by token; norms stand behind sublayers."""
    mapped, mixed = states @ sublayer.mixer.map.weight.T, []
    for i in range(len(states)):
        near = [j for j in range(len(states)) if (i - j) % 2 == 0 and abs(i - j) <= REACH and not (is_causal and j > i)]
        weights = torch.tensor([-abs(i - j) / 2 for j in near]).softmax(0)
        mixed.append(sum(weight * mapped[j] for weight, j in zip(weights, near, strict=True)))
    return sublayer.norm(states + torch.stack(mixed))


def batch_of_three(length=19):
    mask = torch.ones(3, length, dtype=torch.long)
    mask[1, 12:] = 0
    mask[2, 7:] = 0
    return tokens(3, length), mask


@pytest.mark.usefixtures("comb")
def test_a_row_and_a_builder_make_a_letter_part_of_every_order(capsys):
    assert compact("yysfsf") == "y2(sf)2"
    assert tail_start("sfyff") == 3
    assert parameters("yf", 8, 16) == 8 * 8 + 16 + parameters("f", 8, 16)
    # each comb runs for what those behind it reach
    assert flops("yy", 8, 16, length=50, read=1) == 2 * ((1 + 2 * REACH) + (1 + REACH)) * 64
    assert cache_bytes("ys", 8, 5) == 2 * 2 * 5 * 4 + cache_bytes("s", 8, 5)
    assert stacks(small(PARBertConfig, sublayer_order="fyf"))[0]["drawing"] == "🟪⬛🟪"
    cli.main(["order", "syf", "--hidden_size", "8"])
    drawn = capsys.readouterr().out
    assert "comb" in drawn
    assert " y " in drawn


@pytest.mark.usefixtures("comb")
@pytest.mark.parametrize("family", ["bert", "lm"])
def test_equals_a_naive_loop(family):
    kinds = {"bert": (PARBertConfig, PARBertModel), "lm": (SandwichLMConfig, SandwichLMModel)}
    config_class, body_class = kinds[family]
    body = randomize(body_class(small(config_class, sublayer_order="yy", norm_position="post", final_norm=False)))
    body.eval()
    seen = []
    body.layers[0].register_forward_pre_hook(lambda layer, given: seen.append(given[0]))
    found = body(tokens(1, 13)).last_hidden_state[0]
    states = seen[0][0]
    for layer in body.layers:
        states = naive(layer, states, family == "lm")
    torch.testing.assert_close(found, states, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("comb")
@pytest.mark.parametrize("order", ["fyf", "sfyfyf", "yfyf", "yswfyf", "fyfs"])
def test_only_what_is_read_is_computed(order):
    config = small(PARBertConfig, sublayer_order=order, attention_window=3 if "w" in order else None)
    body = randomize(PARBertModel(config)).eval()
    ids, mask = batch_of_three()
    whole = body(ids, attention_mask=mask).last_hidden_state
    read = torch.tensor([[3], [11], [0]])
    widths = []
    for layer in body.layers:
        layer.register_forward_hook(lambda layer, given, states: widths.append(states.shape[:2].numel()))
    alone = body(ids, attention_mask=mask, plan=Plan(ids, mask, read)).last_hidden_state
    torch.testing.assert_close(alone, select_positions(whole, read), atol=1e-5, rtol=1e-5)
    assert widths[-1] == 3
    if order == "sfyfyf":
        # behind the first comb stay those that the second one reaches from the tokens read
        assert widths[1:3] == [(3 + 1 + 8) + (8 + 1) + 7, (3 + 1 + 4) + (4 + 1) + (1 + 4)]
    for i, row in enumerate(mask):
        own = body(ids[i : i + 1, : row.sum()]).last_hidden_state
        torch.testing.assert_close(whole[i : i + 1, : row.sum()], own, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("comb")
@pytest.mark.parametrize("order", ["yf", "syfy", "ywfsy"])
def test_generates_with_its_cache_as_without(order):
    config = small(SandwichLMConfig, sublayer_order=order, attention_window=3 if "w" in order else None)
    model = randomize(SandwichLMForCausalLM(config)).eval()
    ids, mask = batch_of_three(9)
    options = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    cached, anew = (
        model.generate(ids, attention_mask=mask.flip(1), use_cache=cache, **options) for cache in (True, False)
    )
    assert cached.tolist() == anew.tolist()


@pytest.mark.usefixtures("comb")
def test_stands_in_both_stacks_of_an_encoder_decoder():
    config = small(MacaronSeq2SeqConfig, encoder_sublayer_order="fyf", decoder_sublayer_order="fycf")
    model = randomize(MacaronSeq2SeqForConditionalGeneration(config)).eval()
    ids, mask = batch_of_three()
    together = model(ids, attention_mask=mask, decoder_input_ids=tokens(3, 6)).logits
    for i, row in enumerate(mask):
        own = model(ids[i : i + 1, : row.sum()], decoder_input_ids=tokens(3, 6)[i : i + 1]).logits
        torch.testing.assert_close(together[i : i + 1], own, atol=1e-5, rtol=1e-5)


def test_nothing_but_its_builder_names_a_letter():
    for path in sorted(Path(stack.__file__).parent.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            builds = getattr(node, "name", "").startswith("build_") or isinstance(node, ast.AnnAssign)
            names = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
            assert builds or not {*ALPHABET} & {*names}, f"{path.name}: {ast.unparse(node)[:80]}"


def test_a_letter_without_a_row_or_a_builder_is_not_taken_for_another(comb, monkeypatch):
    monkeypatch.delitem(BUILDERS, "y")
    config = small(SandwichLMConfig, sublayer_order="yf")
    with pytest.raises(KeyError, match=r"^'y'$"):
        SandwichLMForCausalLM(config)
    monkeypatch.delitem(ALPHABET, "y")
    with pytest.raises(ValueError, match="'y' is not a sublayer"):
        small(SandwichLMConfig, sublayer_order="yf")
