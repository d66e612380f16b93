import pytest
import torch
import transformers
from common import assert_same, randomize
from common_bert import BertContract, assert_same_outputs, every_head
from common_bert_naive import batch_of, examples, unlabelled
from families import TODAY
from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification, BertConfig

from sublayers import AUTO_CLASSES, PARBertConfig, PARBertModel, par
from sublayers.training.convert.bert import from_bert

pytestmark = pytest.mark.slow


class TestPARBert(BertContract):
    config_class = PARBertConfig
    todays_parts = TODAY
    classes = AUTO_CLASSES[PARBertConfig]


# transformers' own models by the same Auto classes
BERTS = {
    head: getattr(transformers, head.__name__.replace("Auto", "Bert").replace("BertModelFor", "BertFor"))
    for head in TestPARBert.classes
}


def bert(head, **overrides):
    sizes = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3}
    config = BertConfig(num_attention_heads=4, max_position_embeddings=64, pad_token_id=1, **sizes | overrides)
    return randomize(BERTS[head](config))


@pytest.mark.parametrize("head", BERTS)
def test_interleaved_order_equals_bert(head):
    source = bert(head)
    model, pieces = from_bert(source)
    assert type(model) is TestPARBert.classes[head]
    assert pieces.keys() == model.state_dict().keys()
    assert {name for piece in pieces.values() for name in piece.names} == source.state_dict().keys()
    assert model.num_parameters() == source.num_parameters()
    batch = unlabelled(batch_of(examples(head), "right"))
    expected = dict(source(**batch))
    if head is AutoModelForQuestionAnswering:
        hidden = batch["attention_mask"] == 0
        expected = {name: x.masked_fill(hidden, torch.finfo(x.dtype).min) for name, x in expected.items()}
    assert_same_outputs(model(**batch), expected, batch["attention_mask"])


@every_head
def test_learns_from_the_same_loss_as_bert(head):
    source = bert(head, hidden_dropout_prob=0, attention_probs_dropout_prob=0).train()
    model = from_bert(source)[0].train()
    # bert's softmax over the starts of answers takes padding in
    lengths = [7, 7, 7] if head is AutoModelForQuestionAnswering else [9, 4, 7]
    batch = batch_of(examples(head, lengths), "right")
    loss, expected = model(**batch).loss, source(**batch).loss
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=0)
    loss.backward()
    expected.backward()
    with torch.no_grad():
        for parameter in source.parameters():
            # converted like weights, gradients lie where those of the model do
            parameter.copy_(torch.zeros(()) if parameter.grad is None else parameter.grad)
    converted = dict(from_bert(source)[0].named_parameters())
    assert_same({n: p.grad for n, p in model.named_parameters()}, converted, atol=1e-4, rtol=1e-3)


def test_keeps_what_a_fine_tuned_bert_knows_of_its_task():
    names = {0: "no", 1: "yes"}
    source = bert(AutoModelForSequenceClassification, id2label=names, problem_type="single_label_classification")
    config = from_bert(source)[0].config
    assert (config.id2label, config.problem_type) == (names, "single_label_classification")


def test_defaults_are_base_models_of_the_papers():
    assert PARBertConfig().sublayer_order == par(24, 5)
    with torch.device("meta"):
        assert PARBertModel(PARBertConfig()).num_parameters() == 126_002_688
        # BERT base
        assert PARBertModel(PARBertConfig(sublayer_order="(sf)12")).num_parameters() == 109_482_240


def test_knows_berts_names_for_dropouts(tmp_path):
    PARBertConfig(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2).save_pretrained(tmp_path)
    loaded = PARBertConfig.from_pretrained(tmp_path, hidden_dropout_prob=0.4)
    assert (loaded.dropout, loaded.attention_dropout, loaded.hidden_dropout_prob) == (0.4, 0.2, 0.4)
