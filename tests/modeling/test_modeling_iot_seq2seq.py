import pytest
import torch
from common import tokens, train_gradients
from common_generation import BEAMS, GREEDY, naive_greedy, sources
from common_seq2seq_training import collator, ragged_rows
from families import ROWS, small
from transformers import GenerationConfig
from transformers.modeling_outputs import BaseModelOutput

from sublayers import IOTSeq2SeqConfig, IOTSeq2SeqForConditionalGeneration

pytestmark = pytest.mark.slow
ROW = ROWS["iot_seq2seq"]
SOURCES, TARGETS = sources(ROW.build()), {"decoder_input_ids": tokens(3, 7)}


def test_rows_of_a_batch_choose_different_orders():
    for orders in ROW.all_orders:
        model = ROW.main(*orders)
        out = model(**SOURCES, **TARGETS)
        assert len(out.decoder_order.unique()) > 1
        assert len(out.encoder_order.unique()) == min(2, len(model.config.encoder_orders))


def test_the_trainers_label_smoothing_smooths_the_same(tmp_path):
    # it keeps the labels to itself, and orders are chosen by their losses
    model, options = ROW.main(), {"per_device_train_batch_size": 8, "label_smoothing_factor": 0.1}
    with pytest.raises(ValueError, match="without labels the choice of orders learns nothing; give labels"):
        train_gradients(model, ragged_rows(), tmp_path, data_collator=collator(model), **options)


def test_forced_orders_take_the_place_of_predicted_ones():
    for orders in ROW.orders:
        model = ROW.main(*orders)
        predicted = model(**SOURCES, **TARGETS)
        same = {f"forced_{name}": predicted[name] for name in ("encoder_order", "decoder_order")}
        assert torch.equal(model(**SOURCES, **TARGETS, **same).logits, predicted.logits)
        # every row in each order, by number and by tensor, equals that row of a batch of its own
        alone = {
            path: model(**SOURCES, **TARGETS, forced_encoder_order=path[0], forced_decoder_order=path[1])
            for path in model.config.paths
        }
        for shift in range(2):
            chosen = [model.config.paths[(i + shift) % len(alone)] for i in range(3)]
            encoder_order, decoder_order = torch.tensor(chosen).T
            forced = {"forced_encoder_order": encoder_order, "forced_decoder_order": decoder_order}
            out = model(**SOURCES, **TARGETS, **forced)
            assert torch.equal(out.encoder_order, encoder_order)
            assert torch.equal(out.decoder_order, decoder_order)
            for i, path in enumerate(chosen):
                torch.testing.assert_close(out.logits[i], alone[path].logits[i], atol=1e-5, rtol=1e-5)
        assert not torch.allclose(*(out.logits for out in [*alone.values()][:2]), atol=1e-3)


def test_forced_orders_of_generation_are_those_of_a_naive_loop():
    model, forced = ROW.main(), {"forced_encoder_order": torch.tensor([1, 0, 1]), "forced_decoder_order": 2}
    orders = [{"forced_encoder_order": m, "forced_decoder_order": 2} for m in (1, 0, 1)]
    expected = naive_greedy(model, SOURCES, orders)
    for options in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
        out = model.generate(**SOURCES, **GREEDY, **options, **forced, return_dict_in_generate=True)
        assert torch.equal(out.sequences[:, 1:], expected)
        assert out.encoder_order.tolist() == [1, 0, 1]
        assert out.decoder_order.tolist() == [2, 2, 2]
    # two candidates for each source
    forced["forced_decoder_order"] = torch.tensor([0, 2, 1])
    expected = model.generate(**SOURCES, **BEAMS, **forced, use_cache=False)
    assert torch.equal(model.generate(**SOURCES, **BEAMS, **forced), expected)


@pytest.mark.parametrize(
    ("forced", "message"),
    [
        ({"forced_decoder_order": 3}, "there is no order 3; give a position from 0 to 2"),
        ({"forced_decoder_order": -1}, "there is no order -1; give a position from 0 to 2"),
        ({"forced_encoder_order": 2}, "there is no order 2; give a position from 0 to 1"),
        ({"forced_encoder_order": torch.zeros(2).long()}, r"forced orders of shape \(2,\) do not fit 3 sources"),
        ({"forced_decoder_order": torch.zeros(3, 1).long()}, r"shape \(3, 1\) do not fit 3 sources"),
        ({"forced_decoder_order": torch.tensor([0, 3, 1])}, "there is no order 3; give a position from 0 to 2"),
        ({"forced_encoder_order": torch.tensor([0, -1, 1])}, "there is no order -1; give a position from 0 to 1"),
    ],
)
def test_says_which_forced_orders_there_are_not(forced, message):
    with pytest.raises(ValueError, match=message):
        ROW.main()(**SOURCES, **TARGETS, **forced)


def test_a_cache_serves_one_order_and_several():
    model, several = ROW.main(), torch.tensor([2, 1, 0])
    ids = torch.cat([TARGETS["decoder_input_ids"], tokens(3, 1)], 1)
    for orders, same in (
        ((1, 1), [0, 1, 2]),
        ((several, several), [0, 1, 2]),
        ((1, several), [1]),
        ((several, 1), [1]),
    ):
        first = model(**SOURCES, **TARGETS, use_cache=True, forced_decoder_order=orders[0])
        encoded = {"encoder_outputs": (first.encoder_last_hidden_state,)}
        encoded |= {"attention_mask": SOURCES["attention_mask"], "forced_decoder_order": orders[1]}
        cached = model(**encoded, decoder_input_ids=ids[:, -1:], cache=first.cache)
        expected = model(**encoded, decoder_input_ids=ids).logits[:, -1]
        torch.testing.assert_close(cached.logits[same, 0], expected[same], atol=1e-5, rtol=1e-5)


def test_encoder_outputs_bring_their_orders():
    model = ROW.main()
    expected = model(**SOURCES, **TARGETS)
    encoded = model.get_encoder()(**SOURCES)
    assert torch.equal(encoded.encoder_order, encoded.encoder_order_logits.argmax(1))
    assert torch.equal(encoded.decoder_order, encoded.decoder_order_logits.argmax(1))
    mask = SOURCES["attention_mask"]
    whole, bare = (
        model(encoder_outputs=outputs, attention_mask=mask, **TARGETS)
        for outputs in (encoded, (encoded.last_hidden_state,))
    )
    for out in (whole, bare):
        assert torch.equal(out.decoder_order, expected.decoder_order)
        torch.testing.assert_close(out.logits, expected.logits)
    assert torch.equal(whole.encoder_order, expected.encoder_order)
    # what ran cannot be told from states
    assert bare.encoder_order is None
    generated = model.generate(**SOURCES, **BEAMS)
    for outputs in (encoded, BaseModelOutput(encoded.last_hidden_state)):
        assert torch.equal(model.generate(encoder_outputs=outputs, attention_mask=mask, **BEAMS), generated)
    # it also tells what is decoded in a forced order
    for order in (1, 2, torch.tensor([2, 0, 1])):
        forced = {"forced_decoder_order": order}
        given = {"encoder_outputs": model.get_encoder()(**SOURCES, **forced), "attention_mask": mask}
        out, expected = model(**given, **TARGETS), model(**SOURCES, **TARGETS, **forced)
        assert torch.equal(out.decoder_order, expected.decoder_order)
        torch.testing.assert_close(out.logits, expected.logits)
        assert torch.equal(model.generate(**given, **GREEDY), model.generate(**SOURCES, **GREEDY, **forced))
    options = BEAMS | {"return_dict_in_generate": True, "forced_decoder_order": 0}
    forced = model.generate(encoder_outputs=encoded, attention_mask=mask, **options)
    assert forced.decoder_order.tolist() == [0] * 3
    assert torch.equal(forced.encoder_order, encoded.encoder_order)


def test_states_and_weights_of_a_mixed_batch_are_those_of_rows_alone():
    asked = {"output_hidden_states": True, "output_attentions": True}
    for orders in ROW.orders:
        model = ROW.main(*orders, attn_implementation="eager")
        out = model(**SOURCES, **TARGETS, **asked)
        for i, mask in enumerate(SOURCES["attention_mask"].bool()):
            alone = model(**{name: rows[i : i + 1] for name, rows in (SOURCES | TARGETS).items()}, **asked)
            places = {"encoder_hidden_states": mask, "encoder_attentions": (slice(None), mask)}
            for name in (*places, "decoder_hidden_states", "decoder_attentions", "cross_attentions"):
                where = places.get(name, ...)
                pair = ([each[row][where] for each in found] for found, row in ((out[name], i), (alone[name], 0)))
                torch.testing.assert_close(*pair, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("silence")
def test_settings_of_generation_may_come_as_one_without_a_warning():
    config = small(IOTSeq2SeqConfig)
    assert config.num_predicted_orders[1]
    settings, ids = GenerationConfig(max_new_tokens=3, min_new_tokens=3), torch.tensor([[5, 6, 7]])
    assert IOTSeq2SeqForConditionalGeneration(config).eval().generate(ids, settings).shape == (1, 4)
    # the caller's stay as they are
    assert settings.disable_compile is None
