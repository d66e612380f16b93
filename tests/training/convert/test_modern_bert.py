import json

import pytest
import torch
from common import gradients, randomize, tokens
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertForSequenceClassification,
    ModernBertForTokenClassification,
    ModernBertModel,
)

from sublayers.training.commands.convert import main
from sublayers.training.convert.modern_bert import from_modern_bert

SIZES = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
SIZES |= {"num_hidden_layers": 4, "local_attention": 8, "max_position_embeddings": 200, "pad_token_id": 1}
SIZES |= {"bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2}
BIASED = {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True}
CLASSES = {
    AutoModel: ModernBertModel,
    AutoModelForMaskedLM: ModernBertForMaskedLM,
    AutoModelForSequenceClassification: ModernBertForSequenceClassification,
}


def build(head, **options):
    return randomize(CLASSES[head](ModernBertConfig(**SIZES | options)))


@pytest.mark.parametrize("options", [{}, BIASED | {"hidden_activation": "silu", "classifier_activation": "silu"}])
@pytest.mark.parametrize("head", CLASSES)
# shorter than blocks are made for, and longer
@pytest.mark.parametrize("length", [20, 190])
@torch.no_grad()
def test_its_own_order_equals_the_source(head, options, length, tmp_path):
    source = build(head, **options)
    source.save_pretrained(tmp_path / "source")
    main([str(tmp_path / "source"), str(tmp_path / "ours"), "--verify", "--report", str(tmp_path / "report.json")])
    report = json.loads((tmp_path / "report.json").read_text())
    assert {*report["taken_over"]} == {*source.state_dict()} - {*report["left_out"]}
    # the source's body has no pooler
    assert all("pooler" in name for name in report["new"])
    assert head is AutoModel or not report["new"]
    model = head.from_pretrained(tmp_path / "ours")
    assert model.config.sublayer_order == "s(fw)2fsf"
    ids, mask = tokens(3, length), torch.ones(3, length, dtype=torch.long)
    # it pools the first place of a row, which has to be no padding; left of the text, others may be
    mask[2, -7:] = 0
    mask[1, : length // 3] = int(head is AutoModelForSequenceClassification)
    wanted, found = source(ids, attention_mask=mask)[0], model(ids, attention_mask=mask)[0]
    if head is not AutoModelForSequenceClassification:
        wanted, found = wanted[mask.bool()], found[mask.bool()]
    scale = wanted.abs().max()
    torch.testing.assert_close(found / scale, wanted / scale, atol=1e-5, rtol=1e-5)


def test_gradients():
    source = build(AutoModelForSequenceClassification)
    model, _ = from_modern_bert(source)
    for network in (source, model):
        network(tokens(2, 20), labels=torch.tensor([0, 1])).loss.backward()
    theirs, ours = gradients(source), gradients(model)
    for name, other in {
        "model.embed_tokens.weight": "model.embeddings.tok_embeddings.weight",
        "model.layers.2.mixer.o_proj.weight": "model.layers.1.attn.Wo.weight",
        "model.pooler.dense.weight": "head.dense.weight",
    }.items():
        torch.testing.assert_close(ours[name], theirs[other], atol=1e-5, rtol=1e-4)


def test_another_order_takes_over_what_both_have():
    source = build(AutoModel)
    model, _ = from_modern_bert(source, sublayer_order="sws2f3")
    assert torch.equal(model.layers[1].mixer.o_proj.weight, source.layers[1].attn.Wo.weight)
    assert torch.equal(model.layers[2].mixer.o_proj.weight, source.layers[3].attn.Wo.weight)
    assert torch.equal(model.layers[5].mixer.fc2.weight, source.layers[1].mlp.Wo.weight)
    assert from_modern_bert(source, sublayer_order="sf")[0].config.attention_window is None


@pytest.mark.parametrize(
    ("head", "options", "sentence"),
    [
        (AutoModelForSequenceClassification, {"classifier_pooling": "mean"}, "classifier_pooling='mean' cannot be"),
        (AutoModelForMaskedLM, {"decoder_bias": False}, "decoder_bias=False cannot be converted"),
        (AutoModelForMaskedLM, {"classifier_activation": "relu"}, "classifier_activation='relu' differs from hidden"),
        (
            AutoModel,
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}},
            "rope_type of sliding_attention='linear' cannot be converted",
        ),
    ],
)
def test_parts_that_are_not_covered_are_named(head, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        from_modern_bert(build(head, **options))


def test_other_heads_are_refused(tmp_path):
    ModernBertForTokenClassification(ModernBertConfig(**SIZES)).save_pretrained(tmp_path / "source")
    with pytest.raises(
        ValueError, match="'ModernBertForTokenClassification', which none here is like; ModernBertModel"
    ):
        main([str(tmp_path / "source"), str(tmp_path / "ours")])
