"""`r` against loops over tokens in double precision, and what it costs, keeps and refuses."""

import pytest
import torch
from common import tokens
from common_naive import naive_recurrence
from families import GATED_DELTA, MAMBA2, ROWS, small
from transformers import AutoModel, AutoModelForCausalLM, DynamicCache

from sublayers import PARBertConfig, PARTransformerXLConfig, SandwichLMConfig, SandwichLMModel, SandwichSeq2SeqConfig
from sublayers.configuration.letters.recurrence import shape
from sublayers.configuration.sublayer_cost import cache_bytes, flops, parameters
from sublayers.modeling.mixers import recurrence
from sublayers.training import cli
from sublayers.training.distill.subsets import take_subset

KINDS = {"mamba2": MAMBA2, "gated_delta": GATED_DELTA}
# options of each kind, and what they are for the loop
OPTIONS = {
    "mamba2": ({"recurrence_time_step_min": 0.7}, {"least_step": 0.7}),
    "gated_delta": ({"recurrence_allow_neg_eigval": True}, {"largest_rate": 2.0}),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@torch.no_grad()
def test_equals_a_loop_over_tokens_at_every_edge_of_a_chunk(kind, monkeypatch):
    for options, limits in (({}, {}), OPTIONS[kind]):
        body = ROWS["sandwich_lm recurrence"].build(
            AutoModel, "rr", **KINDS[kind] | {"recurrence_chunk_size": 4} | options
        )
        mixer = body.layers[1].mixer
        states = torch.randn(11, 16, generator=torch.Generator().manual_seed(0))
        for length in (1, 3, 4, 5, 8, 11):
            weights = {name: p.detach().double() for name, p in mixer.named_parameters()}
            rows = [*states[:length].double()]
            expected = torch.stack(naive_recurrence(weights, "", mixer.shape, mixer.norm.eps, rows, **limits))
            found = mixer.double()(states[None, :length].double())[0][0]
            torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
            torch.testing.assert_close(
                mixer.float()(states[None, :length])[0][0].double(), expected, atol=1e-5, rtol=1e-5
            )
        # what transformers does, whose kernels these are where they are installed; no device of this test has any
        monkeypatch.setattr(recurrence, "runs_kernels", lambda *_: True)
        torch.testing.assert_close(mixer(states[None])[0][0].double(), expected, atol=1e-5, rtol=1e-5)
        monkeypatch.undo()


@every_kind
@torch.no_grad()
def test_a_state_goes_on_and_texts_in_a_row_have_their_own(kind):
    body = ROWS["sandwich_lm recurrence"].build(AutoModel, "rfr", **KINDS[kind]).double()
    ids, lengths = tokens(2, 12), [5, 1, 6]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    packed = body(ids, position_ids=positions, use_cache=True)
    alone = torch.cat([body(part).last_hidden_state for part in ids.split(lengths, 1)], 1)
    torch.testing.assert_close(packed.last_hidden_state, alone)
    # the last text goes on, token by token and several at once
    more, last = tokens(2, 7), body(torch.cat([ids[:, 6:], tokens(2, 7)], 1)).last_hidden_state[:, 6:]
    found = []
    for part in more.split([1, 1, 5], 1):
        place = packed.cache.get_seq_length() - 6
        numbers = torch.arange(place, place + part.shape[1])[None]
        found.append(body(part, position_ids=numbers, cache=packed.cache, use_cache=True).last_hidden_state)
    torch.testing.assert_close(torch.cat(found, 1), last)


@every_kind
@torch.no_grad()
def test_costs_what_it_has_and_keeps(kind):
    row = ROWS["sandwich_lm recurrence"]
    model = row.build(AutoModel, "rsrf", **KINDS[kind])
    sizes = model.config.sizes._asdict()
    assert parameters("rsrf", **sizes) == sum(p.numel() for p in model.layers.parameters())
    for length in (3, 9):
        cache = model(tokens(1, length), use_cache=True).cache
        kept = [cache.layers[i] for i in (0, 2)]
        tensors = [t for each in kept for t in (each.conv_states[0], each.recurrent_states[0], each.keys, each.values)]
        assert sum(t.nbytes for t in tensors) == cache_bytes("rr", length=length, **sizes)
    # a longer text only counts its tokens
    assert cache_bytes("rr", length=2000, **sizes) - cache_bytes("rr", length=1000, **sizes) == 2 * 1000
    own = shape(model.config.sizes)
    matrix = own.heads * own.state_size * own.head_dim
    maps = 16 * (own.inner_width + own.width) + own.channels * 4
    assert flops("r", length=1, read=1, **sizes) == 2 * (maps + (3 if own.is_delta else 2) * matrix)
    # longer texts have more chunks
    assert flops("r", length=1200, read=1200, **sizes) == 100 * flops("r", length=12, read=12, **sizes)


def test_has_its_defaults_and_says_what_does_not_fit():
    config = SandwichLMConfig(sublayer_order="rf", recurrence="mamba2", hidden_size=64, num_attention_heads=4)
    assert shape(config.sizes) == ("mamba2", 4, 32, 1, 128, 4, 64)
    config.recurrence = "gated_delta"
    assert shape(config.sizes) == ("gated_delta", 4, 32, 4, 16, 4, 64)
    for family in (PARBertConfig, PARTransformerXLConfig):
        with pytest.raises(
            ValueError, match=r"has no sublayers r \(recurrence\) in its sublayer_order, here 'rf'; use s"
        ):
            small(family, sublayer_order="rf", recurrence="mamba2")
    with pytest.raises(ValueError, match=r"has no sublayers r \(recurrence\) in its encoder_sublayer_order"):
        small(SandwichSeq2SeqConfig, encoder_sublayer_order="rf", recurrence="mamba2")
    for options, message in [
        ({}, "recurrence=None, but the order has sublayers r; give 'mamba2' or 'gated_delta'"),
        ({"recurrence": "lstm"}, "recurrence='lstm' does not fit"),
        ({"recurrence": "mamba2", "sublayer_order": "sf"}, "recurrence='mamba2', but the order has no sublayer r"),
        (
            {"recurrence_chunk_size": 8, "sublayer_order": "sf"},
            "recurrence_chunk_size=8, but the order has no sublayer r",
        ),
        (MAMBA2 | {"recurrence_conv_kernel": 1}, "recurrence_conv_kernel=1 sees no other token"),
        (MAMBA2 | {"recurrence_n_groups": 3}, "recurrence_num_heads=4 is not a multiple of recurrence_n_groups=3"),
        (MAMBA2 | {"recurrence_allow_neg_eigval": True}, "recurrence_allow_neg_eigval=True is of 'gated_delta' alone"),
        (GATED_DELTA | {"recurrence_time_step_min": 0.1}, "recurrence_time_step_min=0.1 is of 'mamba2' alone"),
    ]:
        with pytest.raises(ValueError, match=message):
            small(SandwichLMConfig, **{"sublayer_order": "rf"} | options)
    model = ROWS["sandwich_lm recurrence"].main("rf")
    with pytest.raises(
        ValueError, match=r"has no place for the states of sublayers r; make it with config=model.config"
    ):
        model(tokens(1, 4), cache=DynamicCache())
    with pytest.raises(ValueError, match="tell texts in a row apart by position_ids that restart; give them, too"):
        model(tokens(1, 4), cu_seq_lens_q=torch.tensor([0, 2, 4]))


@every_kind
def test_new_models_begin_as_the_papers_do_also_where_weights_are_missing(kind, tmp_path):
    row = ROWS["sandwich_lm recurrence"]
    new = SandwichLMModel(row.config("rf", **KINDS[kind]))
    new.save_pretrained(tmp_path)
    grown = SandwichLMModel.from_pretrained(tmp_path, sublayer_order="rfr")
    assert torch.equal(grown.layers[0].mixer.dt_bias, new.layers[0].mixer.dt_bias)
    for mixer in (new.layers[0].mixer, grown.layers[2].mixer):
        steps = torch.nn.functional.softplus(mixer.dt_bias)
        assert 0.001 <= steps.min() < steps.max() <= 0.1001
        rates = mixer.A_log.exp()
        if kind == "mamba2":
            torch.testing.assert_close(rates, torch.arange(1.0, 5))
        assert 0.01 <= rates.min() < rates.max() <= 16.01
        assert 0.2 < mixer.conv1d.weight.abs().max() <= 0.5
        assert mixer.out_proj.weight.abs().max() < 0.1


def test_some_sublayers_make_a_model(tmp_path):
    model = ROWS["sandwich_lm gated delta"].build(AutoModelForCausalLM, "rfsrf")
    smaller = take_subset(model, (1, 2, 4))
    assert (smaller.config.sublayer_order, smaller.config.recurrence, smaller.config.recurrence_n_groups) == (
        "fsf",
        None,
        None,
    )
    assert take_subset(model, (0, 1, 2)).config.recurrence == "gated_delta"


def test_a_prefix_of_all_rows_is_computed_once():
    model = ROWS["sandwich_lm recurrence"].main("rsrf", max_position_embeddings=400)
    prefix = tokens(1, 200).expand(4, -1)
    ids = torch.cat([prefix, tokens(4, 6)], 1)
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits[:, -1:]
        seen = []
        model.model.layers[0].register_forward_hook(lambda _, given, out: seen.append((*out.shape[:2],)))
        torch.testing.assert_close(model(ids, use_cache=False, logits_to_keep=1).logits, expected, atol=1e-4, rtol=1e-4)
    assert seen == [(1, 200), (4, 6)]


def test_order_command_counts_it(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["order", "rf"])
    assert "sublayers r need --recurrence; give 'mamba2' or 'gated_delta'" in capsys.readouterr().err
    cli.main(["order", "rf", "--hidden_size", "64", "--recurrence", "gated_delta", "--recurrence_state_size", "8"])
    assert "recurrence" in capsys.readouterr().out
