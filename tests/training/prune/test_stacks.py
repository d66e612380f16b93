"""Encoder-decoders, both stacks of which lose sublayers."""

import copy
import random
from functools import partial

import optuna
import pytest
import torch
from families import small
from tiny_translators import FAMILIES, draw_pairs, loss_of, save_pairs, save_translator
from transformers import AutoModelForSeq2SeqLM

from sublayers import SandwichLMConfig, SandwichSeq2SeqConfig, SandwichSeq2SeqModel
from sublayers.configuration.sublayer_cost import flops, parameters
from sublayers.modeling.mixers.cross_attention import CrossAttention
from sublayers.training.data.corpus import CorpusArguments, load_corpus
from sublayers.training.distill.subsets import is_model, name_sublayers, take_subset
from sublayers.training.metrics.order_times import milliseconds
from sublayers.training.prune.opening import calibrate, open_model, read_texts
from sublayers.training.prune.prices import Use, measured, price_by


def calibrated(folder, batch_size=64, texts=24):
    teacher = open_model(str(folder))
    corpus = load_corpus(CorpusArguments(train_file=save_pairs(folder)))
    rows = read_texts(teacher, "next", texts, 16, False, 0, corpus, "train")
    return teacher, rows, calibrate(teacher, "next", rows, batch_size)


def draw_subsets(config, number):
    draw, size = random.Random(0), config.num_sublayers
    drawn = (tuple(sorted(draw.sample(range(size), draw.randint(2, size)))) for _ in range(20 * number))
    return [*dict.fromkeys(subset for subset in drawn if is_model(subset, config))][:number]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.representatives(4)
@torch.no_grad()
def test_losses_are_those_of_the_models_without_the_others(family, joint, tmp_path):
    _, source, target = save_translator(tmp_path, family, joint)
    teacher, rows, calibration = calibrated(tmp_path, batch_size=9)
    for name, tokenizer in (("input_ids", source), ("labels", target)):
        texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in rows[name]]
        assert {*texts} <= {pair[name == "labels"] for pair in draw_pairs(40)}
    assert len({len(ids) for ids in rows["input_ids"]}) > 2
    assert len({len(ids) for ids in rows["labels"]}) > 2
    subsets = [*draw_subsets(teacher.model.config, 12), tuple(range(teacher.model.config.num_sublayers))]
    found = calibration.losses(subsets)
    assert found.keys() == {*subsets}
    for subset in subsets:
        take_subset(teacher.model, subset).save_pretrained(tmp_path / "small")
        smaller = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "small").eval()
        assert found[subset] == pytest.approx(loss_of(smaller, rows), abs=1e-4)
    assert len({*found.values()}) > 8


@torch.no_grad()
def test_a_subset_has_the_weights_of_its_sublayers_and_generates_as_the_model_did(tmp_path):
    model, *_ = save_translator(tmp_path)
    smaller = take_subset(model, (1, 2, 4, 6, 8))
    config = smaller.config
    assert [*map(str, config.orders.values())] == ["fs", "sfc"]
    assert config.kept_sublayers == ["f0", "s1", "decoder.s0", "decoder.f0", "decoder.c1"]
    for stack, places in (("encoder", [1, 2]), ("decoder", [0, 2, 4])):
        old, new = (getattr(each.model, stack).layers for each in (model, smaller))
        for layer, place in zip(new, places, strict=True):
            for name, tensor in layer.state_dict().items():
                torch.testing.assert_close(tensor, old[place].state_dict()[name])
    assert smaller.generation_config.to_diff_dict() == model.generation_config.to_diff_dict()
    assert (config.label_smoothing, smaller.generation_config.num_beams) == (0.3, 2)
    # what is left out is the identity
    ids, targets = torch.tensor([[5, 6, 7, 2]]), torch.tensor([[2, 9, 8]])
    whole = copy.deepcopy(model)
    for stack, places in ((whole.model.encoder.layers, [0, 3]), (whole.model.decoder.layers, [1, 3, 5])):
        for place in places:
            stack[place].forward = lambda states, *args, **kwargs: states
    expected = whole(ids, decoder_input_ids=targets, use_cache=False).logits
    torch.testing.assert_close(smaller(ids, decoder_input_ids=targets, use_cache=False).logits, expected)


def test_the_beginnings_of_both_stacks_run_once(tmp_path, monkeypatch):
    save_translator(tmp_path)
    _, _, calibration = calibrated(tmp_path)
    runs = []

    def record(step, *args, name, run):
        runs.append(f"{name}{step.sublayer}")
        return run(step, *args)

    for name, stack in zip("ed", calibration.stacks, strict=True):
        monkeypatch.setattr(stack, "run_one", partial(record, name=name, run=stack.run_one))
    calibration.losses([(0, 4, 5), (0, 4, 6), (0, 2, 5), (0, 2, 3, 5)])
    # the whole decoder runs while what the encoder gets is taken
    assert " ".join(runs) == "d0 d1 d2 d3 d4 d5 e0 e2 e3 d1 d1 d0 d1 d2"


def test_every_stack_keeps_a_sublayer_and_a_first_one_without_a_norm():
    config = small(SandwichSeq2SeqConfig, encoder_sublayer_order="sf", decoder_sublayer_order="scf")
    assert is_model((0, 4), config)
    assert is_model((1, 3), config)
    assert not is_model((0, 1), config)
    assert not is_model((2, 3, 4), config)
    config.norm_position, config.first_norm = "pre", False
    assert is_model((0, 2, 4), config)
    assert not is_model((0, 4), config)
    assert not is_model((1, 2), config)


def test_prices_are_sums_of_both_stacks():
    config = small(SandwichSeq2SeqConfig, encoder_sublayer_order="(sf)2", decoder_sublayer_order="(scf)2")
    model = SandwichSeq2SeqModel(config)
    sizes, subset = config.sizes._asdict(), (0, 2, 3, 4, 5, 9)
    names = name_sublayers(*config.orders.values())
    assert [names[place] for place in subset] == ["s0", "s1", "f1", "decoder.s0", "decoder.c0", "decoder.f1"]

    def price(kind, read="all"):
        return price_by(kind, model, Use(read, 12), optuna.create_study())(subset)

    assert price("parameters") == price("parameters", "next") == parameters("ssfscf", **sizes)
    both = flops("ssf", length=12, read=12, **sizes) + flops("scf", length=12, read=12, **sizes)
    assert price("flops") == both
    # a token: its queries, keys, values, output and their product, but of the source only the queries and the output
    hidden, inner = config.hidden_size, config.intermediate_size
    assert price("flops", "next") == 2 * (4 * hidden**2 + 2 * hidden + 2 * hidden**2 + 2 * hidden * inner)
    # keys and values of target and source, two bytes a number
    assert price("cache") == 2 * 2 * 2 * 12 * hidden


@pytest.mark.parametrize("read", ["all", "next"])
def test_milliseconds_are_sums_of_both_stacks(read, monkeypatch):
    config = small(SandwichSeq2SeqConfig, encoder_sublayer_order="(sf)3", decoder_sublayer_order="(scf)3")
    model, use = SandwichSeq2SeqModel(config), Use(read, 12, rows=3)
    sizes = {"s": 3.0, "f": 1.0, "c": 5.0}

    def fake(config, orders, length, reads, rows, seconds):
        assert (length, rows) == (12, 3)
        return {order: {reads[0]: 0.5 + sum(map(sizes.get, order)) + 2 * (reads[0] == "next")} for order in orders}

    monkeypatch.setattr("sublayers.training.prune.prices.milliseconds", fake)
    study, subset = optuna.create_study(), (0, 1, 3, 6, 7, 8, 10)
    price = price_by("milliseconds", model, use, study)
    expected = (0.5 + 5 + 0.5 + 14) if read == "all" else 0.5 + 14 + 2
    assert price(subset) == pytest.approx(expected)
    # a search that goes on has the prices that it had
    sizes.update(s=30.0, f=20.0)
    assert price_by("milliseconds", model, use, study)(subset) == price(subset)
    sizes.update(s=3.0, f=1.0)
    assert measured(model, [subset], use) == {subset: expected}


def test_a_token_is_timed_with_the_keys_and_values_of_its_source(monkeypatch):
    config, lengths = small(SandwichSeq2SeqConfig), []
    split_heads = CrossAttention.split_heads

    def spy(attention, states, *args):
        lengths.append(states.shape[1])
        return split_heads(attention, states, *args)

    monkeypatch.setattr(CrossAttention, "split_heads", spy)
    milliseconds(config, ["sccf"], 12, ["next"])
    # queries, keys and values for a text, of which the last sublayer asks one query; then the query of each token
    assert lengths[:6] == [12, 12, 12, 1, 12, 12]
    assert {*lengths[6:]} == {1}


def test_a_token_is_timed_after_states_of_fixed_size():
    config = small(SandwichLMConfig, sublayer_order="gfsf", short_kernel_size=3)
    times = milliseconds(config, ["gfsf", "sg", "gf"], 12, ["next"])
    assert all(found["next"] > 0 for found in times.values())


def test_rows_without_a_target_are_refused(tmp_path):
    save_translator(tmp_path)
    for text in ("eins\tone\nzwei\n", "eins\tone\nzwei\t \n"):
        (tmp_path / "texts.txt").write_text(text)
        corpus = load_corpus(
            CorpusArguments(train_file=str(tmp_path / "texts.txt"), validation_file=save_pairs(tmp_path))
        )
        with pytest.raises(
            ValueError, match=r"^'zwei.*' is no source, tab and target; give such pairs to an encoder-dec"
        ):
            read_texts(open_model(str(tmp_path)), "next", 8, 16, False, 0, corpus, "train")
