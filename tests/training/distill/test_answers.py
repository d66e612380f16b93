import errno

import numpy as np
import pytest
import torch
from datasets import Dataset
from tiny_teachers import TEXTS, save_teacher
from transformers import Trainer, TrainingArguments

from sublayers.training.data.corpus import Text
from sublayers.training.distill import answers
from sublayers.training.distill.answers import AnswerCollator, AnsweredTexts
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

    dtype = np.float16

    def count(self, texts):
        return np.full(len(texts), 2)

    def ask_teacher(self, batch):
        return self.teacher.model(**batch).last_hidden_state[:, :2].flatten(0, 1)


def keep(folder, teacher, rows, about=ABOUT, kind=Embeddings):
    texts = AnsweredTexts(rows, kind(teacher, teacher.model))
    texts.keep(folder / "train", about, "cpu")
    return texts


def read(texts, *batches):
    """The answers to texts, (texts, answers, width), which are read in such batches."""
    return np.stack([row["answers"] for indices in batches for row in texts.__getitems__(indices)])


def rows_of(texts, tokenizer, **options):
    rows = Dataset.from_dict({"text": texts})
    return encode_texts(Text(rows, **options), tokenizer, 12, by_sentence=True)


def expected_answers(teacher, texts, kind):
    """One text at a time: (texts, answers, width)."""
    found = []
    for text in texts:
        ids = teacher.tokenizer(text, truncation=True, max_length=12, return_tensors="pt")
        with torch.no_grad():
            states = teacher.model(**ids).last_hidden_state[0]
        found.append(states[:2] if kind is States else states.mean(0, keepdim=True))
    return torch.stack(found).numpy()


@pytest.fixture
def asked(monkeypatch):
    """How many texts the teacher was asked for at a time."""
    sizes = []
    for kind in (Embeddings, States):

        def count(objective, batch, ask=kind.ask_teacher):
            sizes.append(len(batch["input_ids"]))
            return ask(objective, batch)

        monkeypatch.setattr(kind, "ask_teacher", count)
    return sizes


@pytest.mark.parametrize(("kind", "atol"), [(Embeddings, 1e-5), (States, 2e-3)])
def test_the_teacher_is_asked_for_what_is_read_and_once(kind, atol, teacher, tmp_path, asked):
    rows, folder = rows_of(TEXTS, teacher.tokenizer), tmp_path / "answers"
    expected = expected_answers(teacher, TEXTS, kind)
    texts = keep(folder, teacher, rows, kind=kind)
    # one tells how wide answers are
    assert asked == [1]
    first = read(texts, [5, 0, 7], [7, 1, 1])
    np.testing.assert_allclose(first, expected[[5, 0, 7, 7, 1, 1]], rtol=1e-4, atol=atol)
    assert asked == [1, 3, 1]
    # another student, while the first one goes on
    other = keep(folder, teacher, rows, kind=kind)
    np.testing.assert_array_equal(read(other, [7, 0]), first[[2, 1]])
    np.testing.assert_allclose(read(other, [2, 5, 3]), expected[[2, 5, 3]], rtol=1e-4, atol=atol)
    assert asked == [1, 3, 1, 2]
    np.testing.assert_array_equal(read(texts, [3, 5, 2]), read(other, [3, 5, 2]))
    everything = read(texts, [*range(len(rows))])
    np.testing.assert_allclose(everything, expected, rtol=1e-4, atol=atol)
    assert asked == [1, 3, 1, 2, len(rows) - 6]
    # texts without their answers are nobody's question
    assert [*texts[4]] == [*rows[4]]


def test_a_trainers_batches_ask_for_no_more_than_its_steps_read(teacher, tmp_path, asked):
    texts = keep(tmp_path / "answers", teacher, rows_of(TEXTS, teacher.tokenizer))
    model = torch.nn.Linear(16, 1)

    class Reader(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            return model(inputs["answers"]).sum()

    flags = {"max_steps": 3, "per_device_train_batch_size": 4, "use_cpu": True, "report_to": "none"}
    args = TrainingArguments(str(tmp_path / "out"), **flags, remove_unused_columns=False, disable_tqdm=True)
    Reader(model, args, AnswerCollator(teacher.tokenizer), texts).train()
    # batches are read one ahead
    assert texts.answered.sum() in (12, 16)
    assert asked[1:] == [4] * (texts.answered.sum() // 4)


@pytest.mark.parametrize("name", ["ask_teacher", "fsync"])
def test_answers_of_a_run_that_was_killed_are_not_believed_unless_they_are_on_disk(
    name, teacher, tmp_path, monkeypatch
):
    rows, folder = rows_of(TEXTS, teacher.tokenizer), tmp_path / "answers"
    whole = read(keep(tmp_path / "whole", teacher, rows), [0, 1, 2], [3, 4, 5])
    texts = keep(folder, teacher, rows)
    read(texts, [0, 1, 2])

    def kill(*args):
        raise InterruptedError

    with monkeypatch.context() as patched:
        patched.setattr(*((Embeddings, name) if name == "ask_teacher" else (answers.os, name)), kill)
        with pytest.raises((InterruptedError, OSError)):
            read(texts, [3, 4, 5])
    file = folder / "train" / "answers.npy"
    # what is not marked may be anything
    np.load(file, mmap_mode="r+")[3:] = np.nan
    texts = keep(folder, teacher, rows)
    assert texts.answered.tolist() == [True] * 3 + [False] * (len(rows) - 3)
    np.testing.assert_array_equal(read(texts, [0, 1, 2], [3, 4, 5]), whole)


@pytest.mark.parametrize("name", ["open_memmap", "save"])
def test_a_folder_is_made_as_a_whole(name, teacher, tmp_path, monkeypatch):
    rows = rows_of(TEXTS, teacher.tokenizer)

    def kill(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(np.lib.format if name == "open_memmap" else np, name, kill)
        with pytest.raises(KeyboardInterrupt):
            keep(tmp_path / "answers", teacher, rows)
    assert not (tmp_path / "answers").exists()
    read(keep(tmp_path / "answers", teacher, rows), [0])


def test_answers_of_something_else_are_refused(teacher, tmp_path):
    rows = rows_of(TEXTS, teacher.tokenizer)
    keep(tmp_path / "answers", teacher, rows)
    with pytest.raises(ValueError, match="answers holds answers for train with another teacher and text; choose anoth"):
        keep(tmp_path / "answers", teacher, rows, about={"teacher": "c", "text": "d"})


def test_room_is_taken_by_what_is_answered_and_a_full_disk_is_told(teacher, tmp_path, monkeypatch):
    rows = rows_of(TEXTS * 100, teacher.tokenizer)
    texts = keep(tmp_path / "answers", teacher, rows)
    read(texts, [0, 1, 2, 3])
    file = (tmp_path / "answers" / "train" / "answers.npy").stat()
    assert file.st_size > 4800 * 16 * 4 > 8 * 512 * file.st_blocks

    def fill(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(answers.os, "fsync", fill)
    with pytest.raises(OSError, match=r"answers.npy cannot be written, perhaps for lack of room .* make room"):
        read(texts, [4])


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
    found += [hash_rows(Dataset.from_dict({"input_ids": [[1]], "labels": [[label]]})) for label in (2, 3)]
    assert len({*found}) == 5


def test_batches_have_texts_and_their_answers(teacher):
    rows = rows_of(TEXTS, teacher.tokenizer)
    answered = [{**rows[3], "answers": np.ones((3, 2), np.float16)}, {**rows[1], "answers": np.zeros((1, 2))}]
    batch = AnswerCollator(teacher.tokenizer)(answered)
    assert batch["answers"].tolist() == [[1, 1]] * 3 + [[0, 0]]
    assert batch["answers"].dtype == torch.float32
    assert batch["counts"].tolist() == [3, 1]
    assert batch["input_ids"][1][: len(rows[1]["input_ids"])].tolist() == rows[1]["input_ids"]
    assert batch["attention_mask"].sum(1).tolist() == [len(rows[i]["input_ids"]) for i in (3, 1)]
