"""What holds for every letter holds for one that somebody added: `tests/modeling/test_new_letter.py` runs this."""

import json
import os
import subprocess
import sys

import pytest
import torch
from common import PAD, randomize, tokens
from families import small
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

import sublayers
from sublayers import (
    IOTSeq2SeqConfig,
    IOTSeq2SeqForConditionalGeneration,
    PARBertConfig,
    PARBertModel,
    SandwichLMConfig,
    SandwichLMForCausalLM,
    SandwichLMModel,
    compact,
)
from sublayers.configuration.order import Order
from sublayers.configuration.sublayer_cost import cache_bytes, flops, parameters
from sublayers.convert.verify import compare
from sublayers.hub.model_card import stacks
from sublayers.modeling.plan import Plan, select_positions
from sublayers.training import cli
from sublayers.training.distill.subsets import take_subset
from sublayers.training.metrics.price import count

GREEDY = {"max_new_tokens": 7, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
SETTINGS = [
    {},
    {"cache_implementation": "static"},
    {"num_beams": 3},
    {"num_beams": 3, "cache_implementation": "static"},
]
# generates with the code of the folder
STRANGER = """
import sys, torch, transformers
_, auto_class, folder = sys.argv
model = getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True)
assert type(model).__module__.startswith("transformers_modules")
ids, mask = torch.load(folder + "/inputs.pt")
torch.save(model.generate(ids, attention_mask=mask, **{options}), folder + "/texts.pt")
""".replace("{options}", repr(GREEDY))
FIELD = {"letter_fields": {"state_size": 6}}


def batch_of_three(length=11):
    mask = torch.ones(3, length, dtype=torch.long)
    mask[1, 7:] = 0
    mask[2, 4:] = 0
    return tokens(3, length), mask


def language_model(order, **options):
    fields = {"state_size": 6} if "y" in order else {}
    fields |= {"attention_window": 3} if "w" in order else {}
    return randomize(SandwichLMForCausalLM(small(SandwichLMConfig, sublayer_order=order, **fields, **options))).eval()


def instance_wise(**options):
    orders = {"encoder_orders": ["sfy", "fsy"], "decoder_orders": ["yscf", "fysc", "ycsf"]}
    blocks = {"num_encoder_blocks": 2, "num_decoder_blocks": 2}
    config = small(IOTSeq2SeqConfig, **orders, **blocks, state_size=6, **options)
    return randomize(IOTSeq2SeqForConditionalGeneration(config)).eval()


def naive(sublayer, states):
    """One moving average on a text without padding (length, hidden), token by token; the norm comes after the sum."""
    mixer = sublayer.mixer
    state, mixed = torch.zeros(6), []
    for token in states:
        state = mixer.decay.sigmoid() * state + mixer.in_proj.weight @ token
        mixed.append(mixer.out_proj.weight @ state)
    return sublayer.norm(states + torch.stack(mixed))


def test_is_the_package_with_the_letter():
    assert "y" in Order("sy")
    assert not sublayers.__file__.endswith("src/sublayers/__init__.py")


def test_the_language_and_the_costs_know_it(capsys):
    assert compact("yysfsf") == "y2(sf)2"
    assert Order("sfyff").tail_start == 3
    assert Order("ysyc").slots("self") == [0, 1, 2]
    assert parameters("yf", 8, 16, **FIELD) == 6 * 17 + 16 + parameters("f", 8, 16)
    assert flops("yff", 8, 16, length=50, read=1, **FIELD) == 2 * (6 * (50 * 9 + 8) + 2 * 2 * 8 * 16)
    # a state of six numbers, and two that count each token
    assert cache_bytes("ys", 8, 5, **FIELD) - cache_bytes("s", 8, 5) == 2 * (6 + 2 * 5)
    assert stacks(small(PARBertConfig, sublayer_order="fyf", state_size=6))[0]["drawing"] == "🟪⬛🟪"
    sizes = small(SandwichLMConfig, sublayer_order="yf", state_size=6).sizes._asdict()
    assert count("cache", "yf", 5, "next", sizes) == cache_bytes("yf", length=5, **sizes) == 2 * (6 + 2 * 5)
    assert count("flops", "y", 5, "next", sizes) == 2 * 6 * (2 * 32 + 1)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["order", "yf"])
    assert "sublayers y need --state_size; give a number" in capsys.readouterr().err
    cli.main(["order", "yf", "--hidden_size", "8", "--state_size", "6"])
    assert "moving average" in capsys.readouterr().out


def test_orders_with_it_need_its_field_and_others_must_not_have_it():
    with pytest.raises(ValueError, match=r"^state_size=None, but the order has sublayers y; give a number$"):
        small(SandwichLMConfig, sublayer_order="yf")
    with pytest.raises(ValueError, match=r"^state_size=6, but the order has no sublayer y; leave it out$"):
        small(SandwichLMConfig, sublayer_order="sf", state_size=6)
    with pytest.raises(ValueError, match="state_size=1 is out of range"):
        small(SandwichLMConfig, sublayer_order="yf", state_size=1)
    assert small(IOTSeq2SeqConfig, decoder_orders=["yscf"], state_size=4).layer_types[0] == "hybrid"


@pytest.mark.parametrize("kind", [(SandwichLMConfig, SandwichLMModel), (PARBertConfig, PARBertModel)])
def test_equals_a_naive_loop(kind):
    config_class, body_class = kind
    options = {"sublayer_order": "yy", "state_size": 6, "norm_position": "post", "final_norm": False}
    body, seen = randomize(body_class(small(config_class, **options))).eval(), []
    body.layers[0].register_forward_pre_hook(lambda layer, given: seen.append(given[0]))
    found = body(tokens(1, 13)).last_hidden_state[0]
    states = seen[0][0]
    for layer in body.layers:
        states = naive(layer, states)
    torch.testing.assert_close(found, states, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("order", ["fyf", "sfyfyf", "yswfyf", "yfwff"])
def test_only_what_is_read_is_computed(order):
    config = small(PARBertConfig, sublayer_order=order, state_size=6, attention_window=3 if "w" in order else None)
    body = randomize(PARBertModel(config)).eval()
    ids, mask = batch_of_three()
    whole = body(ids, attention_mask=mask).last_hidden_state
    read, widths = torch.tensor([[3], [6], [0]]), []
    body.layers[-1].register_forward_hook(lambda layer, given, states: widths.append(states.shape[:2].numel()))
    alone = body(ids, attention_mask=mask, plan=Plan.of(ids, mask, read)).last_hidden_state
    torch.testing.assert_close(alone, select_positions(whole, read), atol=1e-5, rtol=1e-5)
    assert widths == [3]
    for i, row in enumerate(mask):
        own = body(ids[i : i + 1, : row.sum()]).last_hidden_state
        torch.testing.assert_close(whole[i : i + 1, : row.sum()], own, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", SETTINGS)
@pytest.mark.parametrize("order", ["yf", "syfy", "ywfsy"])
def test_generates_with_its_cache_as_without(order, options):
    model = language_model(order)
    ids, mask = batch_of_three(9)
    inputs = {"attention_mask": mask.flip(1), **GREEDY}
    plain = {name: value for name, value in options.items() if name != "cache_implementation"}
    anew = model.generate(ids, **inputs, **plain, use_cache=False)
    assert model.generate(ids, **inputs, **options).tolist() == anew.tolist()
    if not options:
        # each row as it is alone
        for i, row in enumerate(mask):
            own = model.generate(ids[i : i + 1, 9 - row.sum() :], **GREEDY)
            assert own[0, row.sum() :].tolist() == anew[i, 9:].tolist()


@pytest.mark.parametrize("options", SETTINGS)
def test_rows_run_in_different_orders(options):
    model = instance_wise()
    ids, mask = batch_of_three()
    orders = {"forced_encoder_order": torch.tensor([1, 0, 1]), "forced_decoder_order": torch.tensor([2, 0, 1])}
    begun = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]])
    is_start = begun.cumsum(1) * begun == 1
    prompt = tokens(3, 4).masked_fill(begun == 0, PAD).masked_fill(is_start, model.config.decoder_start_token_id)
    given = {"attention_mask": mask, "decoder_input_ids": prompt, "decoder_attention_mask": begun, **GREEDY}
    plain = {name: value for name, value in options.items() if name != "cache_implementation"}
    anew = model.generate(ids, **given, **orders, **plain, use_cache=False)
    assert model.generate(ids, **given, **orders, **options).tolist() == anew.tolist()
    for i, row in enumerate(mask):
        own = model.generate(
            ids[i : i + 1, : row.sum()],
            decoder_input_ids=prompt[i : i + 1, 4 - begun[i].sum() :],
            **{name: int(numbers[i]) for name, numbers in orders.items()},
            **GREEDY,
            **plain,
        )
        assert own[0, begun[i].sum() :].tolist() == anew[i, 4:].tolist()


def test_some_sublayers_make_a_model_and_folders_need_no_package(tmp_path):
    model = language_model("syfyf")
    smaller = take_subset(model, (0, 2, 4))
    assert (smaller.config.sublayer_order, smaller.config.state_size) == ("sf2", None)
    assert take_subset(model, (1, 3)).config.state_size == 6
    for whole, auto_class in ((model, AutoModelForCausalLM), (instance_wise(), AutoModelForSeq2SeqLM)):
        folder = tmp_path / auto_class.__name__
        whole.save_pretrained(folder, self_contained=True)
        assert {"letters_moving_average.py", "mixers_moving_average.py"} <= {file.name for file in folder.iterdir()}
        assert json.loads((folder / "config.json").read_text())["state_size"] == 6
        # scores, and greedy and beam search, padded and not
        assert compare(auto_class.from_pretrained(folder), whole) < 1e-5
        ids, mask = batch_of_three()
        torch.save((ids, mask.flip(1)), folder / "inputs.pt")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([sys.executable, "-c", STRANGER, auto_class.__name__, folder], env=environment, check=True)
        alone = torch.load(folder / "texts.pt")
        assert alone.tolist() == whole.generate(ids, attention_mask=mask.flip(1), **GREEDY).tolist()
