import bz2
import gzip
import json
import re

import pytest
from datasets import Dataset, Features, Translation, Value
from hypothesis import given, strategies as st
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from sublayers.training.data import pairs as seq2seq_data
from sublayers.training.data.pairs import Seq2SeqDataArguments, load_pairs, tokenize_pairs, train_pair_tokenizers
from sublayers.training.data.tokenizers import train_tokenizer

GERMAN = ["Ein Hund läuft.", "Zwei Hunde  spielen", "Der Hund schläft, sagt man.", "Hund", "Ein Mann mit Hund"]
ENGLISH = ["A dog runs.", "Two dogs  play", "def f():\n    return 'a , b'\n", "dog", "A man with a dog"]
PAIRS = Dataset.from_dict({"source": GERMAN, "target": ENGLISH})
[JOINT] = train_pair_tokenizers(PAIRS, [320])


def write(path, lines):
    pack = {".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)
    path.write_bytes(pack("".join(f"{line}\n" for line in lines).encode()))
    return str(path)


def rows_as_json(rows):
    return [json.dumps(row) for row in rows]


def load(*paths, **flags):
    return load_pairs(Seq2SeqDataArguments(train_file=[str(path) for path in paths], **flags))["train"]


def assert_holds(rows, sources, targets):
    assert rows.column_names == ["source", "target"]
    assert list(zip(rows["source"], rows["target"], strict=True)) == list(zip(sources, targets, strict=True))


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet", ".csv"])
def test_two_columns(tmp_path, suffix):
    # the column that is called like ours is not the one that is asked for
    columns = {"source": ["v1"] * 5, "code": ENGLISH, "doc": GERMAN}
    path = tmp_path / f"rows{suffix}"
    if suffix in (".parquet", ".csv"):
        getattr(Dataset.from_dict(columns), f"to_{suffix[1:]}")(path)
    else:
        write(path, rows_as_json(dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)))
    assert_holds(load(path, source="doc", target="code"), GERMAN, ENGLISH)
    assert_holds(load(path, source="code", target="source"), ENGLISH, ["v1"] * 5)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_languages_of_a_translation_column(tmp_path, suffix):
    rows = [{"id": 1, "translation": {"de": g, "en": e}} for g, e in zip(GERMAN, ENGLISH, strict=True)]
    path = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        # as on the Hub
        features = Features({"id": Value("int32"), "translation": Translation(languages=["de", "en"])})
        Dataset.from_list(rows, features=features).to_parquet(path)
    else:
        write(path, rows_as_json(rows))
    assert_holds(load(path, source="de", target="en"), GERMAN, ENGLISH)
    assert_holds(load(path, source="en", target="de"), ENGLISH, GERMAN)


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2"])
def test_two_plain_text_files(tmp_path, suffix):
    # what Python, but no corpus, takes for a line's end
    sources = ["a\x0bb", "c\u2028d", "  e\x85", "f\rg"]
    targets = ["A", "B", "C  ", "D"]
    files = [write(tmp_path / f"corpus.{side}{suffix}", texts) for side, texts in (("de", sources), ("en", targets))]
    assert_holds(load(*files), sources, targets)
    windows = write(tmp_path / "windows.txt", [f"{target}\r" for target in targets])
    assert_holds(load(files[0], windows), sources, targets)
    assert_holds(load(*reversed(files), lowercase=True), ["a", "b", "c  ", "d"], sources)


def test_splits_and_limits(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    files = {}
    for split, number in (("train", 5), ("validation", 4), ("test", 3)):
        rows = [{"de": g, "en": e} for g, e in zip(GERMAN, ENGLISH, strict=True)][:number]
        files[f"{split}_file"] = [write(folder / f"{split}.jsonl", rows_as_json(rows))]
    limits = {"max_train_samples": 2, "max_eval_samples": 1, "max_predict_samples": 9}

    def load_all(**flags):
        return load_pairs(Seq2SeqDataArguments(**flags, source="de", target="en"))

    # the folder is a data set, too
    for flags, numbers in (
        (files, {"train": 5, "validation": 4, "test": 3}),
        ({"dataset_name": str(folder)}, {"train": 5, "validation": 4, "test": 3}),
        (files | limits, {"train": 2, "validation": 1, "test": 3}),
        ({"test_file": files["test_file"]}, {"test": 3}),
    ):
        pairs = load_all(**flags)
        assert {split: len(rows) for split, rows in pairs.items()} == numbers
        for rows in pairs.values():
            assert_holds(rows, GERMAN[: len(rows)], ENGLISH[: len(rows)])
    with pytest.raises(ValueError, match="no train pair is left of the first 0"):
        load_all(**files, max_train_samples=0)
    with pytest.raises(ValueError, match="exclude each other"):
        load_all(**files, dataset_name=str(folder))


def test_without_data_there_are_functions(monkeypatch):
    functions = {"train": PAIRS, "validation": PAIRS.take(3), "test": PAIRS.take(2)}
    monkeypatch.setattr(seq2seq_data, "docstring_to_code", lambda: dict(functions))
    pairs = load_pairs(Seq2SeqDataArguments(max_eval_samples=1))
    assert {split: len(rows) for split, rows in pairs.items()} == {"train": 5, "validation": 1, "test": 2}
    with pytest.raises(ValueError, match="--source and --target name texts of a data set; give --train_file"):
        load_pairs(Seq2SeqDataArguments(source="docstring"))


ROW = '{"de": "a", "en": "b", "n": 1}\n'


@pytest.mark.parametrize(
    ("content", "source", "target", "message"),
    [
        (ROW, None, None, "has de, en, n; choose what to read as --source and what as --target"),
        (ROW, "de", None, "has de, en, n; choose what to read"),
        (ROW, "dee", "en", "has no 'dee', did you mean 'de'\\?; choose --source from de, en, n"),
        (ROW, "de", "french", "has no 'french'; choose --target from de, en, n"),
        (ROW, "de", "de", "--source and --target are both 'de'; choose two of"),
        (ROW, "n", "en", "row 1 of .* has 1 as its source, not text; remove the pair or choose another --source"),
        (ROW + '{"de": "a", "en": null, "n": 2}', "de", "en", "row 2 of .* has None as its target"),
        (ROW + ROW + '{"de": " ", "en": "b"}', "de", "en", "row 3 of .* has ' ' as its source"),
        (ROW + "{", "de", "en", "cannot be read: JSON parse error"),
        ('{"translation": {"de": "a", "en": "b"}}', None, None, "has de, en; choose"),
        # rows are numbered over several batches
        pytest.param(ROW * 2345 + '{"de": "a"}', "de", "en", "row 2346 of .* has None as its target", id="many"),
    ],
)
def test_bad_rows_are_refused_in_one_sentence(tmp_path, content, source, target, message):
    path = write(tmp_path / "bad.jsonl", [content])
    with pytest.raises(ValueError, match=message) as refused:
        load(path, source=source, target=target)
    assert "bad.jsonl" in str(refused.value) or "both" in message
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("two three", "two has 2 lines and .*three has 3; give files with as many lines"),
        ("two blank", "line 2 of .*blank has ' ' as its target, not text; remove the pair"),
        ("none two", "line 1 of .*none has '' as its source, not text; remove the pair"),
        ("empty empty", "empty holds no pairs"),
        ("latin two", "latin cannot be read: .utf-8. codec"),
        ("half.gz two", r"half\.gz cannot be read"),
        ("nowhere two", "nowhere"),
        ("nowhere.jsonl", r"nowhere\.jsonl"),
        ("two", "--train_file .*two is neither one file that ends in .json, .* nor two plain text files"),
        ("two two two", "nor two plain text files"),
    ],
)
def test_bad_files_are_refused(tmp_path, names, message):
    contents = {"two": b"a\nb\n", "three": b"A\nB\nC", "blank": b"A\n \n", "none": b"\nb\n", "empty": b""}
    contents |= {"latin": "é".encode("latin-1"), "half.gz": gzip.compress(b"a\nb\n")[:-12]}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load(*(tmp_path / name for name in names.split()))


def test_bad_data_sets_are_refused(tmp_path):
    write(tmp_path / "data.txt", ["a"])
    for name, said in ((str(tmp_path), "has text; choose what to read"), ("no/such/name", "no/such/name")):
        with pytest.raises((ValueError, OSError), match=said):
            load_pairs(Seq2SeqDataArguments(dataset_name=name))


TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.text(st.sampled_from(" \t\r\n'aé…\x00.,"))


@given(TEXT | st.sampled_from(["<s>", " <s>a</s>", "</s>", "<pad>x<unk>", "    if a :\n\treturn b , c\n"]))
def test_texts_end_in_eos_and_decode_to_what_was_encoded(text):
    ids = JOINT(text).input_ids
    assert ids[-1] == 2
    assert ids == JOINT(text_target=text).input_ids
    assert not {0, 1, 2, 3} & set(ids[:-1])
    assert JOINT.decode(ids, skip_special_tokens=True) == text
    # as a model generates it
    assert JOINT.batch_decode([[2, *ids, 1, 1]], skip_special_tokens=True) == [text]


def test_special_tokens_and_the_way_through_a_folder(tmp_path):
    assert JOINT.convert_tokens_to_ids(["<s>", "<pad>", "</s>", "<unk>"]) == [0, 1, 2, 3]
    assert JOINT.special_tokens_map == seq2seq_data.SPECIAL_TOKENS
    JOINT.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == JOINT.get_vocab()
    assert loaded.special_tokens_map == JOINT.special_tokens_map
    assert set(loaded("a")) == {"input_ids", "attention_mask"}
    assert loaded.clean_up_tokenization_spaces is False
    for text in [*GERMAN, *ENGLISH, " a <s> , b</s>\n"]:
        ids = loaded(text).input_ids
        assert ids == JOINT(text).input_ids
        assert loaded.decode(ids, skip_special_tokens=True) == text
    assert loaded("a", "b").input_ids == loaded("a").input_ids + loaded("b").input_ids


def test_joint_and_separate_vocabularies():
    [source] = train_pair_tokenizers(PAIRS, [320])
    assert {"ĠHund", "Ġdog"} <= set(source.get_vocab())
    # a word has the same tokens at the start and inside; "Ein" stands at starts only
    assert source("Hund").input_ids[:-1] == source("Ein Hund").input_ids[-2:-1]
    assert len(source("Hund").input_ids) == len(source("Ein").input_ids) == 2
    source, target = train_pair_tokenizers(PAIRS, [270, 320])
    assert {"ĠHund", "Ġdog"} & set(source.get_vocab()) == {"ĠHund"}
    assert {"ĠHund", "Ġdog"} & set(target.get_vocab()) == {"Ġdog"}
    assert len(source) <= 270 < len(target) <= 320
    with pytest.raises(ValueError, match="vocab_size=259 is less than the 256 bytes and 4 special tokens"):
        train_pair_tokenizers(PAIRS, [259])


def test_a_tokenizer_that_turns_texts_to_lower_case(tmp_path):
    [tokenizer] = train_pair_tokenizers(PAIRS, [320], lowercase=True)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded("Ein HUND").input_ids == tokenizer("ein hund").input_ids
    assert loaded.decode(loaded(" Ein HUND").input_ids, skip_special_tokens=True) == " ein hund"
    assert "Ġhund" in loaded.get_vocab()
    assert not any(token.startswith("ĠH") for token in loaded.get_vocab())


def test_whole_words_keep_the_layout_of_code(tmp_path):
    code = "def f ( x ) :\n    if x :\n        return x\n    return 1"
    pairs = Dataset.from_dict({"source": ["Give x", "give y"], "target": [code, "x x"]})
    source, target = train_pair_tokenizers(pairs, [50, 13], "word", lowercase=True)
    target.save_pretrained(tmp_path)
    target = AutoTokenizer.from_pretrained(tmp_path)
    assert [source.decode(source(text).input_ids, skip_special_tokens=True) for text in pairs["source"]] == [
        "give x",
        "give y",
    ]
    # the most frequent ones are left: indentations, x, line ends, return and :
    assert {"    ", "x", "\n", "return", ":"} < {*target.get_vocab()}
    assert len(target) == 13
    known = "\n    x :\n        return x\n    return"
    assert target.decode(target(known).input_ids, skip_special_tokens=True) == known
    assert target("x unknown x").input_ids == [*target.convert_tokens_to_ids(["x", "<unk>", "x"]), 2]
    encoded = tokenize_pairs(pairs, source, target, 50, 60, drop_long=True, desc="train")
    assert all(labels[-1] == 2 and labels.count(2) == 1 for labels in encoded["labels"])


def test_an_end_token_inside_a_target_is_not_its_end():
    # of this tokenizer, a line end is the end token
    words = train_tokenizer(["a b\n"], "word", 10)
    pairs = Dataset.from_dict({"source": ["a", "a"], "target": ["a\nb", "a\n"]})
    with pytest.raises(ValueError, match=re.escape("puts no end token (<eos>) after targets")):
        tokenize_pairs(pairs, words, words, 99, 99, drop_long=True, desc="train")


def test_tokens_of_pairs(capsys):
    source, target = train_pair_tokenizers(PAIRS, [300, 300])
    encoded = tokenize_pairs(PAIRS, source, target, 50, 60, drop_long=True, desc="train")
    assert encoded.column_names == ["input_ids", "labels"]
    assert [source.decode(ids) for ids in encoded["input_ids"]] == [f"{text}</s>" for text in GERMAN]
    assert [target.decode(ids, skip_special_tokens=True) for ids in encoded["labels"]] == ENGLISH
    assert all(labels[-1] == 2 for labels in encoded["labels"])
    # nothing is said where nothing is left out
    assert "pairs" not in capsys.readouterr().out


def lengths(tokenizer):
    return [len(tokenizer(g).input_ids) for g in GERMAN], [len(tokenizer(e).input_ids) for e in ENGLISH]


def test_long_pairs_are_left_out_of_training(capsys):
    sources, targets = lengths(JOINT)
    # the longest source, and the longest target of the others
    limits = sorted(sources)[-2], sorted(targets)[-2]
    kept = [i for i in range(5) if sources[i] <= limits[0] and targets[i] <= limits[1]]
    assert 0 < len(kept) < 5
    encoded = tokenize_pairs(PAIRS, JOINT, JOINT, *limits, drop_long=True, desc="train")
    assert encoded["input_ids"][:] == [JOINT(GERMAN[i]).input_ids for i in kept]
    assert encoded["labels"][:] == [JOINT(ENGLISH[i]).input_ids for i in kept]
    first = min({*range(5)} - {*kept}) + 1
    said = f"{5 - len(kept)} of 5 train pairs, the first of them number {first}, have more than {limits[0]} source or "
    said += f"{limits[1]} target tokens and are"
    assert capsys.readouterr().out.strip() == f"{said} left out"
    # each side counts
    for one_side in ((limits[0], 99), (99, limits[1])):
        kept = [i for i in range(5) if sources[i] <= one_side[0] and targets[i] <= one_side[1]]
        encoded = tokenize_pairs(PAIRS, JOINT, JOINT, *one_side, drop_long=True, desc="train")
        assert encoded["input_ids"][:] == [JOINT(GERMAN[i]).input_ids for i in kept]


def test_long_pairs_are_cut_in_evaluation(capsys):
    sources, targets = lengths(JOINT)
    encoded = tokenize_pairs(PAIRS, JOINT, JOINT, 4, 3, drop_long=False, desc="test")
    for texts, column, length in ((GERMAN, "input_ids", 4), (ENGLISH, "labels", 3)):
        whole = [JOINT(text).input_ids for text in texts]
        assert encoded[column][:] == [ids if len(ids) <= length else [*ids[: length - 1], 2] for ids in whole]
    long = [source > 4 or target > 3 for source, target in zip(sources, targets, strict=True)]
    assert 0 < sum(long) < 5
    said = f"{sum(long)} of 5 test pairs, the first of them number {long.index(True) + 1}, have more than 4 source or"
    assert capsys.readouterr().out.strip() == f"{said} 3 target tokens and are cut"


def test_lengths_that_leave_nothing_are_refused():
    with pytest.raises(
        ValueError, match="all 5 train pairs have more than 2 source or 2 target tokens; raise --max_so"
    ):
        tokenize_pairs(PAIRS.select([0] * 5), JOINT, JOINT, 2, 2, drop_long=True, desc="train")
    with pytest.raises(ValueError, match="max_target_length=1 has no room beside 1 special tokens"):
        tokenize_pairs(PAIRS, JOINT, JOINT, 20, 1, drop_long=False, desc="test")


def test_a_given_tokenizer():
    # as BART's: a start token, too
    given = train_tokenizer(GERMAN + ENGLISH, "bpe", 300, {"bos_token": "<s>", "eos_token": "</s>"})
    with pytest.raises(ValueError, match=re.escape("puts no end token (</s>) after targets")):
        tokenize_pairs(PAIRS, given, given, 99, 99, drop_long=True, desc="train")
    given.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    encoded = tokenize_pairs(PAIRS, given, given, 6, 6, drop_long=False, desc="test")
    for column in ("input_ids", "labels"):
        assert all(ids[0] == 0 and ids[-1] == 1 and len(ids) <= 6 for ids in encoded[column])


def test_targets_are_read_as_targets():
    class Multilingual(type(JOINT)):
        """Marks targets, as the tokenizers do that read both languages."""

        def _switch_to_target_mode(self):
            self.backend_tokenizer.post_processor = TemplateProcessing(
                single="<unk> $A </s>", special_tokens=[("<unk>", 3), ("</s>", 2)]
            )

        def _switch_to_input_mode(self):
            self.backend_tokenizer.post_processor = JOINT.backend_tokenizer.post_processor

    tokenizer = Multilingual(tokenizer_object=JOINT.backend_tokenizer, **JOINT.special_tokens_map)
    tokenizer._switch_to_input_mode()
    encoded = tokenize_pairs(PAIRS, tokenizer, tokenizer, 99, 6, drop_long=False, desc="test")
    assert all(ids[0] == 3 and len(ids) <= 6 for ids in encoded["labels"])
    assert not any(3 in ids for ids in encoded["input_ids"])


def test_marks_of_layout_become_lines_and_indentation(tmp_path):
    body = "DCSP for x in y: DCNL DCSP  DCSP f(x) DCNL DCSP return 1"
    rows = rows_as_json([{"docstring": "Call f. DCNL Twice.", "body": body}])
    found = load(write(tmp_path / "train.jsonl", rows), source="docstring", target="body")
    assert_holds(found, ["Call f.\nTwice."], ["    for x in y:\n        f(x)\n    return 1"])
