import pytest
import torch
from common import assert_same, randomize, tokens
from common_bert import BertContract, assert_same_outputs, every_head
from common_bert_naive import batch_of, examples, unlabelled
from families import TODAY, build
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForNextSentencePrediction,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertLMHeadModel,
    BertModel,
)

from sublayers import AUTO_CLASSES, PARBertConfig, PARBertModel, par
from sublayers.convert.bert import from_bert

pytestmark = pytest.mark.slow
BERTS = {
    AutoModel: BertModel,
    AutoModelForPreTraining: BertForPreTraining,
    AutoModelForMaskedLM: BertForMaskedLM,
    AutoModelForNextSentencePrediction: BertForNextSentencePrediction,
    AutoModelForSequenceClassification: BertForSequenceClassification,
    AutoModelForTokenClassification: BertForTokenClassification,
    AutoModelForQuestionAnswering: BertForQuestionAnswering,
    AutoModelForMultipleChoice: BertForMultipleChoice,
}


class TestPARBert(BertContract):
    config_class = PARBertConfig
    todays_parts = TODAY
    classes = AUTO_CLASSES[PARBertConfig]


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


def test_another_order_takes_the_sublayers_in_turn_and_names_the_new_ones():
    source = bert(AutoModelForMaskedLM)
    model, pieces = from_bert(source, "sffsff")
    new = [name for name in model.state_dict() if name not in pieces]
    kinds = ("weight", "bias")
    assert new == [f"model.layers.5.{name}.{kind}" for name in ("norm", "mixer.fc1", "mixer.fc2") for kind in kinds]
    unused = source.state_dict().keys() - {name for piece in pieces.values() for name in piece.names}
    attention = [name for name in source.state_dict() if name.startswith("bert.encoder.layer.2.attention.")]
    assert unused == {*attention}
    blocks, layers = source.bert.encoder.layer, model.model.layers
    for i, block in zip((0, 3), blocks, strict=False):
        assert torch.equal(layers[i].mixer.o_proj.weight, block.attention.output.dense.weight)
        assert torch.equal(layers[i].norm.weight, block.attention.output.LayerNorm.weight)
    for i, block in zip((1, 2, 4), blocks, strict=True):
        assert torch.equal(layers[i].mixer.fc1.weight, block.intermediate.dense.weight)
        assert torch.equal(layers[i].norm.weight, block.output.LayerNorm.weight)


def test_keeps_what_a_fine_tuned_bert_knows_of_its_task():
    names = {0: "no", 1: "yes"}
    source = bert(AutoModelForSequenceClassification, id2label=names, problem_type="single_label_classification")
    config = from_bert(source)[0].config
    assert (config.id2label, config.problem_type) == (names, "single_label_classification")


def test_refuses_what_is_no_encoder():
    with pytest.raises(ValueError, match=r"is_decoder=True .*; only BertModel with is_decoder=False can"):
        from_bert(bert(AutoModel, is_decoder=True))
    with pytest.raises(ValueError, match="BertLMHeadModel cannot be converted; PAR BERT has no such head"):
        from_bert(BertLMHeadModel(bert(AutoModel).config))


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


def test_heads_that_read_the_mean_read_all_tokens_and_no_padding():
    options = {"classifier_pooling": "mean", "pooler_norm": True}
    model = build("par_bert", AutoModelForSequenceClassification, sublayer_order="sfsf", **options).eval()
    ids, mask = tokens(2, 6), torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    states = [model.model(ids[row : row + 1, real]).last_hidden_state for row, real in enumerate(mask.bool())]
    pooled = torch.cat([model.model.pooler(each.mean(1)) for each in states])
    torch.testing.assert_close(model(ids, mask).logits, model.classifier(pooled), rtol=1e-5, atol=1e-5)
    assert model(ids).logits.shape == (2, model.config.num_labels)
    with pytest.raises(ValueError, match="classifier_pooling='mean' needs all states after the tail"):
        PARBertConfig(classifier_pooling="mean", tail_query="mean")
