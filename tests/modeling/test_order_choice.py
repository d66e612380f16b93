import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from common import VOCAB, assert_same, gradients, randomize, tokens
from common_generation import BEAMS, GREEDY, sources
from common_iot_naive import Noise, naive_terms
from common_seq2seq_training import IGNORED, rows_of
from families import labelled
from transformers import AutoModelForSeq2SeqLM

from sublayers import IOTSeq2SeqConfig, IOTSeq2SeqForConditionalGeneration
from sublayers.modeling.instance_wise_stack import share_runs
from sublayers.modeling.order_choice import OrderStatistics
from sublayers.modeling.stack import SublayerStack

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "vocab_size": VOCAB, "dropout": 0.0}
TWO_BY_THREE = {"encoder_orders": ["sf", "fs"], "decoder_orders": ["scf", "fsc", "cfs"]}
ONE_BY_THREE = TWO_BY_THREE | {"encoder_orders": ["sf"]}
TARGETS = {"decoder_input_ids": tokens(3, 7)}


def make(orders=TWO_BY_THREE, **options) -> IOTSeq2SeqForConditionalGeneration:
    blocks = {"num_encoder_blocks": 1, "num_decoder_blocks": 1}
    config = IOTSeq2SeqConfig(**SIZES | orders | blocks | {"gumbel_temperature": 3.0} | options)
    return randomize(IOTSeq2SeqForConditionalGeneration(config))


SOURCES = sources(make())
BATCH = SOURCES | {"labels": labelled(make(), AutoModelForSeq2SeqLM)["labels"]}
ROWS, LABELLED = rows_of(BATCH), int((BATCH["labels"] != IGNORED).sum())


@pytest.fixture
def noise(monkeypatch):
    noise = Noise()
    monkeypatch.setattr(torch.nn.functional, "gumbel_softmax", noise)
    return noise


@pytest.mark.parametrize(
    ("orders", "options", "calls"),
    [
        (TWO_BY_THREE, {}, 3),
        (TWO_BY_THREE, {"norm_position": "pre", "label_smoothing": 0.2, "clamp_gumbel": False}, 3),
        (TWO_BY_THREE, {"label_smoothing": 0.2, "weighted_smoothing": False, "gumbel_per_pass": True}, 7),
        (TWO_BY_THREE, {"order_paths": "paired", "diversity_weight": 0.7, "sharpness_weight": 0.3}, 1),
        (TWO_BY_THREE, {"order_paths": "paired", "gumbel_per_pass": True, "min_order_probability": 0.2}, 3),
        (TWO_BY_THREE, {"predict_order": False, "label_smoothing": 0.1}, 0),
        (TWO_BY_THREE | {"decoder_orders": ["scf"]}, {"min_order_probability": 0.4}, 1),
        (ONE_BY_THREE, {"num_decoder_blocks": 2, "diversity_weight": 2.0, "sharpness_weight": 1.0}, 1),
        (ONE_BY_THREE, {"gumbel_per_pass": True, "shared_encoder": False, "label_smoothing": 0.1}, 3),
    ],
)
def test_loss_and_gradients_are_those_of_the_equations(orders, options, calls, noise):
    model = make(orders, **options)
    cross_entropy, diversity, sharpness = naive_terms(model, ROWS, lambda call, row: noise.values[call, row])
    config = model.config
    expected = cross_entropy / LABELLED + config.diversity_weight * diversity + config.sharpness_weight * sharpness
    expected.backward()
    naive_gradients = gradients(model)
    model.train().zero_grad()
    out = model(**BATCH)
    assert noise.calls == calls
    for actual, term in (
        (out.loss, expected),
        (out.cross_entropy, cross_entropy / LABELLED),
        (out.diversity, diversity),
        (out.sharpness, sharpness),
    ):
        torch.testing.assert_close(
            actual.detach(), torch.as_tensor(term, dtype=torch.float32).detach(), atol=1e-5, rtol=1e-5
        )
    out.loss.backward()
    assert_same(gradients(model), naive_gradients, atol=1e-5, rtol=1e-4)
    for name, gradient in naive_gradients.items():
        assert gradient.any(), name


def test_noise_is_drawn_in_training_only():
    model, batch = make(), BATCH
    losses = [model.train(training)(**batch).loss.item() for training in (True, True, False, False)]
    assert losses[0] != losses[1]
    assert losses[2] == losses[3]


@pytest.mark.parametrize("shared", [True, False])
def test_what_paths_share_is_computed_once(shared):
    model = make(shared_encoder=shared).train()
    runs = Counter()
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: runs.update([name]))
    model(**BATCH)
    assert runs["model.encoder"] == runs["model.encoder.layers.0"] == (2 if shared else 6)
    assert runs["model.decoder"] == runs["model.decoder.layers.0"] == 6
    crossing = "model.decoder.layers.1.mixer"
    assert runs[f"{crossing}.q_proj"] == 6
    assert runs[f"{crossing}.k_proj"] == runs[f"{crossing}.v_proj"] == (2 if shared else 6)


def test_predictors_cost_the_width_for_each_order():
    plain, chosen = make(TWO_BY_THREE, predict_order=False), make()
    assert chosen.num_parameters() == plain.num_parameters() + (2 + 3) * 16
    assert make(order_paths="paired").num_parameters() == plain.num_parameters() + 3 * 16
    assert make(ONE_BY_THREE, predict_order=False).num_parameters() == plain.num_parameters()


def test_scores_are_dropped_in_training_only():
    model, batch = make(predictor_dropout=1.0), BATCH
    out = model.train()(**batch)
    assert out.diversity == out.sharpness == 0
    encoded = model.eval().get_encoder()(batch["input_ids"], batch["attention_mask"])
    assert encoded.decoder_order_logits.all()


@pytest.mark.parametrize("options", [{}, {"order_paths": "paired"}, {"label_smoothing": 0.1}])
def test_parts_of_a_batch_add_up_to_it(options, monkeypatch):
    monkeypatch.setattr(torch.nn.functional, "gumbel_softmax", Noise(0.0))
    model = make(**options, diversity_weight=2.0, sharpness_weight=1.0)
    terms = naive_terms(model, ROWS)
    expected = terms[0] / LABELLED + 2 * terms[1] + terms[2]
    expected.backward()
    naive_gradients = gradients(model)

    source = (BATCH["input_ids"], BATCH["attention_mask"])
    passes = [model.get_encoder()(*source, forced_encoder_order=m) for m, _ in model.config.paths]
    of_decoders = sum(each.decoder_order_logits.softmax(-1).mean(0) for each in passes).detach() / len(passes)
    of_encoders = passes[0].encoder_order_logits
    of_encoders = None if of_encoders is None else of_encoders.softmax(-1).mean(0).detach()
    order_statistics = OrderStatistics(len(ROWS), of_encoders, of_decoders)
    model.train().zero_grad()
    sums = torch.zeros(4)
    for part in (slice(1), slice(1, None)):
        out = model(
            **{name: rows[part] for name, rows in BATCH.items()},
            num_items_in_batch=LABELLED,
            order_statistics=order_statistics,
        )
        out.loss.backward()
        sums += torch.stack([out.loss.detach(), out.cross_entropy, out.diversity, out.sharpness])
    found = torch.stack([expected, terms[0] / LABELLED, *terms[1:]]).detach()
    torch.testing.assert_close(sums, found, atol=1e-5, rtol=1e-5)
    assert_same(gradients(model), naive_gradients, atol=1e-5, rtol=1e-4)


def test_a_part_without_the_whole_takes_its_share_of_labels(noise):
    model = make().train()
    whole = model(**BATCH)
    noise.calls = 0
    share = model(**BATCH, num_items_in_batch=4 * LABELLED)
    for name in ("loss", "cross_entropy", "diversity", "sharpness"):
        torch.testing.assert_close(4 * share[name], whole[name])


def test_the_temperature_falls_every_5000_updates():
    model = make(gumbel_temperature=20.0, gumbel_temperature_min=2.0, gumbel_temperature_decay=1e-4)
    assert model.temperature == 20
    for update, factor in {0: 0, 4999: 0, 5000: 5000, 9999: 5000, 10000: 10000}.items():
        model.anneal(update)
        assert model.temperature == pytest.approx(20 * math.exp(-1e-4 * factor))
    model.anneal(10**6)
    assert model.temperature == 2
    model = make(gumbel_temperature=20.0)
    model.anneal(10**6)
    assert model.temperature == 20


def test_the_weight_of_the_diversity_loss_falls_to_zero():
    model = make(diversity_weight=0.5, diversity_decay_updates=200).train()
    for update, weight in {0: 0.5, 50: 0.375, 200: 0, 1000: 0}.items():
        model.anneal(update)
        torch.manual_seed(0)
        out = model(**BATCH)
        expected = out.cross_entropy + weight * out.diversity + model.config.sharpness_weight * out.sharpness
        torch.testing.assert_close(out.loss, expected)
    with pytest.raises(ValueError, match="diversity_decay_updates=0"):
        make(diversity_decay_updates=0)


def places_run(model) -> list[dict[str, set[int]]]:
    """The places of sublayers that each pass of a stack runs, as it goes."""
    passes = []
    for stack in (model.model.encoder, model.model.decoder):
        stack.register_forward_pre_hook(lambda *_: passes.append(set()))
        for place, layer in enumerate(stack.layers):
            layer.register_forward_pre_hook(lambda *_, place=place: passes[-1].add(place))
    return passes


@pytest.mark.parametrize(("rate", "steps"), [(0.0, 1), (0.3, 20), (1.0, 1)])
def test_training_leaves_blocks_out_and_not_sublayers(rate, steps):
    model = make(layerdrop=rate, num_encoder_blocks=3, num_decoder_blocks=4)
    passes = places_run(model)
    model(**SOURCES, **TARGETS)
    assert {len(places) for places in passes} == {3 * 2, 4 * 3}
    passes.clear()
    for _ in range(steps):
        model.train()(**BATCH)
    assert len(passes) == 2 * (1 + 3) * steps
    kept = []
    for i, places in enumerate(passes):
        # each encoder order goes before its three decoders
        length, number = (2, 3) if i % 4 == 0 else (3, 4)
        blocks = [{*range(length * block, length * (block + 1))} for block in range(number)]
        assert all(block <= places or not block & places for block in blocks)
        kept += [block <= places for block in blocks]
    # four standard deviations
    assert sum(kept) / len(kept) == pytest.approx(1 - rate, abs=4 * (rate * (1 - rate) / len(kept)) ** 0.5)


def test_a_stack_without_a_block_is_one_of_the_others(monkeypatch):
    model = make(ONE_BY_THREE, layerdrop=0.5, num_encoder_blocks=3, num_decoder_blocks=3).train()
    short = make(ONE_BY_THREE, num_encoder_blocks=2, num_decoder_blocks=2)
    left = {}
    for name, weight in model.state_dict().items():
        stack, found, rest = name.partition(".layers.")
        length = 2 if "encoder" in stack else 3
        place, _, rest = rest.partition(".")
        if not found or int(place) // length == 0:
            left[name] = weight
        elif int(place) // length == 2:
            left[f"{stack}.layers.{int(place) - length}.{rest}"] = weight
    short.load_state_dict(left)
    # the middle one
    monkeypatch.setattr(torch, "rand", lambda number: torch.tensor([0.9, 0.1, 0.9]))
    for order in range(3):
        forced = {"forced_decoder_order": order}
        actual = model(**SOURCES, **TARGETS, **forced).logits
        torch.testing.assert_close(actual, short(**SOURCES, **TARGETS, **forced).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"use_cache": False}, BEAMS, {"cache_implementation": "static"}])
def test_generation_runs_each_sentence_once_and_orders_together(options):
    model, sources = make(), tokens(8, 9)
    forced = torch.arange(8) % 3
    rows: dict[str, list[int]] = {name: [] for name in (*"scf", "lm_head", "embed_tokens")}
    decoder = model.model.decoder
    modules = dict(zip("scf", decoder.layers, strict=True)) | {"lm_head": model.lm_head}
    for name, module in (modules | {"embed_tokens": decoder.embed_tokens}).items():
        module.register_forward_pre_hook(
            lambda _, args, to=rows[name]: to.append(args[0].numel() // (16 if args[0].is_floating_point() else 1))
        )
    options = GREEDY | options
    out = model.generate(sources, **options, forced_decoder_order=forced, return_dict_in_generate=True)
    assert torch.equal(out.decoder_order, forced)
    # of three, three and two sentences: cfs before self-attention meets fsc at f, behind it scf and fsc share c
    expected = {"s": [8], "c": [2, 3 + 3], "f": [3 + 2, 3], "lm_head": [8], "embed_tokens": [8]}
    candidates = options.get("num_beams", 1)
    lengths = [1 + step * (options.get("use_cache") is False) for step in range(GREEDY["max_new_tokens"])]
    for name, numbers in expected.items():
        assert rows[name] == [candidates * length * number for length in lengths for number in numbers], name


@pytest.mark.parametrize(
    ("orders", "joints", "number"),
    [
        (["scf", "fsc", "csf", "fcs"], "s", 5),
        (["scf", "csf", "fcs"], "s", 5),
        (["csf", "fcs"], "s", 4),
        (["scf", "sfc", "csf", "cfs", "fsc", "fcs"], "s", 7),
        (["sdcf", "csdf", "fcsd"], "sd", 6),
    ],
)
def test_few_runs_bring_all_orders_about(orders, joints, number):
    for blocks in (1, 3):
        paths = {place: SublayerStack.locate(order * blocks, orders[0] * blocks) for place, order in enumerate(orders)}
        once = {place for place, letter in enumerate(orders[0] * blocks) if letter in joints}
        runs = share_runs(paths, once)
        assert len(runs) == number * blocks
        for order, path in paths.items():
            assert [place for place, numbers in runs if order in numbers] == path
        assert all(numbers == (*paths,) for place, numbers in runs if place in once)


@pytest.mark.parametrize("options", [{}, BEAMS, {"cache_implementation": "static"}])
def test_convolutions_generate_in_each_sentences_order(options):
    orders = {"encoder_orders": ["df", "fd"], "decoder_orders": ["sdcf", "csdf", "fcsd"]}
    model, options = make(orders, num_decoder_blocks=2, kernel_sizes=[3, 2, 5, 3]), GREEDY | options
    forced = {"forced_encoder_order": torch.tensor([0, 1, 1]), "forced_decoder_order": torch.tensor([2, 0, 1])}
    mixed = model.generate(**SOURCES, **options, **forced).unflatten(0, (3, -1))
    for i in range(3):
        alone = {name: int(numbers[i]) for name, numbers in forced.items()}
        source = {name: value[i : i + 1] for name, value in SOURCES.items()}
        assert torch.equal(mixed[i], model.generate(**source, **options, use_cache=False, **alone))


def test_two_threads_generate_each_in_their_own_orders():
    model, batches = make(), [tokens(8, 9), tokens(8, 9).flip(0)]
    expected = [model.get_encoder()(batch).decoder_order for batch in batches]
    assert not torch.equal(*expected)
    both_encode = Barrier(2, timeout=30)

    def wait(*_) -> None:
        both_encode.wait()

    model.get_encoder().register_forward_pre_hook(wait)
    with ThreadPoolExecutor(2) as pool:
        both = pool.map(lambda batch: model.generate(batch, **GREEDY, return_dict_in_generate=True), batches)
        for out, orders in zip(both, expected, strict=True):
            assert torch.equal(out.decoder_order, orders)


def test_one_row_of_positions_is_that_of_all_targets():
    model = make()
    orders = {"forced_encoder_order": torch.tensor([0, 1, 0]), "forced_decoder_order": torch.tensor([2, 0, 1])}
    positions = torch.arange(TARGETS["decoder_input_ids"].shape[1])[None]
    one, many = (
        model(**SOURCES, **TARGETS, **orders, decoder_position_ids=ids).logits
        for ids in (positions, positions.expand(3, -1))
    )
    torch.testing.assert_close(one, many)
