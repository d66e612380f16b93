from itertools import combinations, permutations

import pytest
import torch
from common import every_other_local, tokens
from families import build, small
from transformers import AutoModel, AutoModelForSeq2SeqLM

from sublayers import PARBertConfig, SandwichSeq2SeqConfig
from sublayers.training.distill.subsets import take_subset
from sublayers.training.prune.calibration import Calibration
from sublayers.training.prune.moves import add_windows, improve, moves_of, originals

MODELS = {
    "post": ("par_bert", AutoModel, {}),
    "causal": ("sandwich_lm", AutoModel, {"position_embedding_type": "rotary", "use_cache": False}),
}
PADDED = torch.ones(3, 12, dtype=torch.long)
PADDED[1, 7:] = 0


def moved(subset, config, windows=False):
    places = {place: place for place in range(config.num_sublayers)}
    return moves_of(config, originals(config.orders.values()) if windows else places)(subset)


def test_sublayers_trade_places_come_and_go():
    config = small(PARBertConfig, sublayer_order="(sf)2")
    assert moved((0, 1, 3), config) == {(1, 0, 3), (0, 3, 1), (1, 3), (0, 3), (0, 1), (0, 1, 2, 3)}
    # what comes stands in front of the first one that it stood in front of
    assert moved((3, 1), config) == {(1, 3), (3,), (1,), (0, 3, 1), (2, 3, 1)}
    assert moved((2,), config) == {(0, 2), (1, 2), (2, 3)}


def test_sublayers_stay_in_their_stack_and_no_stack_is_empty():
    config = small(SandwichSeq2SeqConfig, encoder_sublayer_order="sf", decoder_sublayer_order="cf")
    assert moved((1, 3, 2), config) == {(1, 2, 3), (1, 3), (1, 2), (0, 1, 3, 2)}
    # places of windows: s f w | s c f w
    orders = {"encoder_sublayer_order": "sfw", "decoder_sublayer_order": "scfw", "attention_window": 3}
    config = small(SandwichSeq2SeqConfig, **orders)
    assert originals(config.orders.values()) == {0: 0, 1: 1, 2: 0, 3: 3, 4: 4, 5: 5, 6: 3}
    expected = {(0, 4), (2, 1, 4), (2, 3, 4), (2, 6, 4), (2, 4, 5)}
    assert moved((2, 4), config, windows=True) == expected
    assert (0, 6) in moved((0, 3), config, windows=True)


def test_a_first_sublayer_without_a_norm_stays_first():
    config = small(PARBertConfig, sublayer_order="(sf)2", norm_position="pre", first_norm=False)
    assert moved((0, 1), config) == {(0,), (0, 1, 2), (0, 1, 3)}


@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_moved_sublayers_are_measured_as_the_model_that_has_them(kind):
    family, head, options = MODELS[kind]
    model = build(family, head, sublayer_order="(sf)3", **options).eval()
    wide, ids = add_windows(model, 3), tokens(3, 12)
    assert wide.config.sublayer_order == "(sf)3w3"
    expected = model(ids, PADDED).last_hidden_state
    torch.testing.assert_close(take_subset(wide, tuple(range(6)))(ids, PADDED).last_hidden_state, expected)
    calibration = Calibration(wide, lambda model, _: model(ids, PADDED).last_hidden_state.square().sum().item(), [1])
    subsets = [(0, 1, 2, 3, 4, 5), (1, 0), (6, 1, 7, 3, 4), (5, 8, 0, 3), (2, 1, 0, 6)]
    found = calibration.losses(subsets)
    for subset in subsets:
        smaller = take_subset(wide, subset)
        states = smaller(ids, PADDED).last_hidden_state
        assert found[subset] == pytest.approx(states.square().sum().item(), rel=1e-5)
        # one layer after the other, by hand
        orders = "".join("sfsfsfwww"[place] for place in subset)
        window = {"attention_window": 3} if "w" in orders else {}
        other = build(family, head, sublayer_order=orders, **options | window).eval()
        weights = {name: tensor for name, tensor in model.state_dict().items() if "layers." not in name}
        other.load_state_dict(weights, strict=False)
        for layer, place in zip(other.layers, subset, strict=True):
            layer.load_state_dict(model.layers[place if place < 6 else 2 * (place - 6)].state_dict())
        torch.testing.assert_close(other(ids, PADDED).last_hidden_state, states)
    assert take_subset(wide, (6, 1, 4)).config.kept_sublayers == ["w0", "f0", "s2"]
    assert take_subset(wide, (1, 0)).config.attention_window is None


@torch.no_grad()
def test_both_stacks_get_windows():
    model = build("sandwich_seq2seq", encoder_sublayer_order="(sf)2", decoder_sublayer_order="(scf)2").eval()
    wide = add_windows(model, 2)
    assert wide.config.orders == {"encoder_sublayer_order": "(sf)2w2", "decoder_sublayer_order": "(scf)2w2"}
    smaller = take_subset(wide, (5, 1, 6, 7, 13))
    assert smaller.config.orders == {"encoder_sublayer_order": "wf", "decoder_sublayer_order": "scw"}
    assert smaller.config.kept_sublayers == ["w1", "f0", "decoder.s0", "decoder.c0", "decoder.w1"]
    torch.testing.assert_close(
        smaller.model.decoder.layers[2].state_dict(), model.model.decoder.layers[3].state_dict(), atol=0, rtol=0
    )
    ids = tokens(2, 9)
    assert isinstance(smaller, AutoModelForSeq2SeqLM._model_mapping[type(smaller.config)])
    assert smaller(ids, decoder_input_ids=ids[:, :5]).logits.isfinite().all()


LOCAL = {"sublayer_order": every_other_local("(sf)4"), "attention_window": 4}


@pytest.mark.parametrize("options", [LOCAL, {"first_norm": False, "norm_position": "pre"}])
def test_models_that_have_no_such_copies_are_refused(options):
    with pytest.raises(ValueError, match="has local attention, or no first norm; leave --attention_window out"):
        add_windows(build("par_bert", AutoModel, **options), 4)


@pytest.mark.parametrize("seed", range(4))
def test_moves_find_the_best_order_and_exchange_sublayers(seed):
    config, generator = small(PARBertConfig, sublayer_order="(sf)3"), torch.Generator().manual_seed(seed)
    worth, best = torch.rand(6, generator=generator) + 0.5, torch.randperm(6, generator=generator).tolist()

    def loss(subset):
        inversions = sum(best.index(a) > best.index(b) for a, b in combinations(subset, 2))
        return 5 - float(worth[[*subset]].sum()) + 0.1 * inversions

    asked = []

    def losses(subsets):
        asked.extend(subsets)
        return {subset: loss(subset) for subset in subsets}

    found = improve((0, 1, 2), moves_of(config, {place: place for place in range(6)}), losses, len, 3)
    assert min(found.values()) == pytest.approx(min(loss(order) for order in permutations(range(6), 3)))
    assert max(map(len, asked)) == 3


def test_a_window_pays_for_another_sublayer():
    config = small(PARBertConfig, sublayer_order="(sf)2w2", attention_window=3)
    lost, prices = {0: 2.0, 1: 0.3, 2: 1.0, 3: 0.6, 4: 1.8, 5: 0.4}, {0: 4, 1: 2, 2: 4, 3: 2, 4: 2, 5: 2}

    def losses(subsets):
        return {subset: 5 - sum(lost[place] for place in subset) for subset in subsets}

    def price(subset):
        return sum(prices[place] for place in subset)

    # s0 s1 or s0 f0 f1 at first; w0 leaves room for s1 and f1
    found = improve((0, 1, 3), moves_of(config, originals(config.orders.values())), losses, price, 8)
    within = {subset: loss for subset, loss in found.items() if price(subset) <= 8}
    assert sorted(min(within, key=within.get)) == [2, 3, 4]
    assert all(not {0, 4} <= {*subset} and not {2, 5} <= {*subset} for subset in found)
