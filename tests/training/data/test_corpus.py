import gzip
import json
import sysconfig

import datasets
import pytest
from datasets import Dataset

from sublayers.training.data.corpus import CorpusArguments, load_corpus, standard_library


def texts(corpus, split):
    return [row["text"] for row in corpus[split].rows]


def test_the_standard_library_is_split_by_file_and_always_alike():
    first, second = standard_library(), standard_library()
    train, validation = first["train"]["text"][:], first["validation"]["text"][:]
    assert (train, validation) == (second["train"]["text"][:], second["validation"]["text"][:])
    assert 0.05 < len(validation) / (len(train) + len(validation)) < 0.15
    assert not {t for t in train if len(t) > 500} & set(validation)
    with open(sysconfig.get_path("stdlib") + "/argparse.py", newline="") as source:
        assert source.read() in train + validation
    # neither tests nor installed packages
    assert not any("test_support" in t and "import unittest" in t and "class TestHeap" in t for t in train + validation)
    assert not any("class HfArgumentParser" in t for t in train + validation)


LINES = ["one\n", "\n", "  two\r\n", "\x0cthree\u2028\n", "four"]


def write(folder, suffix, documents):
    path = folder / f"corpus{suffix}"
    if suffix in (".parquet", ".csv"):
        getattr(Dataset.from_dict({"text": documents}), f"to_{suffix[1:]}")(path)
    else:
        lines = documents if ".txt" in suffix else [json.dumps({"text": d, "other": 1}) + "\n" for d in documents]
        content = "".join(lines).encode()
        path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    return str(path)


def write_folder(folder, *names):
    folder.mkdir()
    for name in names:
        (folder / f"{name}.txt").write_text(f"{name}\n\n{name}\n")
    return str(folder)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".json", ".jsonl", ".jsonl.gz", ".parquet", ".csv"])
def test_files_lose_nothing(tmp_path, suffix, streaming):
    # pandas turns an empty field into none
    lines = [line for line in LINES if suffix != ".csv" or line.strip()]
    path = write(tmp_path, suffix, lines)
    corpus = load_corpus(CorpusArguments(train_file=path, validation_file=path, streaming=streaming))
    for split in ("train", "validation"):
        assert texts(corpus, split) == lines
        documents = not suffix.startswith(".txt")
        assert corpus[split].documents == documents
        assert list(corpus[split].pieces()) == (lines if documents else ["".join(lines)])


def test_a_changed_file_is_read_again(tmp_path):
    for line in ("first\n", "second version\n"):
        path = write(tmp_path, ".txt", [line])
        assert texts(load_corpus(CorpusArguments(validation_file=path)), "validation") == [line]


def test_a_local_folder_of_text_files_has_a_document_per_file(tmp_path):
    folder = write_folder(tmp_path / "texts", "a", "b", "c")
    corpus = load_corpus(CorpusArguments(dataset_name=folder, validation_split_percentage=30))
    assert texts(corpus, "validation") == ["a\n\na\n"]
    assert texts(corpus, "train") == ["b\n\nb\n", "c\n\nc\n"]
    assert corpus["train"].documents


def test_validation_is_split_off_from_the_start(tmp_path):
    documents = [f"document {n}" for n in range(1000)]
    path = write(tmp_path, ".jsonl", documents)
    corpus = load_corpus(CorpusArguments(train_file=path))
    assert (texts(corpus, "validation"), texts(corpus, "train")) == (documents[:50], documents[50:])
    stream = load_corpus(CorpusArguments(train_file=path, streaming=True))
    assert (texts(stream, "validation"), texts(stream, "train")) == (documents[:500], documents[500:])
    assert texts({"train": corpus["train"].take(2)}, "train") == documents[50:52]


def test_what_is_left_out_of_a_split_leaves_a_part_of_it(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": f"line {n}"}) + "\n" for n in range(120)))
    own = load_corpus(CorpusArguments(train_file=str(path), validation_file=str(path)))["validation"]
    assert (own.used, own.take(120).used, own.take(119).used) == ((120, True), (120, True), (119, False))
    for streaming, rows in ((False, [118, 2]), (True, [None, None])):
        flags = CorpusArguments(train_file=str(path), validation_split_percentage=1, streaming=streaming)
        split_off = load_corpus(flags)
        assert [split_off[split].used for split in ("train", "validation")] == [(number, False) for number in rows]


def test_another_column(tmp_path):
    path = write(tmp_path, ".jsonl", ["a", "b"])
    (tmp_path / "others.jsonl").write_text('{"text": 1, "body": "c"}\n')
    for streaming in (False, True):
        flags = {"validation_file": str(tmp_path / "others.jsonl"), "text_column": "body", "streaming": streaming}
        assert texts(load_corpus(CorpusArguments(**flags)), "validation") == ["c"]
        with pytest.raises(ValueError, match=r"no column 'body'; choose one of text, other with --text_column"):
            load_corpus(CorpusArguments(validation_file=path, text_column="body", streaming=streaming))
        with pytest.raises(ValueError, match=r"column 'other' of .* holds int, not text"):
            load_corpus(CorpusArguments(validation_file=path, text_column="other", streaming=streaming))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"", "is empty"),
        ("blank.txt", b" \n\n\t\n", "holds no text"),
        ("blank.jsonl", b'{"text": " "}\n{"text": null}\n', "holds no text"),
        ("latin.txt", "é".encode("latin-1"), "cannot be read: .utf-8. codec"),
        ("broken.jsonl", b'{"text": "a"\n{', "cannot be read: JSON parse error"),
        ("numbers.jsonl", b'{"text": "a"}\n{"text": 3}\n', "column 'text' of .* holds int, not text"),
        ("lists.jsonl", b'{"text": null}\n{"text": ["a"]}\n', "column 'text' of .* holds list, not text"),
        ("lines.jsonl", b"\n\n", "cannot be read|is empty"),
        ("empty.csv", b"", "cannot be read: No columns"),
        # without the time, which would be part of the name of a test and differ between workers
        ("cut.txt.gz", gzip.compress(b"txt", mtime=0)[:-9], "cannot be read: "),
        ("cut.jsonl.gz", gzip.compress(b"jsonl", mtime=0)[:-9], "cannot be read: "),
        ("text.txt.gz", b"a text", "cannot be read: Not a gzipped file"),
        ("text.jsonl.bz2", b"a text", "cannot be read: Invalid data stream"),
        ("text.txt.xz", b"a text", "cannot be read: Input format not supported"),
        ("damaged.txt.gz", gzip.compress(b"a text", mtime=0)[:10] + b"another text", "cannot be read: Error -3"),
        ("text.doc", b"text", "none of the known endings .txt, .json"),
    ],
)
def test_files_without_text_are_refused_in_one_sentence(tmp_path, name, content, message, streaming):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as refused:
        load_corpus(CorpusArguments(train_file=str(tmp_path / name), streaming=streaming))
    assert "\n" not in str(refused.value)
    assert name in str(refused.value)


def test_an_archive_that_ends_too_early_is_named_when_its_end_is_reached(tmp_path):
    path = tmp_path / "long.txt.gz"
    content = "".join(f"line {n * n}\n" for n in range(99_999)).encode()
    path.write_bytes(gzip.compress(content)[:-99])
    corpus = load_corpus(CorpusArguments(train_file=str(path), streaming=True))
    with pytest.raises(ValueError, match=r"long\.txt\.gz cannot be read: Compressed file ended before"):
        texts(corpus, "train")


def test_other_bad_input(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    line = write(tmp_path, ".txt", ["one line"])
    test_only = write_folder(tmp_path / "test_only", "test")
    for kind, said, flags in (
        (FileNotFoundError, r"there is no file nowhere\.txt", {"train_file": "nowhere.txt"}),
        (FileNotFoundError, "data set 'no/such' cannot be read from the Hub", {"dataset_name": "no/such"}),
        (ValueError, "has no split train or validation, only test", {"dataset_name": test_only}),
        (ValueError, "exclude each other", {"train_file": line, "dataset_name": "wikitext"}),
        (ValueError, "nothing is left to train on after the first 1 documents", {"train_file": line}),
        (ValueError, "=0 is not between 1 and 99", {"train_file": line, "validation_split_percentage": 0}),
    ):
        with pytest.raises(kind, match=said):
            load_corpus(CorpusArguments(**flags))
