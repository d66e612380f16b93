"""What is particular to encoders of transformers: classes, positions and tokenizers."""

import pytest
import torch
from common import tokens
from common_convert import convert, edit, make
from tokenizers import pre_tokenizers
from transformers import AutoModel, AutoTokenizer, ElectraForPreTraining, RobertaTokenizer, pipeline


@pytest.mark.parametrize(
    ("name", "options"),
    # two positions fewer are read than RoBERTa's table has
    [("RobertaModel", {"max_position_embeddings": 12}), ("LlamaModel", {"is_causal": False})],
)
def test_a_folder_that_names_no_class_holds_a_body(name, options, tmp_path):
    make(name, **options).save_pretrained(tmp_path / "source")
    edit(tmp_path / "source" / "config.json", architectures=None)
    assert convert(tmp_path, "--verify")["new"] == []
    assert type(AutoModel.from_pretrained(tmp_path / "ours")).__name__ == "PARBertModel"


def test_electras_discriminator_is_its_body(tmp_path, capsys):
    source = make("ElectraModel")
    discriminator = ElectraForPreTraining(source.config)
    discriminator.electra = source
    discriminator.save_pretrained(tmp_path / "source")
    report = convert(tmp_path, "--verify")
    dense = [f"discriminator_predictions.{part}" for part in ("dense", "dense_prediction")]
    heads = {f"{name}.{kind}" for name in dense for kind in ("weight", "bias")}
    assert report["left_out"] == dict.fromkeys(heads, "unknown to ElectraModel")
    assert "left out, unknown to ElectraModel: discriminator_predictions.dense.bias" in capsys.readouterr().out
    model = AutoModel.from_pretrained(tmp_path / "ours")
    expected = source(tokens(2, 9)).last_hidden_state
    torch.testing.assert_close(model(tokens(2, 9)).last_hidden_state, expected, atol=1e-5, rtol=0)


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
        ("Roberta", bytes_of_roberta, ["attention_mask", "input_ids"]),
        ("DistilBert", words_of_bert, ["attention_mask", "input_ids"]),
        ("Electra", words_of_bert, ["attention_mask", "input_ids", "token_type_ids"]),
    ],
)
def test_a_tokenizer_is_taken_along_and_reads_pairs(name, save, inputs, tmp_path):
    make(f"{name}ForSequenceClassification", vocab_size=261).save_pretrained(tmp_path / "source")
    ids = save(tmp_path / "source")
    convert(tmp_path)
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
