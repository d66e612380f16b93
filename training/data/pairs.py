"""Pairs of texts for encoder-decoders: reading them, training their tokenizers, and tokenizing them."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import fsspec
from accelerate import PartialState
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from sublayers.training.data.files import (
    BUILDERS,
    Used,
    check_file,
    ending,
    first_rows,
    load_splits,
    named_files,
    read_rows,
    reading,
    tell_unread,
    used,
)
from sublayers.training.data.functions import docstring_to_code
from sublayers.training.data.tokenizers import train_tokenizer
from sublayers.training.flags import flag, nearest

SIDES = ("source", "target")
# in the order of their ids, which is fairseq's
SPECIAL_TOKENS = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
PairTokenizerModel = Literal["bpe", "word"]
# a level of indentation, and what a word is: that, a line end, or what stands between spaces
INDENTATION = "    "
WORD = rf"\n|{INDENTATION}|\S+"


@dataclass
class Seq2SeqDataArguments:
    """Flags that name pairs of texts; without any they are documented functions of the running Python's library."""

    _argument_group_name: ClassVar[str] = "data (default: docstrings and code of the running Python's standard library)"

    dataset_name: str | None = flag("data set on the Hub, or a local folder")
    dataset_config_name: str | None = flag("configuration of the data set")
    train_file: list[str] | None = flag(
        ".json, .jsonl, .parquet or .csv, or two plain text files with a text per line, source and target; "
        "all also compressed (.gz)"
    )
    validation_file: list[str] | None = flag("as --train_file")
    test_file: list[str] | None = flag("as --train_file")
    source: str | None = flag("column with the input, or its language code in a column 'translation'")
    target: str | None = flag("as --source, for the output")
    max_source_length: int = flag("tokens, end included; longer pairs are not trained on, and cut in evaluation", 128)
    max_target_length: int = flag("as --max_source_length", 128)
    max_train_samples: int | None = flag("use the first pairs only")
    max_eval_samples: int | None = flag("as --max_train_samples, of validation")
    max_predict_samples: int | None = flag("as --max_train_samples, of test")
    lowercase: bool = flag("turn sources and targets to lower case", False)
    tokenized: bool = flag("texts are tokens with spaces between, which tokenized_bleu counts as they are", False)


def check_tokenized(args: Seq2SeqDataArguments, task: str) -> None:
    """Check that a task has scores of tokens if the texts are tokens, or raise a ValueError."""
    if args.tokenized and task != "translation":
        raise ValueError(f"--tokenized is for --task translation; leave it out for {task}")


def load_pairs(args: Seq2SeqDataArguments) -> dict[str, Dataset]:
    """Load the splits among `train`, `validation` and `test`, each with the text columns `source` and `target`.

    Raises:
        FileNotFoundError: there is no such file or data set.
        ValueError: data that cannot be read, flags that do not name two texts of it, a missing or empty text, or plain
            text files of different length.
    """
    limits = _limits(args)
    if files := named_files(args):
        splits = {split: _read_files(split, paths, args) for split, paths in files.items()}
    elif args.dataset_name:
        found = load_splits(args, limits)
        splits = {split: _choose(rows, f"split {split} of {args.dataset_name}", args) for split, rows in found.items()}
    elif args.source or args.target:
        raise ValueError("--source and --target name texts of a data set; give --train_file or --dataset_name, too")
    else:
        splits = docstring_to_code()
    splits = {split: first_rows(rows, limits[split], f"{split} pair") for split, rows in splits.items()}
    if args.lowercase:
        return {split: rows.map(_lower, batched=True, desc=f"lower case, {split}") for split, rows in splits.items()}
    return splits


def pairs_used(split: str, rows: Dataset, args: Seq2SeqDataArguments) -> Used:
    """Say what a run reads of a split of `load_pairs`; in lower case its texts are others."""
    read = used(rows, _limits(args)[split])
    return read._replace(whole=read.whole and not args.lowercase)


def train_pair_tokenizers(
    train: Dataset,
    vocab_sizes: Sequence[int],
    model: PairTokenizerModel = "bpe",
    lowercase: bool = False,
) -> list[PreTrainedTokenizerFast]:
    """Train a tokenizer of both sides, or one of sources and one of targets, which end each text in </s>.

    Byte-level BPEs decode to exactly the text that they encoded, and give a word the same tokens at the start of a text
    as inside it. Words are what stands between spaces, the most frequent ones; line ends and indentations by four
    spaces are words, too.

    Args:
        train: columns `source` and `target`.
        vocab_sizes: largest number of tokens of each tokenizer, special ones included; one for a joint tokenizer.
        model: kind of tokens.
        lowercase: the tokenizers turn what they read to lower case.

    Raises:
        ValueError: a vocabulary too small for the bytes and special tokens.
    """
    groups = [SIDES] if len(vocab_sizes) == 1 else [[side] for side in SIDES]
    return [_train(train, sides, size, model, lowercase) for sides, size in zip(groups, vocab_sizes, strict=True)]


def tokenize_pairs(
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase,
    max_source_length: int,
    max_target_length: int,
    drop_long: bool,
    desc: str,
) -> Dataset:
    """Tokenize pairs, and leave out or cut those that are too long, and say how many.

    Args:
        rows: columns `source` and `target`.
        tokenizer: of sources.
        target_tokenizer: of targets; the same object if one tokenizer reads both.
        max_source_length: largest number of tokens, special ones included.
        max_target_length: as max_source_length.
        drop_long: leave out too long pairs, as in training; else cut them before their end token.
        desc: the split's name, for messages.

    Returns:
        Columns `input_ids` and `labels`, not padded.

    Raises:
        ValueError: lengths without room for text, targets that do not end in an end token, or nothing is left.
    """
    # a language code may follow the end token
    ends, codes = [target_tokenizer.eos_token_id], {*target_tokenizer.all_special_ids}
    sides = {"source": (tokenizer, max_source_length), "target": (target_tokenizer, max_target_length)}
    for side, (own, length) in sides.items():
        if length <= (special := own.num_special_tokens_to_add()):
            raise ValueError(f"max_{side}_length={length} has no room beside {special} special tokens; give more")

    def encode(batch: dict[str, list[str]]) -> dict[str, list]:
        # lengths are checked below; a warning would say it of the tokenizer's own limit
        sources = tokenizer(batch["source"], verbose=False).input_ids
        targets = target_tokenizer(text_target=batch["target"], verbose=False).input_ids
        pairs = zip(sources, targets, strict=True)
        long = [len(ids) > max_source_length or len(labels) > max_target_length for ids, labels in pairs]
        if any(long) and not drop_long:
            cut = {"truncation": True, "verbose": False}
            sources = tokenizer(batch["source"], max_length=max_source_length, **cut).input_ids
            targets = target_tokenizer(text_target=batch["target"], max_length=max_target_length, **cut).input_ids
        if any(ids[-1:] != ends and (ids[-2:-1] != ends or ids[-1] not in codes) for ids in targets):
            raise ValueError(
                f"the tokenizer puts no end token ({target_tokenizer.eos_token}) after targets, and a model would "
                "never stop; choose one that is made for sequence-to-sequence models"
            )
        return {"input_ids": sources, "labels": targets, "long": long}

    encoded = rows.map(encode, batched=True, remove_columns=rows.column_names, desc=f"tokenizing {desc}")
    if number := sum(encoded["long"]):
        limits = f"{max_source_length} source or {max_target_length} target tokens"
        first = list(encoded["long"]).index(True) + 1
        if drop_long and number == len(rows):
            raise ValueError(
                f"all {number} {desc} pairs have more than {limits}; raise --max_source_length or --max_target_length"
            )
        if drop_long:
            encoded = encoded.filter(
                lambda long: not long, input_columns="long", desc=f"leaving out long pairs, {desc}"
            )
        done = "left out" if drop_long else "cut"
        which = f"{number} of {len(rows)} {desc} pairs, the first of them number {first},"
        PartialState().print(f"{which} have more than {limits} and are {done}")
    return encoded.remove_columns("long")


def _limits(args: Seq2SeqDataArguments) -> dict[str, int | None]:
    return {"train": args.max_train_samples, "validation": args.max_eval_samples, "test": args.max_predict_samples}


def _read_files(split: str, paths: list[str], args: Seq2SeqDataArguments) -> Dataset:
    if len(paths) == 2:
        lines = [_read_lines(path) for path in paths]
        if len(lines[0]) != len(lines[1]):
            raise ValueError(
                f"{paths[0]} has {len(lines[0])} lines and {paths[1]} has {len(lines[1])}; "
                "give files with as many lines, translations of each other"
            )
        return _check(Dataset.from_dict(dict(zip(SIDES, lines, strict=True))), "line", paths)
    if len(paths) > 2 or ending(paths[0]) not in BUILDERS:
        raise ValueError(
            f"--{split}_file {' '.join(paths)} is neither one file that ends in {', '.join(BUILDERS)} (compressed or "
            "not) nor two plain text files, source and target"
        )
    check_file(paths[0], BUILDERS)
    return _choose(read_rows(paths), paths[0], args)


def _read_lines(path: str) -> list[str]:
    # other characters that may end a line can stand inside a text, and in one of two files only
    with reading(path), fsspec.open(path, "rt", encoding="utf-8", newline="\n", compression="infer") as file:
        return [line.rstrip("\r\n") for line in file]


def _choose(rows: Dataset, name: str, args: Seq2SeqDataArguments) -> Dataset:
    # a column `translation` of dicts becomes columns `translation.de` and so on
    rows = rows.flatten()
    columns = {column.removeprefix("translation."): column for column in rows.column_names}
    for side, value in (("source", args.source), ("target", args.target)):
        if value is None:
            raise ValueError(f"{name} has {', '.join(columns)}; choose what to read as --source and what as --target")
        if value not in columns:
            meant = nearest(value, columns)
            raise ValueError(f"{name} has no {value!r}{meant}; choose --{side} from {', '.join(columns)}")
    if args.source == args.target:
        raise ValueError(f"--source and --target are both {args.source!r}; choose two of {', '.join(columns)}")
    chosen = {columns[args.source]: "source", columns[args.target]: "target"}
    tell_unread(name, columns, [str(args.source), str(args.target)])
    rows = _check(rows.select_columns([*chosen]).rename_columns(chosen), "row", [name, name])
    if any("DCNL" in text or "DCSP" in text for text in rows["target"]):
        rows = rows.map(_restore_layout, batched=True, desc=f"restoring lines and indentation, {name}")
    return rows


def _check(rows: Dataset, unit: str, names: list[str]) -> Dataset:
    if not len(rows):
        raise ValueError(f"{names[0]} holds no pairs")

    def check(batch: dict[str, list], indices: list[int]) -> None:
        for side, name in zip(SIDES, names, strict=True):
            for i, text in zip(indices, batch[side], strict=True):
                if not isinstance(text, str) or not text.strip():
                    remedy = f"remove the pair or choose another --{side}"
                    raise ValueError(f"{unit} {i + 1} of {name} has {text!r} as its {side}, not text; {remedy}")

    rows.map(check, batched=True, with_indices=True, desc=f"checking {' and '.join(dict.fromkeys(names))}")
    return rows


def _restore_layout(batch: dict[str, list[str]]) -> dict[str, list[str]]:
    # the corpus of Barone and Sennrich (2017) has marks for line ends and for levels of indentation
    lines = {side: [re.sub(r"\s*DCNL ?", "\n", text) for text in batch[side]] for side in SIDES}
    return {side: [re.sub(r" *DCSP ?", "    ", text) for text in texts] for side, texts in lines.items()}


def _lower(batch: dict[str, list[str]]) -> dict[str, list[str]]:
    return {side: [text.lower() for text in batch[side]] for side in SIDES}


def _train(
    train: Dataset, sides: Sequence[str], vocab_size: int, model: PairTokenizerModel, lowercase: bool
) -> PreTrainedTokenizerFast:
    def texts() -> Iterator[str]:
        for batch in train.iter(batch_size=1000):
            for side in sides:
                yield from (text.lower() if lowercase else text for text in batch[side])

    changes: list[Any] = [normalizers.Lowercase()] if lowercase else []
    if model == "word":
        tokenizer = _words(texts(), vocab_size)
    else:
        # as the normalizer does it; ByteLevel's own prefix would make " a" and "a" the same
        prefixed = (" " + text for text in texts())
        tokenizer = train_tokenizer(prefixed, "bpe", vocab_size, SPECIAL_TOKENS).backend_tokenizer
        changes.append(normalizers.Prepend(" "))
        tokenizer.decoder = decoders.Sequence([tokenizer.decoder, decoders.Strip(" ", 1, 0)])
    tokenizer.normalizer = normalizers.Sequence(changes)
    eos = SPECIAL_TOKENS["eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, tokenizer.token_to_id(eos))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        # a text may hold "<s>", which is HTML, too
        split_special_tokens=True,
        **SPECIAL_TOKENS,
    )


def _words(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    counts = Counter(word for text in texts for word in re.findall(WORD, text))
    words = [*SPECIAL_TOKENS.values(), *(word for word, _ in counts.most_common())]
    vocabulary = {word: number for number, word in enumerate(list(dict.fromkeys(words))[:vocab_size])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, SPECIAL_TOKENS["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)
    # the first one puts a space before every word, as none begins with that prefix; those of layout go
    joining = [decoders.WordPiece(prefix="\n\n", cleanup=False), decoders.Fuse()]
    layout = [decoders.Replace(Regex(" ?\n ?"), "\n"), decoders.Replace(Regex("( {4}) "), INDENTATION)]
    tokenizer.decoder = decoders.Sequence([*joining, *layout])
    return tokenizer
