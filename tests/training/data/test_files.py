"""Columns that nobody reads are told, as one of them may be misspelt."""

import pytest
from tiny_runs import write_rows

from sublayers.training.data.corpus import CorpusArguments, load_corpus
from sublayers.training.data.glue import GlueDataArguments, load_task
from sublayers.training.data.pairs import Seq2SeqDataArguments, load_pairs
from sublayers.training.data.squad import SquadDataArguments, load_questions

ANSWERS = {"text": ["a"], "answer_start": [0]}


def read_glue(file):
    load_task("mrpc", GlueDataArguments(train_file=file, validation_file=file))


def read_squad(file):
    load_questions("validation", SquadDataArguments(validation_file=file))


def read_pairs(file):
    load_pairs(Seq2SeqDataArguments(train_file=[file], source="de", target="en"))


def read_corpus(file):
    load_corpus(CorpusArguments(validation_file=file, train_file=file))


# what is read, by its reader, and what need not be told
READERS = {
    read_glue: ({"sentence1": "a", "sentence2": "b", "label": 1}, {"idx": 3}),
    read_squad: ({"id": "1", "question": "a", "context": "a", "answers": ANSWERS}, {}),
    read_pairs: ({"de": "a", "en": "b"}, {}),
    read_corpus: ({"text": "a text"}, {}),
}


@pytest.mark.parametrize("read", READERS)
def test_a_column_that_is_not_read_is_told(read, tmp_path, capsys):
    row, others = READERS[read]
    read(write_rows(tmp_path / "usual.jsonl", [row | others] * (1 if read is read_squad else 2)))
    assert "what is read" not in capsys.readouterr().out
    read(write_rows(tmp_path / "more.jsonl", [row | others | {"sentence3": "c"}] * (1 if read is read_squad else 2)))
    told = [line for line in capsys.readouterr().out.splitlines() if "what is read" in line]
    assert told
    assert all(line.endswith(f": what is read is {', '.join(row)}, and not sentence3") for line in told)


def test_a_misspelt_column_that_is_needed_is_refused(tmp_path):
    row, _ = READERS[read_glue]
    file = write_rows(tmp_path / "wrong.jsonl", [{"labels" if name == "label" else name: row[name] for name in row}])
    with pytest.raises(ValueError, match="have no column 'label', only sentence1, sentence2, labels"):
        read_glue(file)
