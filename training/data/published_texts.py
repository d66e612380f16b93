"""Published texts, as they are distributed, made into the files that language models read."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from tqdm.auto import tqdm

from sublayers.training.data.archives import Member, Sources, read_lines
from sublayers.training.data.files import SPLITS

# the lines of about one and a half books, and of how many such runs one is for validation and one for test
RUN_OF_LINES, RUNS = 10_000, 1000
# of how many documents one is for validation (Lu et al., 2019, appendix B.2)
DOCUMENTS = 200


def characters(name: str, sources: Sources, place: Path) -> dict[str, int]:
    """Cut one text as enwik8 and text8 are cut: 90, 5 and 5 % of its bytes for training, validation and test.

    A character of several bytes is never cut: it goes to the later part, and at the end of the text it is left out.

    Args:
        name: of the file.
        sources: that have it.
        place: folder of the files that are written, a `.txt` for each split.

    Returns:
        Bytes by split. Raises what `Sources` raises.
    """
    text = sources.read(name)
    ends = [_whole(text, len(text) * share // 100) for share in (90, 95, 100)]
    for split, start, end in zip(SPLITS, [0, *ends], ends, strict=False):
        (place / f"{split}.txt").write_bytes(text[start:end])
    return dict(zip(SPLITS, (end - start for start, end in zip([0, *ends], ends, strict=False)), strict=True))


def wikitext(sources: Sources, place: Path) -> dict[str, int]:
    """Copy the splits of WikiText-103; see `characters`. Returns tokens by split: words and line ends."""
    sizes = {}
    for split, name in zip(SPLITS, ("train", "valid", "test"), strict=True):
        sizes[split] = 0
        with (place / f"{split}.txt").open("w", encoding="utf-8", newline="\n") as file:
            for line in sources.lines(f"wiki.{name}.tokens"):
                file.write(f"{line}\n")
                sizes[split] += len(line.split()) + 1
    return sizes


def books(sources: Sources, place: Path) -> dict[str, int]:
    """Split the sentences of the Toronto Books corpus; see `characters`. Returns lines by split.

    What is distributed has no marks between books. So that hardly a book is in two splits, runs of 10,000 lines stay
    together, of which one of 1,000 goes to validation and one to test.
    """
    sizes = dict.fromkeys(SPLITS, 0)
    files = {split: (place / f"{split}.txt").open("w", encoding="utf-8", newline="\n") for split in SPLITS}
    try:
        numbers = count()
        for part in ("books_large_p1.txt", "books_large_p2.txt"):
            for line in sources.lines(part):
                run = next(numbers) // RUN_OF_LINES % RUNS
                split = {RUNS - 2: "validation", RUNS - 1: "test"}.get(run, "train")
                files[split].write(f"{line}\n")
                sizes[split] += 1
    finally:
        for file in files.values():
            file.close()
    return sizes


def wikipedia_and_books(sources: Sources, place: Path) -> dict[str, int]:
    """Join the articles that WikiExtractor has written and a folder of books; see `characters`.

    Each is a document, a row of a `.jsonl` file; one of 200 is for validation. Returns words by split.

    Raises:
        ValueError: there are no articles or no books, or a line that is no article.
    """
    articles, texts = sources.find_all("wiki_*"), sources.find_all("*.txt")
    for kind, found in (("articles (files wiki_00 and so on)", articles), ("books (files .txt)", texts)):
        if not found:
            raise ValueError(f"there are no {kind} in {' and '.join(map(str, sources.paths))}; give both folders")
    sizes = {"train": 0, "validation": 0}
    with (
        (place / "train.jsonl").open("w", encoding="utf-8") as train,
        (place / "validation.jsonl").open("w", encoding="utf-8") as validation,
    ):
        files = {"train": train, "validation": validation}
        for number, text in enumerate(_documents(articles, texts), 1):
            split = "train" if number % DOCUMENTS else "validation"
            files[split].write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            sizes[split] += len(text.split())
    return sizes


def _documents(articles: list[Member], books: list[Member]) -> Iterator[str]:
    for member in tqdm(articles, "reading articles", unit=" files", delay=2):
        for line in read_lines(member):
            try:
                text = json.loads(line)["text"]
            except (ValueError, TypeError, KeyError):
                raise ValueError(
                    f"{member.name} has {line[:40]!r}, which is no article with a text; call WikiExtractor with --json"
                ) from None
            if text.strip():
                yield text
    for member in tqdm(books, "reading books", unit=" books", delay=2):
        if (text := "\n".join(read_lines(member))).strip():
            yield text


def _whole(text: bytes, end: int) -> int:
    # the start of the last character before the end
    start = max(end - 1, 0)
    while start and text[start] & 0xC0 == 0x80:
        start -= 1
    try:
        text[start:end].decode("utf-8")
    except UnicodeDecodeError:
        return start
    return end
