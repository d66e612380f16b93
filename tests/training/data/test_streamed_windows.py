import json
from itertools import islice

import numpy as np
import pytest
import torch
from datasets import Dataset, concatenate_datasets
from hypothesis import given, settings, strategies as st
from torch.utils.data import DataLoader

from sublayers.training.data import language_modeling
from sublayers.training.data.corpus import CorpusArguments, Text, join_lines, load_corpus
from sublayers.training.data.language_modeling import Windows
from sublayers.training.data.streamed_windows import Place, StreamedWindows
from sublayers.training.data.tokenizers import train_tokenizer

TOKENIZER = train_tokenizer([], "byte", 0)
BLOCK_SIZE = 8


def text_of(files):
    """A stream of documents in files of these numbers of documents; each document has its number."""
    numbers = iter(range(10**9))
    parts = []
    for documents in files:
        texts = [f"{number:04} " + "x" * (number * 7 % 13) for number in islice(numbers, documents)]
        parts.append(Dataset.from_dict({"text": texts}).to_iterable_dataset())
    rows = concatenate_datasets(parts)
    return Text(rows, files=rows)


def naive_windows(text):
    """The windows of each file, by hand."""
    found = []
    for index in range(text.num_files):
        tokens = []
        for row in text.file(index).rows:
            tokens += [TOKENIZER.eos_token_id, *TOKENIZER(row["text"]).input_ids]
        found.append([])
        for start in range(0, len(tokens) - 1, BLOCK_SIZE - 1):
            found[-1].append(tokens[start : start + BLOCK_SIZE])
    return found


def read(window):
    """The tokens of a window without padding."""
    scored = int((window["labels"] != -100).sum())
    assert window["labels"][0] == -100
    assert window["labels"][1 : scored + 1].equal(window["input_ids"][1 : scored + 1])
    return window["input_ids"][: scored + 1].tolist()


def reader(text, process=0, processes=1, workers=1, places=None, batches=0):
    windows = StreamedWindows(text, TOKENIZER, BLOCK_SIZE)
    windows.divide(process, processes, workers)
    if places is not None:
        windows.go_on(places, batches)
    return windows


def first(text, number, **settings):
    return [*islice(reader(text, **settings), number)]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text("abc", max_size=30), min_size=1, max_size=5), st.integers(2, 20))
def test_windows_of_one_file_are_those_over_the_whole(texts, block_size):
    texts = ["a", *texts]
    for documents in (True, False):
        rows = Dataset.from_dict({"text": texts}).to_iterable_dataset()
        encoded = TOKENIZER(texts if documents else "".join(texts)).input_ids
        tokens = [token for ids in (encoded if documents else [encoded]) for token in (TOKENIZER.eos_token_id, *ids)]
        whole = Windows(np.array(tokens), block_size)
        streamed = islice(StreamedWindows(Text(rows, documents), TOKENIZER, block_size), 2 * len(whole))
        # and then the same once more
        for index, window in enumerate(streamed):
            expected = whole[index % len(whole)]
            assert all(torch.equal(window[name], expected[name]) for name in ("input_ids", "labels"))


@pytest.mark.parametrize(("files", "processes"), [((5,), 1), ((5,), 3), ((3, 9, 4, 6), 1), ((3, 9, 4, 6), 2)])
def test_processes_read_every_window_once_before_any_twice(files, processes):
    text = text_of(files)
    whole = naive_windows(text)
    streams = min(len(files), processes)
    # the windows of each stream, in their order
    expected = [[w for index in range(s, len(files), streams) for w in whole[index]] for s in range(streams)]
    found = [[] for _ in expected]
    for process in range(processes):
        windows = expected[process % streams]
        share = range(process // streams, len(windows), processes // streams)
        for position, window in zip(share, first(text, len(share), process=process, processes=processes), strict=True):
            found[process % streams].append((position, read(window)))
            assert window["place"][:2].tolist() == [process % streams, position + 1]
    assert [[window for _, window in sorted(windows)] for windows in found] == expected


def places_behind(windows, streams):
    places = [Place()] * streams
    for window in windows:
        stream, *place = window["place"].tolist()
        places[stream] = Place(*place)
    return places


@pytest.fixture
def asked(monkeypatch):
    """The texts that are tokenized."""
    asked = []

    def count(texts, documents):
        found = join_lines(texts, documents)
        asked.extend(found)
        return found

    monkeypatch.setattr(language_modeling, "join_lines", count)
    return asked


@pytest.mark.parametrize("files", [(40,), (3, 9, 4, 6)])
def test_a_stream_goes_on_at_any_place_and_reads_nothing_again(files, asked):
    text = text_of(files)
    per_pass = sum(map(len, naive_windows(text)))
    whole = first(text, 2 * per_pass + 3)
    for stop in range(1, 2 * per_pass):
        asked.clear()
        rest = first(text, 3, places=places_behind(whole[:stop], 1))
        assert [read(window) for window in rest] == [read(window) for window in whole[stop : stop + 3]]
        assert [window["place"].tolist() for window in rest] == [w["place"].tolist() for w in whole[stop : stop + 3]]
        # the first document that is read is the first that was not read to its end
        [place] = places_behind(whole[:stop], 1)
        left = [text.file((place.file + more) % len(files)).rows for more in (0, 1)]
        documents = [row["text"] for row in left[0].skip(place.piece)] + [row["text"] for row in left[1]]
        assert asked[0] == documents[0]


def test_lines_go_on_at_a_run_of_them(asked):
    lines = [f"line {number}\n" for number in range(2500)]
    text = Text(Dataset.from_dict({"text": lines}).to_iterable_dataset(), documents=False)
    whole = first(text, 4000)
    tokens = len(TOKENIZER("".join(lines[:1000])).input_ids)
    for stop in (1, 1200, 1300, 1360, 2000, 3000):
        asked.clear()
        rest = first(text, 1, places=places_behind(whole[:stop], 1))
        assert read(rest[0]) == read(whole[stop])
        # the first token of the window is behind the end token and so many others
        run = (stop * (BLOCK_SIZE - 1) - 1) // tokens
        assert asked[0] == "".join(lines[1000 * run : 1000 * (run + 1)])


@pytest.mark.parametrize("processes", [1, 2, 4, 8])
def test_other_numbers_of_processes_read_the_same_in_every_step(processes):
    text = text_of((30, 50, 20, 40))
    rows, steps = 8, 6
    four = [first(text, rows // 4 * steps * 2, process=process, processes=4) for process in range(4)]
    expected = [sorted(read(w) for windows in four for w in windows[n : n + 2]) for n in range(0, 24, 2)]
    places = places_behind([w for windows in four for w in windows[: 2 * steps]], 4)
    own = rows // processes
    others = [
        first(text, own * steps, process=process, processes=processes, places=places) for process in range(processes)
    ]
    for step in range(steps):
        found = [read(w) for windows in others for w in windows[step * own : (step + 1) * own]]
        assert sorted(found) == expected[steps + step]


@pytest.mark.parametrize("workers", [2])
def test_workers_share_the_files_and_go_on_where_they_were(workers):
    text = text_of((3, 9, 4, 6, 5, 2, 7))

    def batches(number, **settings):
        windows = reader(text, workers=workers, **settings)
        loader = DataLoader(windows, batch_size=2, num_workers=workers)
        return [*islice(loader, number)]

    whole = batches(40)
    streams = [stream for batch in whole for stream in batch["place"][:, 0].tolist()]
    assert streams == [stream for n in range(40) for stream in [n % workers] * 2]
    expected = [window for index in range(0, 7, workers) for window in naive_windows(text)[index]]
    own = [read({k: v[i] for k, v in batch.items()}) for batch in whole[::workers] for i in range(2)]
    assert own[: len(expected)] == expected[: len(own)]
    for stop in (1, 2, 5, 9):
        rows = [{"place": place} for batch in whole[:stop] for place in batch["place"]]
        rest = batches(7, places=places_behind(rows, workers), batches=stop)
        for batch, same in zip(rest, whole[stop : stop + 7], strict=True):
            assert all(torch.equal(batch[name], same[name]) for name in same)


def test_what_cannot_be_divided_is_refused():
    with pytest.raises(ValueError, match="3 files cannot be divided among 2 processes with 2 workers each"):
        reader(text_of((1, 1, 1)), processes=2, workers=2)
    with pytest.raises(ValueError, match="4 streams cannot be divided among 3 readers"):
        reader(text_of((9, 9, 9, 9)), processes=3, places=[Place()] * 4)
    # of six processes, two share each of three streams
    assert len(reader(text_of((1, 1, 1, 1)), processes=6).places) == 3
    with pytest.raises(ValueError, match="a part of the corpus has no tokens to predict"):
        first(Text(Dataset.from_dict({"text": [""]}).to_iterable_dataset()), 1)


@pytest.mark.parametrize(("held_out", "rest"), [(1, [20, 80, 120]), (2, [120]), (3, [20])])
def test_documents_split_off_a_stream_are_read_in_none_of_its_files(held_out, rest, tmp_path):
    number = iter(range(320))
    (tmp_path / "shards").mkdir()
    for name, documents in zip("abc", (120, 80, 120), strict=True):
        rows = [json.dumps({"text": f"document {next(number)}"}) for _ in range(documents)]
        (tmp_path / "shards" / f"{name}.jsonl").write_text("\n".join(rows))
    flags = {"streaming": True, "validation_split_percentage": held_out}
    corpus = load_corpus(CorpusArguments(dataset_name=str(tmp_path / "shards"), **flags))
    validation, train = corpus["validation"], corpus["train"]
    read = [[row["text"] for row in train.file(index).rows] for index in range(train.num_files)]
    kept = [row["text"] for row in validation.rows]
    assert [*map(len, read)] == rest
    assert kept + [text for texts in read for text in texts] == [f"document {n}" for n in range(320)]
    assert len(kept) == 100 * held_out
    # the first documents are read as one
    assert train.take(30).num_files == 1
    assert [row["text"] for row in train.take(3).file(0).rows] == [f"document {100 * held_out + n}" for n in range(3)]
