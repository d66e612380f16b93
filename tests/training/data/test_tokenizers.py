import itertools
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from datasets import IterableDataset
from hypothesis import given, strategies as st
from transformers import AutoTokenizer

from sublayers.training.commands import tokenizer as command
from sublayers.training.data import tokenizers
from sublayers.training.data.corpus import Text
from sublayers.training.data.tokenizers import train_tokenizer

TEXTS = [Path(sysconfig.get_path("stdlib"), name).read_text() for name in ("abc.py", "heapq.py", "random.py")]
TOKENIZERS = {model: train_tokenizer(TEXTS, model, 600) for model in ("bpe", "byte", "char", "wordpiece", "word")}
# no surrogates: they have no UTF-8
UNICODE = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize("model", ["bpe", "byte"])
@given(text=UNICODE | st.text(st.sampled_from(" \t\r\n'aé…\x00")))
def test_bytes_decode_to_the_text_that_was_encoded(model, text):
    tokenizer = TOKENIZERS[model]
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids) == text
    if model == "byte":
        assert len(ids) == len(text.encode())


@given(text=st.text(st.sampled_from(sorted(set("".join(TEXTS))))))
def test_known_characters_decode_to_the_text_that_was_encoded(text):
    ids = TOKENIZERS["char"](text).input_ids
    assert len(ids) == len(text)
    assert TOKENIZERS["char"].decode(ids) == text


def test_words_are_counted_case_and_all_with_the_ends_of_lines():
    text = " = B = \n\n a b <unk> a B\n c <unk> a\n"
    tokenizer = train_tokenizer([text], "word", 7)
    # three ends of lines, but four of a word that was met later
    assert tokenizer.convert_ids_to_tokens(range(7)) == ["<eos>", "a", "=", "B", "<unk>", "b", "c"]
    ids = tokenizer(text).input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == text.replace("\n", " <eos> ").split()
    assert tokenizer.decode(ids) == "= B =\n\na b <unk> a B\nc <unk> a\n"
    assert tokenizer("a ab\n").input_ids == [1, tokenizer.unk_token_id, 0]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 0)
    # what has to be known is known, however rare
    assert train_tokenizer(["a b a b"], "word", 3).convert_ids_to_tokens(range(3)) == ["<eos>", "<unk>", "a"]


def test_words_come_from_a_file_in_its_order(tmp_path):
    path = tmp_path / "vocabulary.txt"
    path.write_text("the 17\n<eos> 9\nThe\n\nof\t3\n", encoding="utf-8")
    tokenizer = tokenizers.read_words(str(path))
    assert tokenizer.convert_ids_to_tokens(range(5)) == ["<unk>", "the", "<eos>", "The", "of"]
    assert tokenizer("The end of\nthe").input_ids == [3, 0, 4, 2, 1]
    tokenizer.save_pretrained(tmp_path / "saved")
    assert AutoTokenizer.from_pretrained(tmp_path / "saved")("The end of\nthe").input_ids == [3, 0, 4, 2, 1]
    path.write_text("\n \n")
    with pytest.raises(ValueError, match="has no words; give a file with a word in each line"):
        tokenizers.read_words(str(path))


def test_characters_that_are_not_in_the_vocabulary_are_refused():
    known, unknown = (np.array(TOKENIZERS["char"](text).input_ids) for text in ("abc", "a…b…"))
    assert (unknown == TOKENIZERS["char"].unk_token_id).tolist() == [False, True, False, True]
    tokenizers.check_known(known, TOKENIZERS["char"])
    with pytest.raises(ValueError, match="has not all characters of the text, in which 2 are unknown; train the tok"):
        tokenizers.check_known(unknown, TOKENIZERS["char"])
    # where words are unknown, that is what was agreed on
    tokenizers.check_known(np.array(TOKENIZERS["word"]("a…b…").input_ids), TOKENIZERS["word"])


def test_offsets_leave_out_the_space_before_a_word():
    # whole-word masking finds words by the gaps between offsets
    offsets = TOKENIZERS["bpe"]("def random", return_offsets_mapping=True).offset_mapping
    assert all(not "def random"[start:end].startswith(" ") for start, end in offsets)


@pytest.mark.parametrize("model", TOKENIZERS)
def test_special_tokens_inputs_and_the_way_through_a_folder(model, tmp_path):
    tokenizer = TOKENIZERS[model]
    assert len(tokenizer) == {"byte": 256 + 3, "char": len(set("".join(TEXTS))) + 3}.get(model, 600)
    special = {tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.eos_token_id}
    # a line's end is all that words are padded with
    assert len(special) == (2 if model == "word" else 3)
    assert special <= set(tokenizer.all_special_ids)
    batch = tokenizer(["import abc", "import"], padding=True)
    assert ("token_type_ids" in batch) == (model == "wordpiece")
    assert len(batch.input_ids[0]) == len(batch.input_ids[1])
    if model == "wordpiece":
        assert tokenizer.decode(batch.input_ids[1], skip_special_tokens=False).split()[0] == "[CLS]"
        assert tokenizer.mask_token_id is not None
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    assert loaded.model_input_names == tokenizer.model_input_names
    text = " Def  random():\n\n    return 'é'\t"
    assert loaded(text) == tokenizer(text)
    assert loaded.decode(loaded(text).input_ids) == tokenizer.decode(tokenizer(text).input_ids)


@pytest.mark.parametrize("model", sorted(TOKENIZERS.keys() - {"byte"}))
def test_a_vocabulary_without_tokens_or_below_the_bytes_is_refused(model):
    said = dict.fromkeys((0, -1), "holds no token; give 1 or more")
    for size, reason in (said | {258: "is less than the 256 bytes and 3 special"} if model == "bpe" else said).items():
        with pytest.raises(ValueError, match=f"vocab_size={size} {reason}"):
            train_tokenizer(TEXTS, model, size)


def test_the_sample_stops(monkeypatch):
    monkeypatch.setattr(tokenizers, "SAMPLE_CHARACTERS", 10)
    endless = IterableDataset.from_generator(lambda: ({"text": "four"} for _ in itertools.count()))
    assert list(tokenizers.sample(Text(endless), "bpe")) == ["four"] * 3
    # a word that comes late counts as much as others
    assert len([*itertools.islice(tokenizers.sample(Text(endless), "word"), 9)]) == 9


def test_the_command_saves_a_tokenizer_and_never_overwrites(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(TEXTS))
    argv = ["--train_file", str(text), "--output_dir", str(tmp_path / "new"), "--vocab_size", "300"]
    command.main(argv)
    assert capsys.readouterr().out.startswith("300 tokens")
    assert len(AutoTokenizer.from_pretrained(tmp_path / "new")) == 300
    before = {path: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    with pytest.raises(FileExistsError, match="is not empty; choose another folder"):
        command.main([*argv, "--model", "byte"])
    assert {path: path.read_bytes() for path in (tmp_path / "new").iterdir()} == before


@pytest.mark.parametrize("model", TOKENIZERS)
def test_the_same_text_gives_the_same_tokenizer(model):
    # many words of the same frequency, so that their order would tell
    texts = [*TEXTS, " ".join(f"{a}{b}{c}" for a, b, c in itertools.permutations("aeiouxyz", 3))]
    trained = [train_tokenizer(texts, model, 900).get_vocab() for _ in range(4)]
    assert all(vocabulary == trained[0] for vocabulary in trained)
