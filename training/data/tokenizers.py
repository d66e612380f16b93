"""Training tokenizers of five kinds."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import fsspec
import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from sublayers.training.data.corpus import Text
from sublayers.training.data.files import check_file, reading

TokenizerModel = Literal["bpe", "wordpiece", "byte", "char", "word"]

# the text between two documents and before the first; it also starts a text that has no prompt
END = "<|endoftext|>"
SPECIAL_TOKENS = {"bos_token": END, "eos_token": END, "pad_token": "<|pad|>", "unk_token": "<|unk|>"}
BERT_SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
    "bos_token": "[CLS]",
    "eos_token": "[SEP]",
}
# the special tokens of Transformer-XL; the first one ends a line
WORD_SPECIAL_TOKENS = {"bos_token": "<eos>", "eos_token": "<eos>", "pad_token": "<eos>", "unk_token": "<unk>"}
# more text changes a vocabulary little, unless its tokens are words
SAMPLE_CHARACTERS = 100_000_000


def train_tokenizer(
    texts: Iterable[str], model: TokenizerModel, vocab_size: int, special_tokens: dict[str, str] | None = None
) -> PreTrainedTokenizerFast:
    """Train a fast tokenizer; bpe, byte and char decode to exactly the text that they encoded.

    Words are what stands between spaces, case and all, the most frequent first, as adaptive embeddings need them.

    Args:
        texts: documents; not read for `byte`, whose vocabulary is given.
        model: kind of tokens.
        vocab_size: largest number of tokens, special ones included.
        special_tokens: texts of the special tokens by role, in the order of their ids; default: as GPT-2 or BERT.

    Raises:
        ValueError: a vocabulary too small for the bytes and special tokens of a byte-level BPE, or one without tokens.
    """
    if vocab_size < 1 and model != "byte":
        raise ValueError(f"vocab_size={vocab_size} holds no token; give 1 or more")
    if model == "word":
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(text.split())
            counts[WORD_SPECIAL_TOKENS["eos_token"]] += text.count("\n")
        return _words([word for word, _ in counts.most_common()], vocab_size)
    special = special_tokens or (BERT_SPECIAL_TOKENS if model == "wordpiece" else SPECIAL_TOKENS)
    # dict.fromkeys keeps the order and drops repetitions: one token may have two roles
    settings = {"vocab_size": vocab_size, "special_tokens": list(dict.fromkeys(special.values()))}
    tokenizer = {"bpe": _bpe, "wordpiece": _wordpiece, "byte": _byte, "char": _char}[model](texts, settings)
    names = (
        ["input_ids", "token_type_ids", "attention_mask"] if model == "wordpiece" else ["input_ids", "attention_mask"]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=names, **special)


def read_words(path: str) -> PreTrainedTokenizerFast:
    """Make a tokenizer of words from a vocabulary file, which has one in each line, the most frequent first.

    What follows a word in its line, such as its frequency, is not read. `<eos>` and `<unk>` come first unless they are
    there.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no text, or has no words.
    """
    check_file(path, [".txt"])
    with reading(path), fsspec.open(path, "rt", encoding="utf-8", compression="infer") as file:
        words = [line.split()[0] for line in file if line.strip()]
    if not words:
        raise ValueError(f"{path} has no words; give a file with a word in each line")
    return _words(words)


def check_known(ids: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that a tokenizer of characters knows all that are in a text, whose bits would be too few without them.

    Raises:
        ValueError: it does not.
    """
    settings = json.loads(tokenizer.backend_tokenizer.to_str())
    splits = (settings["pre_tokenizer"] or {}).get("type") == "Split"
    if splits and settings["model"]["type"] == "WordLevel" and (number := (ids == tokenizer.unk_token_id).sum()):
        raise ValueError(
            f"the vocabulary has not all characters of the text, in which {number} are unknown; "
            "train the tokenizer on text that has them, or take bytes with --tokenizer_model byte"
        )


def sample(text: Text, model: TokenizerModel) -> Iterator[str]:
    """Iterate over the start of a corpus, about 100 million characters of it, or for words over all of it."""
    characters = 0
    for piece in text.pieces():
        yield piece
        characters += len(piece)
        if characters > SAMPLE_CHARACTERS and model != "word":
            return


def _bpe(texts: Iterable[str], settings: dict[str, Any]) -> Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if settings["vocab_size"] < len(alphabet) + len(settings["special_tokens"]):
        raise ValueError(
            f"vocab_size={settings['vocab_size']} is less than the {len(alphabet)} bytes and "
            f"{len(settings['special_tokens'])} special tokens that a byte-level BPE starts from"
        )
    tokenizer = _byte_level(models.BPE(), use_regex=True)
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(initial_alphabet=alphabet, **settings))
    return tokenizer


def _byte(texts: Iterable[str], settings: dict[str, Any]) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*settings["special_tokens"], *alphabet])}
    tokenizer = _byte_level(models.BPE(vocabulary, []), use_regex=False)
    tokenizer.add_special_tokens(settings["special_tokens"])
    return tokenizer


def _byte_level(model: models.Model, use_regex: bool) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    # offsets without the space before a word, where whole-word masking looks for the gaps between words
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _char(texts: Iterable[str], settings: dict[str, Any]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token=SPECIAL_TOKENS["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(**settings))
    return tokenizer


def _words(words: Sequence[str], vocab_size: int | None = None) -> PreTrainedTokenizerFast:
    end, unknown = WORD_SPECIAL_TOKENS["eos_token"], WORD_SPECIAL_TOKENS["unk_token"]
    # special tokens that the words lack come first
    first = words[: vocab_size and vocab_size - 2]
    missing = [token for token in (end, unknown) if token not in first]
    chosen = list(dict.fromkeys([*missing, *words]))[:vocab_size]
    vocabulary = {word: number for number, word in enumerate(chosen)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unknown))
    tokenizer.normalizer = normalizers.Replace("\n", f" {end} ")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # the first one puts a space before every word, as none begins with a line end
    joining = [decoders.WordPiece(prefix="\n", cleanup=False), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*joining, decoders.Replace(Regex(f" ?{end} ?"), "\n")])
    names = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=names, **WORD_SPECIAL_TOKENS)


def _wordpiece(texts: Iterable[str], settings: dict[str, Any]) -> Tokenizer:
    texts, special = [*texts], settings["special_tokens"]

    def train(**settings: Any) -> dict[str, int]:
        tokenizer = _split_as_bert(models.WordPiece())
        tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(**settings))
        return tokenizer.get_vocab()

    # the trainer numbers characters inside words as it meets them, each time in another order, and of pairs that are
    # equally frequent joins that of the smaller numbers first; those that start words have the smaller ones
    characters = sorted(train(vocab_size=0, show_progress=False), key=lambda token: (len(token), token))
    vocabulary = train(vocab_size=settings["vocab_size"], special_tokens=[*special, *characters])
    tokenizer = _split_as_bert(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(special)
    cls, sep = ((token, special.index(token)) for token in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.BertProcessing(sep, cls)
    return tokenizer


def _split_as_bert(model: models.Model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer
