import optuna
import pytest
import torch
from common import every_other_local, silence, tokens
from families import build
from transformers import AutoModel

from sublayers.configuration.sublayer_cost import parameters
from sublayers.training.distill.subsets import (
    check_prunable,
    find_sublayers,
    layers_of,
    name_sublayers,
    orders_of,
    take_subset,
)
from sublayers.training.prune.prices import Use, measured, price_by

SUBSETS = [(0, 3, 5), (1,), (2, 3, 4, 7), (0, 1, 2, 3, 4, 5, 6, 7)]
MODELS = {
    "post": ("par_bert", {}),
    "pre": ("macaron_bert", {"pre_attention_act": None}),
    "causal": ("sandwich_lm", {}),
    "both": ("sandwich_lm", {"norm_position": "both", "position_embedding_type": "rotary", "norm_type": "rms"}),
    "widths": ("par_bert", {"intermediate_size": [48, 32, 40, 24]}),
    "local": ("par_bert", {"sublayer_order": every_other_local("(sf)4"), "attention_window": 4}),
}


def test_sublayers_have_names():
    assert name_sublayers("s2(wf)2") == ["s0", "s1", "w0", "f0", "w1", "f1"]
    assert find_sublayers(["s0", "f0", "f1"], "(sf)3") == (0, 1, 3)
    assert layers_of("(sf)2f") == [(0, 1), (2, 3, 4)]
    # what stands in front of the first attention goes with it
    assert layers_of("f2s2f") == [(0, 1, 2), (3, 4)]


def test_sublayers_of_two_stacks_are_numbered_one_behind_the_other():
    orders = ("(fsf)2", "s(cf)2sf")
    names = name_sublayers(*orders)
    assert names[:6] == ["f0", "s0", "f1", "f2", "s1", "f3"]
    assert names[6:] == [f"decoder.{name}" for name in ("s0", "c0", "f0", "c1", "f1", "s1", "f2")]
    assert find_sublayers(["s0", "f3", "decoder.c1"], *orders) == (1, 5, 9)
    assert orders_of((1, 5, 9), *orders) == ("sf", "c")
    # cross-attention begins no layer
    assert layers_of(*orders) == [(0, 1, 2, 3), (4, 5), (6, 7, 8, 9, 10), (11, 12)]
    assert layers_of("s", "cfc") == [(0,), (1, 2, 3)]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["s0", "s3"], "there is no sublayer s3 among s0 f0 s1 f1; choose some of these"),
        (["f0", "s0"], "f0 s0 is no rising list of sublayers; give some of s0 f0 s1 f1"),
        (["s0", "s0"], "s0 s0 is no rising list"),
        ([], "nothing is no rising list"),
    ],
)
def test_names_that_say_nothing_are_refused(names, message):
    with pytest.raises(ValueError, match=message):
        find_sublayers(names, "(sf)2")


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("subset", SUBSETS)
@torch.no_grad()
def test_a_subset_is_the_model_without_the_others(kind, subset):
    family, options = MODELS[kind]
    model = build(family, AutoModel, **{"sublayer_order": "(sf)4"} | options).eval()
    others = {*range(8)} - {*subset}
    ids, mask = tokens(3, 12), torch.ones(3, 12, dtype=torch.long)
    mask[1, 7:] = 0
    smaller = take_subset(model, subset)
    silence(model, others)
    expected = model(ids, mask).last_hidden_state
    torch.testing.assert_close(smaller(ids, mask).last_hidden_state, expected, atol=1e-6, rtol=1e-5)
    names = name_sublayers(model.config.sublayer_order)
    assert smaller.config.kept_sublayers == [names[place] for place in subset]
    assert smaller.config.num_sublayers == len(subset)


def test_subsets_cost_what_their_own_widths_cost(monkeypatch):
    model = build("par_bert", AutoModel, sublayer_order="(sf)4", intermediate_size=[48, 32, 40, 24])
    subset, study = (0, 3, 4, 7), optuna.create_study()
    smaller = take_subset(model, subset).config
    assert smaller.intermediate_size == [32, 24]
    price = price_by("parameters", model, Use("all", 12), study)
    assert price(subset) == parameters(smaller.order, **smaller.sizes._asdict())
    with pytest.raises(ValueError, match="milliseconds are those of f of one width"):
        price_by("milliseconds", model, Use("all", 12), study)
    asked = []

    def fake(config, orders, *args):
        asked.append((config.intermediate_size, orders))
        return {order: {"all": float(len(order))} for order in orders}

    monkeypatch.setattr("sublayers.training.prune.prices.milliseconds", fake)
    assert measured(model, [subset, (0, 1, 6, 7)], Use("all", 12)) == {subset: 4.0, (0, 1, 6, 7): 4.0}
    assert asked == [([32, 24], ["sfsf"]), ([48, 24], ["sfsf"])]


@pytest.mark.parametrize(
    ("family", "options", "reason"),
    [
        ("iot_seq2seq", {}, "orders that it chooses from"),
        ("sandwich_seq2seq", {"encoder_sublayer_order": "(df)2"}, "convolutions of several widths"),
        (
            "sandwich_seq2seq",
            {"encoder_sublayer_order": "sf2", "decoder_sublayer_order": "scf2", "intermediate_size": [16, 8]},
            "feed-forwards of several widths in two stacks",
        ),
        ("par_transformer_xl", {}, "a memory"),
        ("par_bert", {"sublayer_order": "sf(mf)2"}, "sublayers m"),
        ("par_bert", {"sublayer_order": "(s_0f)2"}, r"sublayers that run at several places, here \['\(s_0f\)2'\]"),
        ("par_bert", {"pre_attention_act": "relu", "hidden_act": "gelu"}, "another activation before attention"),
    ],
)
def test_models_whose_sublayers_need_each_other_are_refused(family, options, reason):
    config = build(family, **options).config
    with pytest.raises(ValueError, match=f"mine has {reason}.*, so its sublayers cannot be taken out"):
        check_prunable(config, "mine")
