import json

import pytest
import torch
from common import gradients, randomize, tokens
from common_convert import assert_complete
from tokenizers import pre_tokenizers
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    CamembertConfig,
    DistilBertConfig,
    ElectraConfig,
    ElectraForCausalLM,
    ElectraForPreTraining,
    RobertaConfig,
    RobertaForCausalLM,
    RobertaTokenizer,
    XLMRobertaConfig,
    pipeline,
)

from sublayers.training.commands.convert import main
from sublayers.training.convert import verify
from sublayers.training.convert.bert import from_bert

SIZES = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4}
SIZES |= {"num_hidden_layers": 2, "max_position_embeddings": 40, "num_labels": 2}
DISTILBERT = {"vocab_size": 61, "dim": 16, "hidden_dim": 24, "n_heads": 4, "n_layers": 2, "max_position_embeddings": 40}
SOURCES = {
    "roberta": (RobertaConfig, SIZES | {"type_vocab_size": 1, "pad_token_id": 1}),
    # another padding, and segments as BERT has them
    "xlm-roberta": (XLMRobertaConfig, SIZES | {"pad_token_id": 3}),
    "camembert": (CamembertConfig, SIZES | {"type_vocab_size": 1, "tie_word_embeddings": False}),
    "distilbert": (DistilBertConfig, DISTILBERT),
    "distilbert of its own": (
        DistilBertConfig,
        DISTILBERT | {"activation": "relu", "sinusoidal_pos_embds": True, "tie_word_embeddings": False},
    ),
    "electra": (ElectraConfig, SIZES | {"embedding_size": 16}),
}
HEADS = [
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
]
every_source = pytest.mark.parametrize("name", SOURCES)
every_head = pytest.mark.parametrize("head", HEADS)


def build(name, head=AutoModel, **overrides):
    config_class, options = SOURCES[name]
    return randomize(head.from_config(config_class(**options | overrides)))


def batch(config):
    """Rows without padding, with padding on the right and on the left, where ids say so as well."""
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[1, 6:] = mask[2, :4] = 0
    ids = torch.randint(4, 61, (3, 9), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids.masked_fill(mask == 0, config.pad_token_id), "attention_mask": mask}
    if config.to_dict().get("type_vocab_size", 1) > 1:
        inputs["token_type_ids"] = (ids % 2) * mask
    return inputs


@every_head
@every_source
@torch.no_grad()
def test_outputs_are_the_sources(name, head):
    source = build(name, head)
    model, _ = from_bert(source)
    inputs = batch(source.config)
    if head is AutoModelForMultipleChoice:
        inputs = {name: tensor[:, None] for name, tensor in inputs.items()}
    outputs = model(**inputs)
    for row, real in enumerate(inputs["attention_mask"].view(3, 9).bool()):
        alone = {name: tensor[row : row + 1, ..., real] for name, tensor in inputs.items()}
        for key, expected in source(**alone).items():
            actual = outputs[key][row : row + 1]
            actual = actual if actual.shape == expected.shape else actual[:, real]
            torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0, msg=lambda m, key=key: f"{key}: {m}")


@every_source
@torch.no_grad()
def test_hidden_states_are_the_sources(name):
    source = build(name)
    inputs = batch(source.config)
    mask = inputs["attention_mask"].bool()
    actual = from_bert(source)[0](**inputs, output_hidden_states=True).hidden_states
    # the others count padding, unless they are told
    told = {} if "roberta" in name or name == "camembert" else {"position_ids": (mask.cumsum(1) - 1).clamp(0)}
    expected = source(**inputs, **told, output_hidden_states=True).hidden_states
    for ours, theirs in zip(actual[::2], expected, strict=True):
        torch.testing.assert_close(ours[mask], theirs[mask], atol=1e-5, rtol=0)


@every_source
def test_gradients_are_the_sources(name):
    source = build(name, AutoModelForMaskedLM)
    model, pieces = from_bert(source)
    # rows alone: the left padding of most counts as positions
    ids = tokens(2, 9)
    labels = ids.masked_fill(ids % 3 == 0, -100)
    loss, expected = model(ids, labels=labels).loss, source(ids, labels=labels).loss
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=0)
    loss.backward()
    expected.backward()
    for name, gradient in gradients(model).items():
        if pieces[name].names:
            theirs = source.get_parameter(pieces[name].names[0]).grad
            torch.testing.assert_close(gradient, theirs, atol=1e-5, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
        else:
            # without segments, the vector that stands for them is not trained
            assert name == "model.embed_token_types.weight"
            assert not gradient.any()


def convert(folder, *flags):
    """Run the command on a folder beside `ours`, and return its report."""
    report = folder.parent / "report.json"
    main([str(folder), str(folder.parent / "ours"), "--report", str(report), *flags])
    return json.loads(report.read_text())


@every_head
@every_source
@pytest.mark.representatives(12)
def test_folders_are_verified_and_accounted_for(name, head, tmp_path, capsys):
    source = build(name, head)
    source.save_pretrained(tmp_path / "source")
    report = convert(tmp_path / "source", "--verify")
    assert "verified: the outputs differ by at most" in capsys.readouterr().out
    model = head.from_pretrained(tmp_path / "ours")
    # most bodies are trained without a pooler
    new = [f"pooler.dense.{kind}" for kind in ("weight", "bias")]
    assert report["new"] == (new if head is AutoModel and not hasattr(source, "pooler") else [])
    is_distilbert = source.config.model_type == "distilbert"
    zeros = [name for name in model.state_dict() if is_distilbert and "token_types" in name]
    assert_complete(report, source.state_dict(), tmp_path / "ours", report["new"] + zeros)
    # untied, RoBERTa has a bias that it does not read
    unread = head is AutoModelForMaskedLM and name == "camembert"
    assert report["left_out"] == ({"lm_head.bias": "without a place in the model"} if unread else {})
    ids = tokens(2, 9)[None] if head is AutoModelForMultipleChoice else tokens(2, 9)
    torch.testing.assert_close(model(ids)[0], source(ids)[0], atol=1e-5, rtol=0)


def test_a_folder_that_names_no_class_holds_a_body(tmp_path):
    # two positions fewer are read than its table has
    build("roberta", max_position_embeddings=12).save_pretrained(tmp_path / "source")
    path = tmp_path / "source" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": None}))
    assert convert(tmp_path / "source", "--verify")["new"] == []


def test_verification_finds_positions_that_begin_elsewhere(tmp_path, monkeypatch):
    build("roberta").save_pretrained(tmp_path / "source")
    source_of, off = verify.compare, {"position_offset": 1}

    def compare(model, source):
        model.config.update(off)
        return source_of(model, source)

    monkeypatch.setattr(verify, "compare", compare)
    with pytest.raises(ValueError, match="differs from the source's by"):
        convert(tmp_path / "source", "--verify")


def test_electras_discriminator_is_its_body(tmp_path, capsys):
    source = build("electra", AutoModel)
    discriminator = ElectraForPreTraining(source.config)
    discriminator.electra = source
    discriminator.save_pretrained(tmp_path / "source")
    report = convert(tmp_path / "source", "--verify")
    dense = [f"discriminator_predictions.{part}" for part in ("dense", "dense_prediction")]
    heads = {f"{name}.{kind}" for name in dense for kind in ("weight", "bias")}
    assert report["left_out"] == dict.fromkeys(heads, "unknown to ElectraModel")
    assert "left out, unknown to ElectraModel: discriminator_predictions.dense.bias" in capsys.readouterr().out
    model = AutoModel.from_pretrained(tmp_path / "ours")
    expected = source(tokens(2, 9)).last_hidden_state
    torch.testing.assert_close(model(tokens(2, 9)).last_hidden_state, expected, atol=1e-5, rtol=0)


def test_another_order_takes_the_sublayers_in_turn(tmp_path, capsys):
    source = build("distilbert", AutoModelForMaskedLM)
    source.save_pretrained(tmp_path / "source")
    report = convert(tmp_path / "source", "--sublayer_order=sf3")
    layers = AutoModelForMaskedLM.from_pretrained(tmp_path / "ours").model.layers
    blocks = source.distilbert.transformer.layer
    assert torch.equal(layers[0].mixer.q_proj.weight, blocks[0].attention.q_lin.weight)
    for layer, block in zip(layers[1:3], blocks, strict=True):
        assert torch.equal(layer.mixer.fc2.weight, block.ffn.lin2.weight)
        assert torch.equal(layer.norm.weight, block.output_layer_norm.weight)
    assert {name.split(".")[2] for name in report["new"]} == {"3"}
    left = "distilbert.transformer.layer.1."
    assert {*report["left_out"]} == {name for name in source.state_dict() if name.startswith((f"{left}a", f"{left}s"))}
    assert f"dropped {left}attention, {left}sa_layer_norm" in capsys.readouterr().err


def test_dropout_is_that_of_the_head():
    def dropouts(name, head, **theirs):
        config = from_bert(build(name, head, **theirs))[0].config
        return config.dropout, config.classifier_dropout

    roberta = {"hidden_dropout_prob": 0.2, "classifier_dropout": 0.4}
    assert dropouts("roberta", AutoModelForSequenceClassification, **roberta) == (0.2, 0.4)
    assert dropouts("roberta", AutoModelForMultipleChoice, **roberta) == (0.2, 0.2)
    assert dropouts("electra", AutoModelForMultipleChoice, summary_last_dropout=0.3) == (0.1, 0.3)
    distilbert = {"dropout": 0.2, "seq_classif_dropout": 0.3}
    assert dropouts("distilbert", AutoModelForSequenceClassification, **distilbert) == (0.2, 0.3)
    assert dropouts("distilbert", AutoModelForMultipleChoice, **distilbert) == (0.2, 0.3)
    assert dropouts("distilbert", AutoModelForTokenClassification, **distilbert) == (0.2, None)


@pytest.mark.parametrize("activation", ["gelu", "tanh"])
@torch.no_grad()
def test_electras_summary_has_the_activation_that_it_says(activation):
    source = build("electra", AutoModelForMultipleChoice, summary_activation=activation)
    ids = tokens(2, 9)[None]
    torch.testing.assert_close(from_bert(source)[0](ids).logits, source(ids).logits, atol=1e-5, rtol=0)


MASKED, CHOICE = AutoModelForMaskedLM, AutoModelForMultipleChoice


@pytest.mark.parametrize(
    ("name", "head", "overrides", "sentence"),
    [
        ("roberta", AutoModel, {"is_decoder": True}, "is_decoder=True .*; only RobertaModel with is_decoder=False can"),
        ("electra", AutoModel, {"add_cross_attention": True, "is_decoder": True}, "is_decoder=True cannot be"),
        ("camembert", AutoModel, {"add_cross_attention": True, "is_decoder": True}, "only CamembertModel with is_dec"),
        ("roberta", AutoModel, {"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key' "),
        ("roberta", MASKED, {"hidden_act": "relu"}, "hidden_act='relu' .*; only RobertaForMaskedLM with hidden_act='g"),
        ("xlm-roberta", MASKED, {"hidden_act": "relu"}, "hidden_act='relu' cannot be converted; only XLMRobertaFor"),
        ("electra", MASKED, {"hidden_act": "relu"}, "hidden_act='relu' cannot be converted; only ElectraForMaskedLM"),
        ("electra", CHOICE, {"summary_type": "mean"}, "summary_type='mean' .* with summary_type='first' can"),
        ("electra", CHOICE, {"summary_use_proj": False}, "summary_use_proj=False .* with summary_use_proj=True can"),
        ("electra", CHOICE, {"summary_first_dropout": 0.1}, "summary_first_dropout=0.1 .*_first_dropout=0 can"),
        ("electra", AutoModel, {"embedding_size": 8}, "embedding_size=8 differs from hidden_size=16; ElectraMo"),
        ("roberta", AutoModel, {"pad_token_id": None}, "pad_token_id=None cannot be converted; RobertaModel count"),
    ],
)
def test_parts_that_are_not_covered_are_refused(name, head, overrides, sentence, tmp_path):
    build(name, head, **overrides).save_pretrained(tmp_path / "source")
    with pytest.raises(ValueError, match=sentence):
        convert(tmp_path / "source")
    assert not (tmp_path / "ours").exists()


@torch.no_grad()
def test_what_no_head_reads_is_no_reason_to_refuse():
    for name, head in (("roberta", AutoModel), ("electra", AutoModelForSequenceClassification)):
        source = build(name, head, hidden_act="relu", **({"summary_type": "mean"} if name == "electra" else {}))
        model, _ = from_bert(source)
        torch.testing.assert_close(model(tokens(2, 9))[0], source(tokens(2, 9))[0], atol=1e-5, rtol=0)


def test_heads_that_par_bert_lacks_are_refused(tmp_path):
    for name, head in (("roberta", RobertaForCausalLM), ("electra", ElectraForCausalLM)):
        source = head(build(name).config)
        with pytest.raises(ValueError, match=f"{head.__name__} cannot be converted; PAR BERT has no such head"):
            from_bert(source)
    with pytest.raises(ValueError, match=r"no place for \['discriminator_predictions.dense.bias', .* in PAR BERT"):
        from_bert(ElectraForPreTraining(build("electra").config))
    build("roberta").save_pretrained(tmp_path / "source")
    path = tmp_path / "source" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": ["BertModel"]}))
    with pytest.raises(ValueError, match="holds 'BertModel', which is no roberta of transformers"):
        convert(tmp_path / "source")


def bytes_of_roberta(folder):
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocabulary = {text: i for i, text in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    RobertaTokenizer(vocab=vocabulary, merges=[]).save_pretrained(folder)
    return [0, vocabulary["a"], 2, 2, vocabulary["b"], 2]


def words_of_bert(folder):
    """What DistilBERT's folders have: BERT's tokenizer, and the model ignores its segments."""
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]))
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    return [2, 5, 3, 6, 3]


@pytest.mark.parametrize(
    ("name", "save", "inputs"),
    [
        ("roberta", bytes_of_roberta, ["attention_mask", "input_ids"]),
        ("distilbert", words_of_bert, ["attention_mask", "input_ids"]),
        ("electra", words_of_bert, ["attention_mask", "input_ids", "token_type_ids"]),
    ],
)
def test_a_tokenizer_is_taken_along_and_reads_pairs(name, save, inputs, tmp_path):
    build(name, AutoModelForSequenceClassification, vocab_size=261).save_pretrained(tmp_path / "source")
    ids = save(tmp_path / "source")
    convert(tmp_path / "source")
    found, theirs = (AutoTokenizer.from_pretrained(tmp_path / folder) for folder in ("ours", "source"))
    pairs = [("a", "b"), ("ein Wörtchen a", "b, b")]
    encoded, expected = found(pairs, padding=True), theirs(pairs, padding=True)
    assert sorted(encoded) == inputs
    assert all(encoded[key] == expected[key] for key in inputs)
    assert found("a", "b")["input_ids"] == ids
    scores = {
        folder: pipeline("text-classification", str(tmp_path / folder), top_k=None)(
            [{"text": a, "text_pair": b} for a, b in pairs], batch_size=2
        )
        for folder in ("source", "ours")
    }
    for ours, theirs in zip(scores["ours"], scores["source"], strict=True):
        assert [label["score"] for label in ours] == pytest.approx([label["score"] for label in theirs], abs=1e-5)
