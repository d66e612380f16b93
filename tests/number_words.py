"""Texts of numbers, and a tokenizer that knows them."""

import datasets
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sublayers.training.data.corpus import Text
from sublayers.training.data.tokenizers import BERT_SPECIAL_TOKENS

SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}


def numbers_tokenizer(words: int) -> PreTrainedTokenizerFast:
    """A tokenizer that knows the words 0, 1, ... and joins each odd one to the even one before it as `0##1`."""
    names = [f"[{name.upper()}]" for name in SPECIAL] + [f"{'##' * (n % 2)}{n}" for n in range(words)]
    tokenizer = Tokenizer(models.WordPiece({name: n for n, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **BERT_SPECIAL_TOKENS)


def rows(*texts: str) -> Text:
    return Text(datasets.Dataset.from_dict({"text": texts}))
