import errno
import json
import shutil
from pathlib import Path

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
    assert asked == []
    first = read(texts, [5, 0, 7], [7, 1, 1])
    np.testing.assert_allclose(first, expected[[5, 0, 7, 7, 1, 1]], rtol=1e-4, atol=atol)
    assert asked == [3, 1]
    # another student, while the first one goes on
    other = keep(folder, teacher, rows, kind=kind)
    np.testing.assert_array_equal(read(other, [7, 0]), first[[2, 1]])
    np.testing.assert_allclose(read(other, [2, 5, 3]), expected[[2, 5, 3]], rtol=1e-4, atol=atol)
    assert asked == [3, 1, 2]
    np.testing.assert_array_equal(read(texts, [3, 5, 2]), read(other, [3, 5, 2]))
    everything = read(texts, [*range(len(rows))])
    np.testing.assert_allclose(everything, expected, rtol=1e-4, atol=atol)
    assert asked == [3, 1, 2, len(rows) - 6]
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
    assert asked == [4] * (texts.answered.sum() // 4)


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
    (shard,) = (folder / "train").glob("*.npy")
    # a write that was cut off
    for file in (shard, shard.with_suffix(".texts")):
        with open(file, "ab") as opened:
            opened.write(b"\xff" * 7)
    texts = keep(folder, teacher, rows) if name == "ask_teacher" else texts
    assert texts.answered.tolist() == [True] * 3 + [False] * (len(rows) - 3)
    np.testing.assert_array_equal(read(texts, [0, 1, 2], [3, 4, 5]), whole)
    # also a process that goes on after an error begins another shard
    assert len([*(folder / "train").glob("*.texts")]) == 2


def test_processes_write_to_shards_of_their_own_and_see_at_once_what_others_wrote(teacher, tmp_path, asked):
    rows, folder = rows_of(TEXTS, teacher.tokenizer), tmp_path / "answers"
    one, two = (keep(folder, teacher, rows, kind=States) for _ in range(2))
    for first in range(0, 24, 8):
        np.testing.assert_array_equal(read(one, [first, first + 1]), read(two, [first, first + 1]))
        np.testing.assert_array_equal(read(two, [first + 2, first + 3]), read(one, [first + 2, first + 3]))
    assert asked == [2] * 6
    shards = [np.fromfile(file, np.int64).tolist() for file in (folder / "train").glob("*.texts")]
    assert sorted(shards) == [[0, 1, 8, 9, 16, 17], [2, 3, 10, 11, 18, 19]]
    # a shard is no larger than its answers
    assert all(file.stat().st_size == 128 + 6 * 2 * 16 * 2 for file in (folder / "train").glob("*.npy"))


def test_processes_that_ask_for_everything_share_the_work_and_take_over_from_those_that_died(
    teacher, tmp_path, asked, monkeypatch
):
    monkeypatch.setattr(answers, "RANGE", 20)
    rows, folder = rows_of(TEXTS, teacher.tokenizer), tmp_path / "answers"
    one, two, three = (keep(folder, teacher, rows) for _ in range(3))
    # the first process is on its way, and the second one dies on its
    of_one, of_two = one._claims(), two._claims()
    assert next(of_one) == range(20)
    assert next(of_two) == range(20, 40)
    two.complete([20, 21, 22, 23])
    waited = []

    def wait(seconds):
        waited.append(len(asked))
        if len(waited) == 1:
            of_two.close()
        else:
            one.complete([*range(20)])

    monkeypatch.setattr(answers.time, "sleep", wait)
    three.complete_all(16)
    # it asked for the last texts, then for those of the second process in batches of theirs that are not answered yet
    assert asked == [4, 8, 12, 4, 20]
    assert waited == [2, 4]
    assert [*of_one] == []
    whole = keep(tmp_path / "whole", teacher, rows)
    whole.complete_all(len(rows))
    expected = read(whole, [*range(len(rows))])
    np.testing.assert_allclose(read(three, [*range(len(rows))]), expected, rtol=1e-5, atol=1e-6)
    assert {file.suffix for file in (folder / "train").iterdir()} == {".json", ".npy", ".texts"}
    # nothing is left to ask
    keep(folder, teacher, rows).complete_all(16)
    assert asked[5:] == [20, 20, 8]


def test_a_folder_is_made_as_a_whole_and_by_one_of_those_who_begin_together(teacher, tmp_path, monkeypatch):
    rows, folder = rows_of(TEXTS, teacher.tokenizer), tmp_path / "answers"

    def kill(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", kill)
        with pytest.raises(KeyboardInterrupt):
            keep(folder, teacher, rows)
    assert not (folder / "train").exists()
    rename = Path.rename

    def be_late(path, target):
        with monkeypatch.context() as patched:
            patched.setattr(Path, "rename", rename)
            read(keep(folder, teacher, rows), [0])
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", be_late)
        assert keep(folder, teacher, rows).answered.tolist() == [True] + [False] * (len(rows) - 1)


def test_answers_of_something_else_are_refused(teacher, tmp_path):
    rows = rows_of(TEXTS, teacher.tokenizer)
    keep(tmp_path / "answers", teacher, rows)
    about = tmp_path / "answers" / "train" / "about.json"
    said = json.loads(about.read_text())
    assert (said["texts"], said["dtype"], said["teacher"]) == (48, "float32", "a")
    assert said["versions"]["torch"] == torch.__version__
    refused = "answers holds answers for train with another {}; choose another folder with --answers"
    with pytest.raises(ValueError, match=refused.format("teacher and text")):
        keep(tmp_path / "answers", teacher, rows, about={"teacher": "c", "text": "d"})
    # what an older version left
    about.write_text(json.dumps(ABOUT))
    with pytest.raises(ValueError, match=refused.format("format")):
        keep(tmp_path / "answers", teacher, rows)
    about.write_text(about.read_text()[:-9])
    with pytest.raises(ValueError, match=r"about\.json is damaged"):
        keep(tmp_path / "answers", teacher, rows)


def test_shards_that_are_damaged_or_of_something_else_are_refused(teacher, tmp_path):
    rows, folder = rows_of(TEXTS, teacher.tokenizer), tmp_path / "answers" / "train"
    read(keep(folder.parent, teacher, rows), [1, 2, 3])
    other = keep(tmp_path / "other", teacher, rows, about={"teacher": "c", "text": "d"})
    read(other, [4])
    for file in other.folder.glob(f"{other.key}*"):
        shutil.copy(file, folder)
    with pytest.raises(ValueError, match=r"\.texts is no shard of these answers; remove it"):
        keep(folder.parent, teacher, rows)
    for file in folder.glob(f"{other.key}*"):
        file.unlink()
    (shard,), (numbers,) = folder.glob("*.npy"), folder.glob("*.texts")
    content = shard.read_bytes()
    for damaged in (content[:-1], b"x" + content[1:], content[:20], b""):
        shard.write_bytes(damaged)
        with pytest.raises(
            ValueError, match=r"npy is damaged \(.*\); remove it and .*\.texts, and its texts are asked ag"
        ):
            keep(folder.parent, teacher, rows)
    shard.write_bytes(content)
    assert keep(folder.parent, teacher, rows).answered.sum() == 3
    for number in (-1, len(rows)):
        np.array([1, 2, number], np.int64).tofile(numbers)
        with pytest.raises(ValueError, match="is no shard of these answers"):
            keep(folder.parent, teacher, rows)


def test_a_full_disk_is_told(teacher, tmp_path, monkeypatch):
    texts = keep(tmp_path / "answers", teacher, rows_of(TEXTS, teacher.tokenizer))
    read(texts, [0, 1, 2, 3])

    def fill(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(answers.os, "fsync", fill)
    with pytest.raises(OSError, match=r"\.npy cannot be written, perhaps for lack of room .* make room"):
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
