"""Training tokenizers of four kinds."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from sublayers.training.data.corpus import Text

TokenizerModel = Literal["bpe", "wordpiece", "byte", "char"]

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
# more text changes a vocabulary little
SAMPLE_CHARACTERS = 100_000_000


def train_tokenizer(
    texts: Iterable[str], model: TokenizerModel, vocab_size: int, special_tokens: dict[str, str] | None = None
) -> PreTrainedTokenizerFast:
    """Train a fast tokenizer; bpe, byte and char decode to exactly the text that they encoded.

    Args:
        texts: documents; not read for `byte`, whose vocabulary is given.
        model: kind of tokens.
        vocab_size: largest number of tokens, special ones included.
        special_tokens: texts of the special tokens by role, in the order of their ids; default: as GPT-2 or BERT.

    Raises:
        ValueError: a vocabulary too small for the bytes and special tokens of a byte-level BPE.
    """
    special = special_tokens or (BERT_SPECIAL_TOKENS if model == "wordpiece" else SPECIAL_TOKENS)
    # in order and once each, as the same text may play two roles
    settings = {"vocab_size": vocab_size, "special_tokens": list(dict.fromkeys(special.values()))}
    tokenizer = {"bpe": _bpe, "wordpiece": _wordpiece, "byte": _byte, "char": _char}[model](texts, settings)
    names = (
        ["input_ids", "token_type_ids", "attention_mask"] if model == "wordpiece" else ["input_ids", "attention_mask"]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=names, **special)


def sample(text: Text) -> Iterator[str]:
    """Iterate over the start of a corpus, about 100 million characters of it."""
    characters = 0
    for piece in text.pieces():
        yield piece
        characters += len(piece)
        if characters > SAMPLE_CHARACTERS:
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


def _wordpiece(texts: Iterable[str], settings: dict[str, Any]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(**settings))
    special = settings["special_tokens"]
    cls, sep = ((token, special.index(token)) for token in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.BertProcessing(sep, cls)
    return tokenizer
