import pytest
import torch
from common import REFERENCE, tokens
from common_bert import BertContract
from safetensors.torch import load_file

from sublayers import (
    AUTO_CLASSES,
    MacaronBertConfig,
    MacaronBertForPreTraining,
    macaron,
)
from sublayers.convert.bert import from_macaron_bert

pytestmark = pytest.mark.slow

FIXTURE = REFERENCE / "macaron" / "bert_macaron_pretrain"


class TestMacaronBert(BertContract):
    is_sibling = True
    config_class = MacaronBertConfig
    classes = AUTO_CLASSES[MacaronBertConfig]

    def test_the_first_segment_starts_at_zero_and_is_not_trained(self):
        model = MacaronBertForPreTraining(self.config()).train()
        table = model.model.embed_token_types
        segments = (torch.arange(9) > 4).long()[None]
        model(tokens(1, 9), token_type_ids=segments, labels=tokens(1, 9)).loss.backward()
        for values in (table.weight, table.weight.grad):
            assert (values[0] == 0).all()
            assert (values[1] != 0).all()


def test_defaults_are_the_released_model():
    config = MacaronBertConfig()
    assert config.sublayer_order == macaron(12)
    with torch.device("meta"):
        assert MacaronBertForPreTraining(config).num_parameters() == 110_787_073


@pytest.fixture(scope="module")
def released():
    io = load_file(f"{FIXTURE}.io.safetensors")
    mask = (io["src_tokens"] != 1).long()
    inputs = {
        "input_ids": io["src_tokens"],
        "attention_mask": mask,
        # the release numbers the first sentence 1, and padding 1
        "token_type_ids": torch.where(mask == 1, 1 - io["segment"], 0),
    }
    labels = torch.where(io["output_mask"] == 1, io["target"], -100)
    model, _ = from_macaron_bert(load_file(f"{FIXTURE}.weights.safetensors"), 4, {"max_positions": 48})
    return model, io, inputs, labels


def test_equals_the_released_encoder(released):
    model, io, inputs, _ = released
    real = inputs["attention_mask"].bool()
    out = model(**inputs)
    states = model.model(**inputs).last_hidden_state
    torch.testing.assert_close(states[real], io["encoder_out_TBC"].transpose(0, 1)[real], atol=1e-5, rtol=0)
    logits = io["mlm_logits_all_positions_BTV"]
    torch.testing.assert_close(out.prediction_logits[real], logits[real], atol=1e-5, rtol=0)


@pytest.mark.parametrize("record", [True, False])
def test_equals_the_released_objectives(released, record):
    model, io, inputs, labels = released
    next_sentence_label = 1 - io["label"]
    out = model(**inputs, labels=labels, next_sentence_label=next_sentence_label, output_hidden_states=record)
    torch.testing.assert_close(out.prediction_logits[labels != -100], io["mlm_logits"], atol=1e-5, rtol=0)
    torch.testing.assert_close(out.seq_relationship_logits[:, 0], io["nsp_logit"], atol=1e-5, rtol=0)
    words = model(**inputs, labels=labels).loss
    pairs = model(**inputs, next_sentence_label=next_sentence_label).loss
    torch.testing.assert_close(9 * words, io["mlm_loss_sum"][0], atol=1e-4, rtol=0)
    torch.testing.assert_close(3 * pairs, io["nsp_loss_sum"][0], atol=1e-4, rtol=0)
    # the release, too, weighs the mean over pairs like the mean over words
    torch.testing.assert_close(9 * out.loss, io["loss_sum"][0], atol=1e-4, rtol=0)
