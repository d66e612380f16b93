"""Published pairs of texts, as they are distributed, made into the rows that encoder-decoders read."""

import html
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sacremoses import MosesTokenizer
from tqdm.auto import tqdm

from sublayers.training.data.archives import Sources, read_lines

Pair = Sequence[str]
LANGUAGES = ("de", "en")
# lines of IWSLT's training text that are about a talk, and marks of lines that are text
ABOUT, MARKS = ("<url>", "<talkid>", "<keywords>"), re.compile("</?(?:title|description)>")
SEGMENT = re.compile("</?seg[^>]*>")
# of a pair of IWSLT's that is trained on: the most tokens of a side, and how many times more than the other has
LONGEST, RATIO = 175, 1.5
# of how many of them one is for validation
VALIDATION = 23
IWSLT_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
WMT_TRAINING = ("europarl-v7.de-en", "commoncrawl.de-en", "news-commentary-v*.de-en")
WMT_ROLES = {"de": "ref", "en": "src"}
# articles and headlines, as they are called in one distribution or the other
ARTICLES = {
    "train": (("train.src.txt", "train.tgt.txt"), ("train.article.txt", "train.title.txt")),
    "validation": (("dev.src.txt", "dev.tgt.txt"), ("valid.article.filter.txt", "valid.title.filter.txt")),
    "test": (("test.src.txt", "test.tgt.txt"), ("Giga/input.txt", "Giga/task1_ref0.txt")),
}
# what the splits of code are called, and the columns of descriptions
PARTS = {"train": ["train"], "validation": ["valid", "dev", "validation"], "test": ["test"]}
DESCRIPTIONS = ("nl", "comment", "docstring", "description")


def iwslt14(sources: Sources, place: Path) -> dict[str, int]:
    """Prepare German and English of IWSLT'14 as Macaron and IOT had them, with fairseq's choices.

    Texts are tokens of Moses with spaces between, in lower case. Pairs of the training text with a side of none or of
    more than 175 tokens, or of 1.5 times as many as the other, are left out. Each 23rd of the others is for validation.
    The test data are five sets for development and test of earlier years.

    Args:
        sources: that have `train.tags.de-en.de` and so on.
        place: folder of the files that are written: `train.jsonl` and so on, with the columns `de` and `en`.

    Returns:
        Pairs by split.

    Raises:
        ValueError: sides of different length, or what `Sources` raises.
    """
    sides = [
        _tokens(
            [MARKS.sub("", line) for line in sources.lines(f"train.tags.de-en.{side}") if not _is_about(line)], side
        )
        for side in LANGUAGES
    ]
    clean = [pair for pair in _pairs(sides, "train.tags.de-en") if _is_clean(*(len(text.split()) for text in pair))]
    splits: dict[str, list[Pair]] = {
        "train": [pair for number, pair in enumerate(clean, 1) if number % VALIDATION],
        "validation": clean[VALIDATION - 1 :: VALIDATION],
        "test": [],
    }
    for name in IWSLT_TESTS:
        files = {side: f"IWSLT14.{name}.de-en.{side}.xml" for side in LANGUAGES}
        # fairseq replaces this quotation mark here alone
        texts = {
            side: [text.replace("\u2019", "'") for text in _segments(sources.lines(files[side]))] for side in LANGUAGES
        }
        splits["test"] += _pairs([_tokens(texts[side], side) for side in LANGUAGES], name)
    return {split: _write(place, split, LANGUAGES, pairs) for split, pairs in splits.items()}


def wmt14(sources: Sources, place: Path) -> dict[str, int]:
    """Prepare English and German of WMT'14 as plain texts: three corpora and two test sets of news; see `iwslt14`."""
    training = (
        pair
        for corpus in WMT_TRAINING
        for pair in _pairs([[*sources.lines(f"{corpus}.{side}")] for side in LANGUAGES], corpus)
    )
    sizes = {"train": _write(place, "train", LANGUAGES, training)}
    for split, name in (("validation", "newstest2013"), ("test", "newstest2014")):
        sides = []
        for side, role in WMT_ROLES.items():
            marked = [f"{name}{pair}-{role}.{side}.sgm" for pair in ("-deen", "")]
            member = sources.find(f"{name}.{side}", *marked, f"{name}-src.{side}.sgm")
            lines = read_lines(member)
            sides.append([*map(html.unescape, _segments(lines))] if member.name.endswith(".sgm") else [*lines])
        sizes[split] = _write(place, split, LANGUAGES, _pairs(sides, name))
    return sizes


def gigaword(sources: Sources, place: Path) -> dict[str, int]:
    """Pair the first sentences and the headlines of Gigaword, columns `article` and `headline`; see `iwslt14`."""
    sizes = {}
    for split, ways in ARTICLES.items():
        sides = [[*sources.lines(*names)] for names in zip(*ways, strict=True)]
        sizes[split] = _write(place, split, ("article", "headline"), _pairs(sides, f"Gigaword, {split}"))
    return sizes


def code(sources: Sources, place: Path) -> dict[str, int]:
    """Pair descriptions and code of IOT's Java or Python set, columns `description` and `code`; see `iwslt14`.

    A split is a folder with `javadoc.original` and `code.original`, or files `train.token.nl` and `train.token.code`
    with a number before each text, or JSON lines `train.json` with a column `code` and one of descriptions.
    """
    sizes = {}
    for split, names in PARTS.items():
        tables = [f"{name}.{ending}" for name in names for ending in ("json", "jsonl")]
        if any(map(sources.find_all, tables)):
            pairs: Iterable[Pair] = map(_described, sources.lines(*tables))
        else:
            ways = [(f"{name}/javadoc.original", f"{name}/code.original") for name in names]
            ways += [(f"{name}.token.nl", f"{name}.token.code") for name in names]
            sides = [
                [re.sub(r"^\d+\t", "", line) for line in sources.lines(*files)] for files in zip(*ways, strict=True)
            ]
            pairs = _pairs(sides, f"code, {split}")
        sizes[split] = _write(place, split, ("description", "code"), pairs)
    return sizes


def _is_about(line: str) -> bool:
    return any(mark in line for mark in ABOUT)


def _is_clean(*lengths: int) -> bool:
    return min(lengths) >= 1 and max(lengths) <= LONGEST and max(lengths) <= RATIO * min(lengths)


def _segments(lines: Iterable[str]) -> Iterator[str]:
    return (SEGMENT.sub("", line).strip() for line in lines if "<seg id" in line)


def _tokens(texts: Sequence[str], language: str) -> list[str]:
    moses = MosesTokenizer(language)
    bar = tqdm(texts, f"tokenizing {language}", delay=2)
    # escapes would stand for the same tokens
    return [moses.tokenize(text, escape=False, return_str=True).lower() for text in bar]


def _described(line: str) -> Pair:
    try:
        row = json.loads(line)
        [description] = (row[column] for column in DESCRIPTIONS if column in row)
        return description, row["code"]
    except (ValueError, TypeError, KeyError):
        columns = f"'code' and one of {', '.join(map(repr, DESCRIPTIONS))}"
        raise ValueError(f"{line[:40]!r} is no row with the columns {columns}") from None


def _pairs(sides: Sequence[Sequence[str]], name: str) -> Iterable[Pair]:
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"the sides of {name} have {len(sides[0])} and {len(sides[1])} lines; give what belongs together"
        )
    return zip(*sides, strict=True)


def _write(place: Path, split: str, columns: Sequence[str], pairs: Iterable[Pair]) -> int:
    whole = empty = 0
    with (place / f"{split}.jsonl").open("w", encoding="utf-8") as file:
        for pair in tqdm(pairs, f"writing {split}", unit=" pairs", delay=2):
            row = dict(zip(columns, map(str.strip, pair), strict=True))
            if all(row.values()):
                whole += 1
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            else:
                empty += 1
    if empty:
        print(f"{empty} {split} pairs have an empty side and are left out")
    return whole + empty
