import json

import numpy as np
import pytest
import torch
from datasets import Dataset
from tiny_teachers import TEXTS, save_teacher

from sublayers.training.data.corpus import Text
from sublayers.training.distill import answers
from sublayers.training.distill.answers import AnswerCollator, AnsweredTexts, load_answers
from sublayers.training.distill.teacher import open_teacher
from sublayers.training.distill.texts import encode_texts, hash_rows

ABOUT = {"teacher": "a", "text": "b"}


@pytest.fixture
def teacher(tmp_path):
    save_teacher(tmp_path / "teacher")
    return open_teacher(str(tmp_path / "teacher"), "embeddings")


def rows_of(texts, tokenizer, **options):
    rows = Dataset.from_dict({"text": texts})
    return encode_texts(Text(rows, **options), tokenizer, 12, by_sentence=True)


def expected_answers(teacher, texts):
    """One text at a time."""
    found = []
    for text in texts:
        ids = teacher.tokenizer(text, truncation=True, max_length=12, return_tensors="pt")
        with torch.no_grad():
            found.append(teacher.model(**ids).last_hidden_state[0].mean(0))
    return torch.stack(found).numpy()


def test_every_text_has_its_own_answer_and_the_teacher_is_asked_once(teacher, tmp_path, monkeypatch):
    rows, folder = rows_of(TEXTS, teacher.tokenizer), tmp_path / "answers"
    found = load_answers(folder, "train", ABOUT, teacher, rows, 7, "cpu")
    np.testing.assert_allclose(found, expected_answers(teacher, TEXTS), rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(answers, "answer", None)
    again = load_answers(folder, "train", ABOUT, teacher, rows, 7, "cpu")
    assert isinstance(again, np.memmap)
    np.testing.assert_array_equal(again, found)
    with pytest.raises(ValueError, match="holds answers for train with another teacher and text; choose another"):
        load_answers(folder, "train", {"teacher": "c", "text": "d"}, teacher, rows, 7, "cpu")
    with pytest.raises(TypeError):
        load_answers(folder, "validation", ABOUT, teacher, rows, 7, "cpu")


def test_answers_that_were_interrupted_are_computed_anew(teacher, tmp_path, monkeypatch):
    rows, folder, asked = rows_of(TEXTS, teacher.tokenizer), tmp_path / "answers", []

    def interrupt(*args, answer=answers.answer):
        asked.append(args)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return answer(*args)

    monkeypatch.setattr(answers, "answer", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load_answers(folder, "train", ABOUT, teacher, rows, 7, "cpu")
    assert {path.name for path in folder.iterdir()} == {"train.part.npy"}
    found = load_answers(folder, "train", ABOUT, teacher, rows, 7, "cpu")
    np.testing.assert_allclose(found, expected_answers(teacher, TEXTS), rtol=1e-4, atol=1e-5)
    assert {path.name for path in folder.iterdir()} == {"train.npy", "train.json"}
    assert json.loads((folder / "train.json").read_text()) == ABOUT


def test_texts_are_sentences_cut_to_a_length(teacher):
    tokenizer = teacher.tokenizer
    documents = ["A short text. And another one!\n\n  \nWith more words", None, " ", "one " * 30]
    sentences = ["A short text.", "And another one!", "With more words", "one " * 30]
    rows = rows_of(documents, tokenizer)
    assert rows["input_ids"][:] == tokenizer(sentences, truncation=True, max_length=12)["input_ids"]
    # lines, with their ends, are one text
    lines = rows_of(["A short text. And another\n", "\n", "one! With more words"], tokenizer, documents=False)
    assert len(lines) == 4
    with pytest.raises(ValueError, match="the text has no sentences"):
        rows_of([" ", "\n\n"], tokenizer)


def test_classified_texts_are_rows_and_a_tab_divides_pairs(teacher):
    tokenizer = teacher.tokenizer
    rows = Dataset.from_dict({"text": ["A short text. And another.", "the first\tthe other one", "\n"]})
    found = encode_texts(Text(rows), tokenizer, 12, by_sentence=False)
    expected = [
        tokenizer("A short text. And another.", max_length=12, truncation=True),
        tokenizer("the first", "the other one"),
    ]
    assert found["input_ids"][:] == [each["input_ids"] for each in expected]
    assert found["token_type_ids"][:] == [each["token_type_ids"] for each in expected]


def test_the_hash_of_rows_is_that_of_their_tokens(teacher):
    tokenizer = teacher.tokenizer
    assert hash_rows(rows_of(["a short", "text"], tokenizer)) == hash_rows(rows_of(["a short\ntext"], tokenizer))
    found = [hash_rows(Dataset.from_dict({"input_ids": ids})) for ids in ([[1, 2], [3]], [[1], [2, 3]], [[1, 2], [4]])]
    assert len({*found}) == 3


def test_batches_have_texts_and_their_answers(teacher):
    rows = rows_of(TEXTS, teacher.tokenizer)
    texts = AnsweredTexts(rows, np.arange(2.0 * len(rows)).reshape(-1, 2))
    batch = AnswerCollator(teacher.tokenizer)([texts[3], texts[1]])
    assert batch["answers"].tolist() == [[6, 7], [2, 3]]
    assert batch["input_ids"][1][: len(rows[1]["input_ids"])].tolist() == rows[1]["input_ids"]
    assert batch["attention_mask"].sum(1).tolist() == [len(rows[i]["input_ids"]) for i in (3, 1)]
