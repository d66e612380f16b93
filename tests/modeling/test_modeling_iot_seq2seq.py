import itertools

import pytest
import torch
from common import tokens, train_gradients
from common_iot_naive import naive_terms
from common_seq2seq import TARGETS, padded
from common_seq2seq_generation import BEAMS, GREEDY, Seq2SeqGenerationContract
from common_seq2seq_training import (
    IGNORED,
    Seq2SeqTrainingContract,
    collator,
    ragged_rows,
)
from families import TODAY, small
from transformers import AutoModel, AutoModelForSeq2SeqLM, GenerationConfig
from transformers.modeling_outputs import BaseModelOutput

from sublayers import (
    IOTSeq2SeqConfig,
    IOTSeq2SeqForConditionalGeneration,
    IOTSeq2SeqModel,
    expand,
)

pytestmark = pytest.mark.slow


def rotations(order: str) -> list[str]:
    letters = expand(order)
    return list(dict.fromkeys(letters[i:] + letters[:i] for i in range(len(letters))))


class TestOneOrder(Seq2SeqGenerationContract, Seq2SeqTrainingContract):
    is_sibling = True
    config_class = IOTSeq2SeqConfig
    classes = {AutoModel: IOTSeq2SeqModel, AutoModelForSeq2SeqLM: IOTSeq2SeqForConditionalGeneration}
    pairs, without_self_attention = [("sf", "scf"), ("ff", "ccsf"), ("sff", "scsf"), ("sf", "sscf")], [("sf", "cf")]
    saved_orders = [("sff", "fscscf"), ("ff", "f"), ("sf", "cf"), ("sf", "sf")]
    lacks = ("pre_attention_act",)
    # of encoder and decoder
    num_orders = (1, 1)

    def stacks(self, *orders):
        every = {name: rotations(order) for name, order in super().stacks(*orders).items()}
        chosen = {name: every[name][:number] for name, number in zip(every, self.num_orders, strict=True)}
        return chosen | {"num_encoder_blocks": 1, "num_decoder_blocks": 1}

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            ({"encoder_orders": ["scf"]}, "no sublayers c .* in its encoder_orders, here 'scf'"),
            ({"decoder_orders": ["scf", "sqf"]}, "'q' is not a sublayer"),
            ({"decoder_orders": []}, "decoder_orders is empty; give at least one order"),
            ({"decoder_orders": ["scfscf", "csf", "(scf)2"]}, "decoder_orders=.* holds an order twice"),
            ({"encoder_orders": ["sf", "ff"]}, "encoder_orders=.* must have the same letters in other orders"),
            ({"decoder_orders": ["scf", "scff"]}, "decoder_orders=.* must have the same letters in other orders"),
            (
                {"decoder_orders": ["sdcf", "dscf"]},
                r"in the sequences \['ds', 'sd'\]; bring them into one, and vary what stands between them",
            ),
            (
                {"encoder_orders": ["sf", "fs"], "min_order_probability": 0.6},
                "2 orders cannot all have min_order_probability=0.6; give at most 0.5",
            ),
            ({"pre_attention_act": "gelu"}, "iot_seq2seq has several orders and no pre_attention_act; leave it out"),
            ({"order_paths": "all"}, "order_paths"),
            ({"gumbel_temperature": 0.0}, "gumbel_temperature"),
            ({"num_hidden_layers": 9}, "num_hidden_layers=9 contradicts the order .*; change decoder_orders instead"),
            ({"decoder_order": ["scf"]}, "did you mean 'decoder_orders'"),
            ({"sublayer_order": "sf"}, "has no sublayer_order; give encoder_orders and decoder_orders"),
            ({"encoder_sublayer_order": "sf"}, "has no encoder_sublayer_order; give encoder_orders and decoder_orders"),
        ],
    )
    def test_refuses_bad_configs(self, overrides, message):
        with pytest.raises(ValueError, match=message):
            self.config(**overrides)


class TestSeveralOrders(TestOneOrder):
    """The same for batches whose rows choose different orders."""

    left_to_others = (
        "test_compiles_in_one_graph",
        "test_the_seq2seq_trainer_trains_evaluates_and_predicts",
    )

    num_orders = (2, 3)
    trained_pairs = TestOneOrder.pairs[:2]
    cross_entropy_only = {"diversity_weight": 0.0, "sharpness_weight": 0.0}

    @pytest.fixture(autouse=True)
    def no_noise(self, monkeypatch):
        monkeypatch.setattr(torch.nn.functional, "gumbel_softmax", lambda logits, tau, dim: (logits / tau).softmax(dim))

    def paths(self, model):
        return [{"forced_encoder_order": m, "forced_decoder_order": n} for m, n in model.config.paths]

    def passes(self, model):
        return len(model.config.encoder_orders), len(model.config.paths)

    def naive_loss(self, model, rows, smoothing):
        config, (cross_entropy, diversity, sharpness) = model.config, naive_terms(model, rows)
        mean = cross_entropy / sum(int((row["labels"] != IGNORED).sum()) for row in rows)
        return mean + config.diversity_weight * diversity + config.sharpness_weight * sharpness

    def model(self, head=AutoModel, *orders, **overrides):
        model = super().model(head, *orders, **overrides)
        encoder = model.base_model.encoder
        for name, predictor in encoder.named_children():
            for seed in itertools.count() if name.endswith("_predictor") else ():
                with torch.no_grad():
                    predictor.weight.normal_(generator=torch.Generator().manual_seed(seed))
                    chosen = encoder(**padded())[name.removesuffix("_predictor")]
                if len(chosen.unique()) > 1:
                    break
        return model

    @pytest.mark.full
    def test_rows_with_todays_parts_equal_rows_alone(self):
        self.parts = TODAY
        self.test_padding_changes_no_score()
        self.test_continues_from_a_cache_at_any_split()
        self.test_loss_and_gradients_are_those_of_rows_without_padding(0.1)

    def test_rows_of_a_batch_choose_different_orders(self):
        for orders in self.all_pairs:
            model = self.translator(*orders)
            out = model(**padded(), **TARGETS)
            assert len(out.decoder_order.unique()) > 1
            assert len(out.encoder_order.unique()) == min(2, len(model.config.encoder_orders))

    def test_the_trainers_label_smoothing_smooths_the_same(self, tmp_path):
        # it keeps the labels to itself, and orders are chosen by their losses
        model, options = self.translator(), {"per_device_train_batch_size": 8, "label_smoothing_factor": 0.1}
        with pytest.raises(ValueError, match="without labels the choice of orders learns nothing; give labels"):
            train_gradients(model, ragged_rows(), tmp_path, data_collator=collator(model), **options)

    def test_forced_orders_take_the_place_of_predicted_ones(self):
        for orders in self.pairs:
            model = self.translator(*orders)
            predicted = model(**padded(), **TARGETS)
            same = {f"forced_{name}": predicted[name] for name in ("encoder_order", "decoder_order")}
            assert torch.equal(model(**padded(), **TARGETS, **same).logits, predicted.logits)
            # every row in each order, by number and by tensor, equals that row of a batch of its own
            alone = {
                path: model(**padded(), **TARGETS, forced_encoder_order=path[0], forced_decoder_order=path[1])
                for path in model.config.paths
            }
            for shift in range(2):
                chosen = [model.config.paths[(i + shift) % len(alone)] for i in range(3)]
                encoder_order, decoder_order = torch.tensor(chosen).T
                forced = {"forced_encoder_order": encoder_order, "forced_decoder_order": decoder_order}
                out = model(**padded(), **TARGETS, **forced)
                assert torch.equal(out.encoder_order, encoder_order)
                assert torch.equal(out.decoder_order, decoder_order)
                for i, path in enumerate(chosen):
                    torch.testing.assert_close(out.logits[i], alone[path].logits[i], atol=1e-5, rtol=1e-5)
            assert not torch.allclose(*(out.logits for out in [*alone.values()][:2]), atol=1e-3)

    def test_forced_orders_of_generation_are_those_of_a_naive_loop(self):
        model, forced = self.translator(), {"forced_encoder_order": torch.tensor([1, 0, 1]), "forced_decoder_order": 2}
        orders = [{"forced_encoder_order": m, "forced_decoder_order": 2} for m in (1, 0, 1)]
        expected = self.naive_greedy(model, padded(), orders=orders)
        for options in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
            out = model.generate(**padded(), **GREEDY, **options, **forced, return_dict_in_generate=True)
            assert torch.equal(out.sequences[:, 1:], expected)
            assert out.encoder_order.tolist() == [1, 0, 1]
            assert out.decoder_order.tolist() == [2, 2, 2]
        # two candidates for each source
        forced["forced_decoder_order"] = torch.tensor([0, 2, 1])
        expected = model.generate(**padded(), **BEAMS, **forced, use_cache=False)
        assert torch.equal(model.generate(**padded(), **BEAMS, **forced), expected)

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
    def test_says_which_forced_orders_there_are_not(self, forced, message):
        with pytest.raises(ValueError, match=message):
            self.translator()(**padded(), **TARGETS, **forced)

    def test_a_cache_serves_one_order_and_several(self):
        model, several = self.translator(), torch.tensor([2, 1, 0])
        ids = torch.cat([TARGETS["decoder_input_ids"], tokens(3, 1)], 1)
        for orders, same in (
            ((1, 1), [0, 1, 2]),
            ((several, several), [0, 1, 2]),
            ((1, several), [1]),
            ((several, 1), [1]),
        ):
            first = model(**padded(), **TARGETS, use_cache=True, forced_decoder_order=orders[0])
            encoded = {"encoder_outputs": (first.encoder_last_hidden_state,)}
            encoded |= {"attention_mask": padded()["attention_mask"], "forced_decoder_order": orders[1]}
            cached = model(**encoded, decoder_input_ids=ids[:, -1:], cache=first.cache)
            expected = model(**encoded, decoder_input_ids=ids).logits[:, -1]
            torch.testing.assert_close(cached.logits[same, 0], expected[same], atol=1e-5, rtol=1e-5)

    def test_encoder_outputs_bring_their_orders(self):
        model = self.translator()
        expected = model(**padded(), **TARGETS)
        encoded = model.get_encoder()(**padded())
        assert torch.equal(encoded.encoder_order, encoded.encoder_order_logits.argmax(1))
        assert torch.equal(encoded.decoder_order, encoded.decoder_order_logits.argmax(1))
        mask = padded()["attention_mask"]
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
        generated = model.generate(**padded(), **BEAMS)
        for outputs in (encoded, BaseModelOutput(encoded.last_hidden_state)):
            assert torch.equal(model.generate(encoder_outputs=outputs, attention_mask=mask, **BEAMS), generated)
        # it also tells what is decoded in a forced order
        for order in (1, 2, torch.tensor([2, 0, 1])):
            forced = {"forced_decoder_order": order}
            given = {"encoder_outputs": model.get_encoder()(**padded(), **forced), "attention_mask": mask}
            out, expected = model(**given, **TARGETS), model(**padded(), **TARGETS, **forced)
            assert torch.equal(out.decoder_order, expected.decoder_order)
            torch.testing.assert_close(out.logits, expected.logits)
            assert torch.equal(model.generate(**given, **GREEDY), model.generate(**padded(), **GREEDY, **forced))
        options = BEAMS | {"return_dict_in_generate": True, "forced_decoder_order": 0}
        forced = model.generate(encoder_outputs=encoded, attention_mask=mask, **options)
        assert forced.decoder_order.tolist() == [0] * 3
        assert torch.equal(forced.encoder_order, encoded.encoder_order)

    def test_states_and_weights_of_a_mixed_batch_are_those_of_rows_alone(self):
        for orders in self.pairs:
            model = self.translator(*orders, attn_implementation="eager")
            out = model(**padded(), **TARGETS, output_hidden_states=True, output_attentions=True)
            for i, target in enumerate(TARGETS["decoder_input_ids"]):
                given = {name: value[i : i + 1] for name, value in padded().items()}
                asked = {"output_hidden_states": True, "output_attentions": True}
                alone = model(**given, decoder_input_ids=target[None], **asked)
                real = given["attention_mask"][0].bool()
                for name in (
                    "encoder_hidden_states",
                    "decoder_hidden_states",
                    "decoder_attentions",
                    "cross_attentions",
                ):
                    for actual, expected in zip(out[name], alone[name], strict=True):
                        actual, expected = actual[i], expected[0]
                        if name == "encoder_hidden_states":
                            actual, expected = actual[real], expected[real]
                        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
                for actual, expected in zip(out.encoder_attentions, alone.encoder_attentions, strict=True):
                    torch.testing.assert_close(actual[i][:, real], expected[0][:, real], atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("silence")
def test_settings_of_generation_may_come_as_one_without_a_warning():
    config = small(IOTSeq2SeqConfig)
    assert config.num_predicted_orders[1]
    settings, ids = GenerationConfig(max_new_tokens=3, min_new_tokens=3), torch.tensor([[5, 6, 7]])
    assert IOTSeq2SeqForConditionalGeneration(config).eval().generate(ids, settings).shape == (1, 4)
    # the caller's stay as they are
    assert settings.disable_compile is None
