import json

import pytest
import torch
from tiny_teachers import TEXTS, make_sentence_encoder, save_teacher
from transformers import AutoModel, BertForMaskedLM, DistilBertConfig, DistilBertModel

from sublayers.modeling.modeling_par_bert import PARBertForSequenceClassification
from sublayers.training.distill.teacher import CLASSIFIER, answer, hash_vocabulary, hash_weights, open_teacher


def test_a_sentence_encoder_says_how_it_pools(tmp_path):
    save_teacher(tmp_path)
    teacher = open_teacher(str(tmp_path))
    assert (teacher.pooling, teacher.is_sentence_encoder) == ("mean", False)
    for mode in ("mean", "cls"):
        make_sentence_encoder(tmp_path, mode)
        (tmp_path / "config_sentence_transformers.json").write_text('{"prompts": {"query": "q: "}, "__version__": {}}')
        teacher = open_teacher(str(tmp_path))
        assert teacher.is_sentence_encoder
        assert (teacher.pooling, teacher.normalize, teacher.max_seq_length) == (mode, True, 24)
        assert teacher.settings == {"prompts": {"query": "q: "}}
    # as it is written from version 6 on
    file = tmp_path / "1_Pooling" / "config.json"
    file.write_text(json.dumps({"pooling_mode": "mean"}))
    assert open_teacher(str(tmp_path)).pooling == "mean"
    for pooling, said in (
        ({"pooling_mode": ["mean", "cls"]}, r"pools by \['mean', 'cls'\]; give an encoder"),
        ({"pooling_mode": "mean", "include_prompt": False}, "leaves prompts out of its Pooling"),
    ):
        file.write_text(json.dumps(pooling))
        with pytest.raises(ValueError, match=said):
            open_teacher(str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "max"}, "pools by 'pooling_mode_max_tokens'; give an encoder that pools by 'mean' or 'cls'"),
        (
            {"modules": ["Transformer", "Pooling", "Dense"]},
            "has the modules Transformer, Pooling, Dense; give an encoder",
        ),
        ({"do_lower_case": True}, "lowers the case of texts"),
    ],
)
def test_a_sentence_encoder_that_does_more_is_refused(settings, message, tmp_path):
    save_teacher(tmp_path)
    make_sentence_encoder(tmp_path, **settings)
    with pytest.raises(ValueError, match=message):
        open_teacher(str(tmp_path))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("modules.json", {"a": 1}),
        ("modules.json", [{}, {}]),
        ("modules.json", [{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": 3}]),
        ("1_Pooling/config.json", [1]),
        ("sentence_bert_config.json", {"max_seq_length": "many"}),
        ("config_sentence_transformers.json", {"prompts": "many"}),
        ("config_sentence_transformers.json", "many"),
    ],
)
def test_a_damaged_sentence_encoder_is_one_sentence(file, content, tmp_path):
    save_teacher(tmp_path)
    make_sentence_encoder(tmp_path)
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(ValueError, match="is damaged, or holds more than weights"):
        open_teacher(str(tmp_path))


def test_a_classifier_answers_with_logits(tmp_path):
    bert, tokenizer = save_teacher(tmp_path, labels=3)
    teacher = open_teacher(str(tmp_path), CLASSIFIER)
    assert type(teacher.model) is PARBertForSequenceClassification
    with torch.no_grad():
        expected = torch.cat([bert(**tokenizer(text, return_tensors="pt")).logits for text in TEXTS])
        found = answer(teacher.model, tokenizer(TEXTS, padding=True, return_tensors="pt"), None)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_another_architecture_is_pooled_without_its_padding(side, tmp_path):
    _, tokenizer = save_teacher(tmp_path)
    model = DistilBertModel(DistilBertConfig(vocab_size=len(tokenizer), dim=16, hidden_dim=24, n_heads=2)).eval()
    tokenizer.padding_side = side
    rows = tokenizer(TEXTS[:5], padding=True, return_tensors="pt")
    for pooling, pool in {"mean": lambda states: states.mean(0), "cls": lambda states: states[0]}.items():
        for row, found in zip(range(5), answer(model, rows, pooling), strict=True):
            states = model(**{name: tensor[row : row + 1] for name, tensor in rows.items()}).last_hidden_state[0]
            torch.testing.assert_close(found, pool(states[rows["attention_mask"][row].bool()]))


def test_what_cannot_teach_is_refused(tmp_path):
    bert, tokenizer = save_teacher(tmp_path)
    with pytest.raises(ValueError, match="is no classifier but BertModel; choose another --objective"):
        open_teacher(str(tmp_path), CLASSIFIER)
    with pytest.raises(OSError, match=r"there is no folder \./nowhere"):
        open_teacher("./nowhere")
    weights = {name: tensor for name, tensor in bert.state_dict().items() if "layer.1." not in name}
    bert.save_pretrained(tmp_path / "holes", state_dict=weights)
    tokenizer.save_pretrained(tmp_path / "holes")
    with pytest.raises(ValueError, match=r"has no weights for encoder\.layer\.1"):
        open_teacher(str(tmp_path / "holes"))
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has no token to pad with; give an encoder"):
        open_teacher(str(tmp_path))


def test_the_body_of_a_masked_language_model_teaches_without_a_pooler(tmp_path):
    bert, _ = save_teacher(tmp_path)
    BertForMaskedLM(bert.config).save_pretrained(tmp_path)
    teachers = [open_teacher(str(tmp_path)) for _ in range(2)]
    assert teachers[0].pooling == "mean"
    # who goes on with its answers knows it again
    assert len({hash_weights(teacher.model) for teacher in teachers}) == 1


def test_hashes_are_of_weights_and_of_tokens(tmp_path):
    found = {}
    for name, options in {"a": {}, "b": {}, "c": {"seed": 1}, "d": {"words": 60}}.items():
        save_teacher(tmp_path / name, **options)
        teacher = open_teacher(str(tmp_path / name))
        found[name] = hash_weights(teacher.model), hash_vocabulary(teacher.tokenizer)
    assert found["a"] == found["b"]
    assert found["a"][0] != found["c"][0]
    assert found["a"][1] == found["c"][1] != found["d"][1]
    assert hash_weights(AutoModel.from_pretrained(tmp_path / "c")) == hash_weights(
        AutoModel.from_pretrained(tmp_path / "c")
    )
