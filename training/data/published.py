"""The corpora of the papers: what is given, what becomes of it, and how large they are."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sublayers.training.data.archives import Sources
from sublayers.training.data.published_pairs import code, gigaword, iwslt14, wmt14
from sublayers.training.data.published_texts import books, characters, wikipedia_and_books, wikitext


class Size(NamedTuple):
    """How much a split has, and by how much it may differ."""

    number: int
    within: int = 0

    def __str__(self) -> str:
        return f"{self.number:,}" + (f" ± {self.within:,}" if self.within else "")


class Corpus(NamedTuple):
    """A corpus of the papers.

    Attributes:
        given: what is given, and who distributes it.
        unit: what is counted.
        sizes: by split, as far as they are known.
        printed: what the papers say of its size.
        prepare: writes a file for each split into a folder, and returns their sizes.
        used: a recipe that reads the files, with its command and flags.
    """

    given: str
    unit: str
    sizes: dict[str, Size]
    printed: str
    prepare: Callable[[Sources, Path], dict[str, int]]
    used: str

    def check(self, found: dict[str, int]) -> None:
        """Check the sizes of the splits. Raises a ValueError for the first that is wrong."""
        for split, size in self.sizes.items():
            if abs(found[split] - size.number) > size.within:
                raise ValueError(
                    f"{split} has {found[split]:,} {self.unit}, not {size}; give {self.given}, whole, or take what "
                    "there is with --any_size"
                )


def _sizes(train: Size, validation: Size, test: Size) -> dict[str, Size]:
    return {"train": train, "validation": validation, "test": test}


PUBLISHED = {
    "enwik8": Corpus(
        "enwik8.zip of Matt Mahoney's Large Text Compression Benchmark",
        "bytes",
        # no character is cut
        _sizes(Size(90_000_000, 3), Size(5_000_000, 3), Size(5_000_000, 3)),
        "100M bytes in all (PAR, 3.1)",
        partial(characters, "enwik8"),
        "pretrain sandwich_enwik8",
    ),
    "text8": Corpus(
        "text8.zip of Matt Mahoney's Large Text Compression Benchmark",
        "characters",
        _sizes(Size(90_000_000), Size(5_000_000), Size(5_000_000)),
        "100M characters in all (PAR, 3.1)",
        partial(characters, "text8"),
        "pretrain sandwich_text8",
    ),
    "wikitext-103": Corpus(
        "wikitext-103-v1.zip of Salesforce Research",
        "tokens",
        _sizes(Size(103_227_021), Size(217_646), Size(245_569)),
        "roughly 103 million tokens (Sandwich, 3)",
        wikitext,
        "pretrain sandwich_wt103",
    ),
    "bookcorpus": Corpus(
        "books_large_p1.txt and books_large_p2.txt of the University of Toronto's BookCorpus, or a tar of both",
        "lines",
        _sizes(Size(73_864_228), Size(70_000), Size(70_000)),
        "roughly 700M tokens (Sandwich, 5.1); its split is not published",
        books,
        "pretrain sandwich_books",
    ),
    "wikipedia-books": Corpus(
        "a folder of what WikiExtractor --json has made of a dump of Wikimedia, and one of books (.txt)",
        "words",
        {},
        "roughly 3.4B words in all, and one of 200 documents for validation (Macaron, B.2)",
        wikipedia_and_books,
        "pretrain nvlamb_phase1",
    ),
    "iwslt14": Corpus(
        "de-en.tgz of IWSLT'14 (WIT3, release 2014-01)",
        "pairs",
        # those of fairseq, whose tokenizer may count a few words otherwise
        _sizes(Size(160_239, 300), Size(7_283, 15), Size(6_750)),
        "160k (IOT, 4.1) or 153K, 7K and 7K (Macaron, B.1)",
        iwslt14,
        "seq2seq iot_n4 --tokenized --source de --target en",
    ),
    "wmt14": Corpus(
        "training-parallel-europarl-v7.tgz, -commoncrawl.tgz and -nc-v9.tgz, dev.tgz and test-full.tgz of WMT'14",
        "pairs",
        _sizes(Size(4_500_000, 50_000), Size(3_000), Size(3_003)),
        "4.5M (Sandwich, 5.3; Macaron, B.1; IOT, 4.1)",
        wmt14,
        "seq2seq sandwich_wmt --source en --target de",
    ),
    "gigaword": Corpus(
        "the archive of train.src.txt, train.tgt.txt and so on (Microsoft's UniLM) or of Harvard NLP's sent-summary",
        "pairs",
        _sizes(Size(3_803_957), Size(189_651), Size(1_951)),
        "3.8M, 190k and 2k (IOT, 4.1)",
        gigaword,
        "seq2seq iot_summarization --source article --target headline",
    ),
    "code-java": Corpus(
        "the Java set of Hu et al. (2018): TL-CodeSum, or java.zip of NeuralCodeSum",
        "pairs",
        _sizes(Size(69_708), Size(8_714), Size(8_714)),
        "69,708, 8,714 and 8,714 (IOT, A.1)",
        code,
        "seq2seq iot_code --language java --vocab_size 27000 --source description --target code",
    ),
    "code-python": Corpus(
        "the Python set of Wan et al. (2018) as Wei et al. (2019) have it: python.zip of NeuralCodeSum",
        "pairs",
        _sizes(Size(55_538), Size(18_505), Size(18_502)),
        "55,538, 18,505 and 18,502 (IOT, A.1)",
        code,
        "seq2seq iot_code --source description --target code",
    ),
}
