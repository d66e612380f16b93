import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from tiny_teachers import TEXTS, save_teacher

from sublayers.training.data.corpus import Text
from sublayers.training.distill import answers
from sublayers.training.distill.answers import AnswerCollator, AnsweredTexts, load_answers
from sublayers.training.distill.objectives import Embeddings
from sublayers.training.distill.teacher import open_teacher
from sublayers.training.distill.texts import encode_texts, hash_rows

ABOUT = {"teacher": "a", "text": "b"}


@pytest.fixture
def teacher(tmp_path):
    save_teacher(tmp_path / "teacher")
    return open_teacher(str(tmp_path / "teacher"))


class States(Embeddings):
    """Two answers to a text: the states of its first two tokens."""

    def count(self, texts):
        return np.full(len(texts), 2)

    def ask_teacher(self, batch):
        return self.teacher.model(**batch).last_hidden_state[:, :2].flatten(0, 1)


def load(folder, teacher, rows, split="train", about=ABOUT, kind=Embeddings):
    objective = kind(teacher, None)
    texts = AnsweredTexts(rows, objective.count(rows))
    return load_answers(folder, split, about, objective, texts, 7, "cpu")


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
    found = load(folder, teacher, rows)
    np.testing.assert_allclose(found, expected_answers(teacher, TEXTS), rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(Embeddings, "ask_teacher", None)
    again = load(folder, teacher, rows)
    assert isinstance(again, np.memmap)
    np.testing.assert_array_equal(again, found)
    with pytest.raises(ValueError, match="holds answers for train with another teacher and text; choose another"):
        load(folder, teacher, rows, about={"teacher": "c", "text": "d"})
    with pytest.raises(TypeError):
        load(folder, teacher, rows, "validation")


@pytest.mark.parametrize("kind", [Embeddings, States])
@pytest.mark.parametrize("last", range(1, 8))
def test_answers_that_were_interrupted_go_on_where_they_stopped(kind, last, teacher, tmp_path, monkeypatch):
    """Wherever the teacher stops to answer: chunks of 20, 20 and 8 texts take 3, 3 and 2 batches."""
    rows, folder, asked = rows_of(TEXTS, teacher.tokenizer), tmp_path / "answers", []
    monkeypatch.setattr(answers, "CHUNK", 20)
    whole = load(tmp_path / "whole", teacher, rows, kind=kind)

    def interrupt(objective, batch, ask=kind.ask_teacher):
        if len(asked) == last:
            raise InterruptedError
        asked.append(batch)
        return ask(objective, batch)

    monkeypatch.setattr(kind, "ask_teacher", interrupt)
    with pytest.raises(InterruptedError):
        load(folder, teacher, rows, kind=kind)
    done = last // 3 * 20
    record = folder / "train.json"
    assert (json.loads(record.read_text()) if done else record.exists()) == (ABOUT | {"answered": done} if done else 0)
    with pytest.raises(InterruptedError):
        load(folder, teacher, rows, kind=kind)
    asked.clear()
    last = 8 - last // 3 * 3
    found = load(folder, teacher, rows, kind=kind)
    # no batch more than those of the chunks that were not recorded
    assert len(asked) == last
    np.testing.assert_array_equal(found, whole)
    assert {path.name for path in folder.iterdir()} == {"train.npy", "train.json"}
    assert json.loads(record.read_text()) == ABOUT


@pytest.mark.parametrize("name", ["flush", "_write"])
def test_a_chunk_that_is_not_recorded_is_not_believed(name, teacher, tmp_path, monkeypatch):
    rows, folder = rows_of(TEXTS, teacher.tokenizer), tmp_path / "answers"
    monkeypatch.setattr(answers, "CHUNK", 20)
    whole = load(tmp_path / "whole", teacher, rows)
    times = []

    def interrupt(*args, call=np.memmap.flush if name == "flush" else answers._write):
        times.append(args)
        if len(times) == 2:
            raise InterruptedError
        return call(*args)

    with monkeypatch.context() as patched:
        patched.setattr(*((np.memmap, name) if name == "flush" else (answers, name)), interrupt)
        with pytest.raises(InterruptedError):
            load(folder, teacher, rows)
    assert json.loads((folder / "train.json").read_text()) == ABOUT | {"answered": 20}
    # what is not counted may be anything
    np.load(folder / "train.npy", mmap_mode="r+")[20:] = np.nan
    np.testing.assert_array_equal(load(folder, teacher, rows), whole)


def test_parts_of_other_answers_are_not_gone_on_with(teacher, tmp_path, monkeypatch):
    rows, folder = rows_of(TEXTS, teacher.tokenizer), tmp_path / "answers"
    folder.mkdir()
    (folder / "train.json").write_text(json.dumps(ABOUT | {"text": "c", "answered": 20}))
    with pytest.raises(ValueError, match="holds answers for train with another text; choose another folder"):
        load(folder, teacher, rows)


def test_a_disk_without_room_is_told_before_it_is_full(teacher, tmp_path, monkeypatch):
    monkeypatch.setattr(answers.shutil, "disk_usage", lambda folder: SimpleNamespace(free=48 * 16 * 4 - 1))
    with pytest.raises(OSError, match=r"the answers take 0.0 GB, and .* has room for 0.0 GB; give another folder"):
        load(tmp_path / "answers", teacher, rows_of(TEXTS, teacher.tokenizer))


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
    texts = AnsweredTexts(rows, np.arange(len(rows)), np.arange(2000, dtype=np.float16)[:, None])
    batch = AnswerCollator(teacher.tokenizer)([texts[3], texts[1]])
    assert batch["answers"].tolist() == [[3], [4], [5], [0]]
    assert batch["answers"].dtype == torch.float32
    assert batch["counts"].tolist() == [3, 1]
    assert batch["input_ids"][1][: len(rows[1]["input_ids"])].tolist() == rows[1]["input_ids"]
    assert batch["attention_mask"].sum(1).tolist() == [len(rows[i]["input_ids"]) for i in (3, 1)]
