"""`sublayers data` makes of what is distributed what recipes read, in the papers' splits and sizes."""

import bz2
import gzip
import io
import json
import shlex
import tarfile
import zipfile
from pathlib import Path

import pytest
from sacremoses import MosesTokenizer
from snippets import check_command

from sublayers.training import cli
from sublayers.training.data import published_texts
from sublayers.training.data.corpus import CorpusArguments, load_corpus
from sublayers.training.data.pairs import Seq2SeqDataArguments, load_pairs
from sublayers.training.data.published import PUBLISHED, Size

TEXT = "".join(f"<page>{number} Zeile über Äpfel, 中文</page>\n" for number in range(40))
WIKI = " \n = A title = \n \n two words <unk> \n"


def zipped(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def tarred(path, files):
    with tarfile.open(path, "w:" + {".tgz": "gz", ".bz2": "bz2", ".tar": ""}[path.suffix]) as archive:
        for name, text in files.items():
            content = text if isinstance(text, bytes) else text.encode()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def written(path, files):
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text, encoding="utf-8")
    return path


def prepare(capsys, name, *sources, folder, flags=("--any_size",)):
    """Prepare a corpus, and return its folder and what was printed."""
    cli.run(["data", name, *map(str, sources), "--output_dir", str(folder), *flags])
    return folder, capsys.readouterr().out


def rows(folder, split):
    return [json.loads(line) for line in (folder / f"{split}.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def test_a_text_is_cut_into_90_5_and_5_hundredths_between_characters(tmp_path, out, capsys):
    data = TEXT.encode()
    # the text ends in the middle of a character, as a file of exactly so many bytes may
    data += "中".encode()[: 2 - len(data) % 2]
    archive = zipped(tmp_path / "enwik8.zip", {"enwik8": data})
    folder, printed = prepare(capsys, "enwik8", archive, folder=out)
    parts = [(folder / f"{split}.txt").read_bytes() for split in ("train", "validation", "test")]
    assert b"".join(parts).decode() == TEXT
    for part, share in zip(parts, (0.9, 0.05, 0.05), strict=True):
        assert abs(len(part) - share * len(data)) <= 3
    assert f"train       {len(parts[0]):>12,}   90,000,000 ± 3\n" in printed
    read = load_corpus(CorpusArguments(train_file=f"{out}/train.txt", validation_file=f"{out}/validation.txt"))
    assert "".join(read["train"].pieces()).encode() == parts[0]


def test_a_size_that_is_not_the_papers_is_refused_with_both_numbers(tmp_path, out, refusal, capsys, monkeypatch):
    archive = zipped(tmp_path / "text8.zip", {"text8": "a b" * 100})
    words = ("data", "text8", archive, "--output_dir", out)
    said = refusal(*words)
    assert "train has 270 characters, not 90,000,000; give text8.zip of Matt Mahoney's" in said
    assert "--any_size" in said
    assert not out.exists()
    sizes = {split: Size(number) for split, number in (("train", 270), ("validation", 15), ("test", 15))}
    monkeypatch.setitem(PUBLISHED, "text8", PUBLISHED["text8"]._replace(sizes=sizes))
    _, printed = prepare(capsys, "text8", archive, folder=out, flags=())
    assert "validation            15   15\n" in printed


@pytest.mark.parametrize("kind", ["zip", "folder"])
def test_wikitext_is_copied_and_its_tokens_are_words_and_line_ends(kind, tmp_path, out, capsys):
    files = {
        f"wikitext-103/wiki.{name}.tokens": WIKI * number for name, number in (("train", 3), ("valid", 1), ("test", 2))
    }
    source = zipped(tmp_path / "w.zip", files) if kind == "zip" else written(tmp_path / "w", files)
    folder, printed = prepare(capsys, "wikitext-103", source, folder=out)
    assert (folder / "train.txt").read_text("utf-8") == WIKI * 3
    # a line end after each line, and seven words
    assert f"train       {3 * (4 + 7):>12}   103,227,021\n" in printed


def test_books_are_split_by_runs_of_lines(tmp_path, out, capsys, monkeypatch):
    monkeypatch.setattr(published_texts, "RUN_OF_LINES", 3)
    monkeypatch.setattr(published_texts, "RUNS", 4)
    lines = [f"sentence {number} .\n" for number in range(30)]
    parts = {"books_large_p1.txt": "".join(lines[:16]), "books_large_p2.txt": "".join(lines[16:])}
    folder, _ = prepare(capsys, "bookcorpus", tarred(tmp_path / "bookcorpus.tar.bz2", parts), folder=out)
    assert (folder / "validation.txt").read_text() == "".join([*lines[6:9], *lines[18:21]])
    assert (folder / "test.txt").read_text() == "".join([*lines[9:12], *lines[21:24]])
    assert (folder / "train.txt").read_text() == "".join([*lines[:6], *lines[12:18], *lines[24:]])


def test_wikipedia_and_books_become_documents(tmp_path, out, capsys, monkeypatch):
    monkeypatch.setattr(published_texts, "DOCUMENTS", 3)
    articles = [
        json.dumps({"id": "1", "title": "a", "text": text}) + "\n" for text in ("one\n\nart", "", "two", "three")
    ]
    wikipedia = {"AA/wiki_01": articles[3], "AA/wiki_00": "".join(articles[:3])}
    sources = [
        written(tmp_path / "wiki", wikipedia),
        written(tmp_path / "books", {"b.txt": "A book.\nIts end.\n", "._b.txt": "\x00"}),
    ]
    (tmp_path / "books" / "a.txt.bz2").write_bytes(bz2.compress(b"Another."))
    folder, printed = prepare(capsys, "wikipedia-books", *sources, folder=out)
    assert [row["text"] for row in rows(folder, "train")] == ["one\n\nart", "two", "Another.", "A book.\nIts end."]
    assert [row["text"] for row in rows(folder, "validation")] == ["three"]
    assert "train                  8   any number\n" in printed


# what fairseq's script would drop, clean away or keep
ABOUT = ["<url>http://x</url>", "<keywords>a, b</keywords>", "<talkid>1</talkid>"]
KEPT = [
    ("Das ist's, Herr Ä.", "That's it, Mr. Smith."),
    *(("Ein Satz.", f"A sentence {number}.") for number in range(45)),
]
DROPPED = [("Kurz", "one two three"), ("", "nothing"), ("a " * 176, "b " * 176)]


@pytest.fixture
def iwslt(tmp_path):
    files = {}
    for side, index in (("de", 0), ("en", 1)):
        texts = [pair[index] for pair in [KEPT[0], *DROPPED, *KEPT[1:]]]
        lines = [
            *ABOUT,
            f"<title>{texts[0]} </title>",
            *texts[1:3],
            *ABOUT,
            f"<description>{texts[3]}</description>",
            *texts[4:],
        ]
        files[f"de-en/train.tags.de-en.{side}"] = "".join(f"{line}\n" for line in lines)
        for number, name in enumerate(("TED.dev2010", "TED.tst2010", "TED.tst2011", "TED.tst2012", "TEDX.dev2012")):
            segments = f'<seg id="1"> It\u2019s {name} {side}. </seg>\n<seg id="2">{number}</seg>\n'
            files[f"de-en/IWSLT14.{name}.de-en.{side}.xml"] = f'<doc docid="1">\n<title>no</title>\n{segments}</doc>\n'
    return files


def moses(text, side):
    return MosesTokenizer(side).tokenize(text, escape=False, return_str=True).lower()


def test_iwslt_is_tokenized_cleaned_and_split_as_fairseq_does(iwslt, tmp_path, out, capsys):
    folder, printed = prepare(capsys, "iwslt14", tarred(tmp_path / "de-en.tgz", iwslt), folder=out)
    clean = [{"de": moses(de, "de"), "en": moses(en, "en")} for de, en in KEPT]
    assert clean[0]["en"] == "that 's it , mr. smith ."
    assert rows(folder, "validation") == [clean[22], clean[45]]
    assert rows(folder, "train") == [row for row in clean if row not in (clean[22], clean[45])]
    test = rows(folder, "test")
    assert [row["en"] for row in test[::2]] == [
        moses(f"It's {name} en.", "en")
        for name in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
    ]
    assert [row["de"] for row in test[1::2]] == ["0", "4", "1", "2", "3"]
    assert "train                 44   160,239 ± 300\n" in printed
    assert "160k (IOT, 4.1)" in printed
    read = load_pairs(Seq2SeqDataArguments(train_file=[f"{out}/train.jsonl"], source="de", target="en"))
    assert read["train"][0] == {"source": clean[0]["de"], "target": clean[0]["en"]}


def test_wmt_joins_three_corpora_and_leaves_out_what_has_no_translation(tmp_path, out, capsys):
    archives = [
        tarred(tmp_path / f"{name}.tgz", {f"{name}.de-en.{side}": text for side, text in sides.items()})
        for name, sides in {
            "training/europarl-v7": {"de": "eins\n\n", "en": "one\ntwo\n"},
            "commoncrawl": {"de": "drei\n", "en": "three\n"},
            "training/news-commentary-v9": {"de": "vier\n", "en": "four\n"},
        }.items()
        if not (tmp_path / name).parent.mkdir(exist_ok=True)
    ]
    marked = '<srcset>\n<seg id="1">{} &amp; Co</seg>\n</srcset>\n'
    files = {"dev/newstest2013.de": "fünf\n", "dev/newstest2013.en": "five\n", "dev/newstest2013-src.en.sgm": "other"}
    files |= {"newstest2014-deen-ref.de.sgm": marked.format("A"), "newstest2014-deen-src.en.sgm": marked.format("B")}
    folder, printed = prepare(capsys, "wmt14", *archives, tarred(tmp_path / "dev.tgz", files), folder=out)
    assert rows(folder, "train") == [
        {"de": a, "en": b} for a, b in (("eins", "one"), ("drei", "three"), ("vier", "four"))
    ]
    assert rows(folder, "validation") == [{"de": "fünf", "en": "five"}]
    assert rows(folder, "test") == [{"de": "A & Co", "en": "B & Co"}]
    assert "1 train pairs have an empty side and are left out" in printed


GIGAWORD = {
    "org_data": ["train.src.txt", "train.tgt.txt", "dev.src.txt", "dev.tgt.txt", "test.src.txt", "test.tgt.txt"],
    "sumdata": [
        *("train/train.article.txt", "train/train.title.txt", "train/valid.article.filter.txt"),
        *("train/valid.title.filter.txt", "Giga/input.txt", "Giga/task1_ref0.txt"),
    ],
}


@pytest.mark.parametrize("root", GIGAWORD)
def test_gigaword_is_read_in_both_forms(root, tmp_path, out, capsys):
    files = {f"{root}/{name}": f"{number} #\nmore {number}\n" for number, name in enumerate(GIGAWORD[root])}
    if root == "sumdata":
        # its larger files are compressed inside of the archive
        files = {f"{name}.gz": gzip.compress(text.encode()) for name, text in files.items()}
    folder, _ = prepare(capsys, "gigaword", tarred(tmp_path / "org_data.tgz", files), folder=out)
    for number, split in enumerate(("train", "validation", "test")):
        first = {"article": f"{2 * number} #", "headline": f"{2 * number + 1} #"}
        assert rows(folder, split)[0] == first
        assert len(rows(folder, split)) == 2


def code_files(split, kind):
    name = {"validation": "dev"}.get(split, split)
    if kind == "original":
        return {f"{name}/code.original": f"{split} ( )\n", f"{name}/javadoc.original": f"do {split}\n"}
    if kind == "token":
        return {f"{name}.token.code": f"7\t{split} ( )\n", f"{name}.token.nl": f"7\tdo {split}\n"}
    return {f"{name}.json": json.dumps({"id": 7, "code": f"{split} ( )", "nl": f"do {split}"}) + "\n"}


@pytest.mark.parametrize("kind", ["original", "token", "json"])
def test_code_is_read_in_three_forms(kind, tmp_path, out, capsys):
    files = {}
    for split in ("train", "validation", "test"):
        files |= {f"java/{name}": text for name, text in code_files(split, kind).items()}
    folder, _ = prepare(capsys, "code-java", zipped(tmp_path / "java.zip", files), folder=out)
    for split in ("train", "validation", "test"):
        assert rows(folder, split) == [{"description": f"do {split}", "code": f"{split} ( )"}]


def cut(path):
    path.write_bytes(path.read_bytes()[:-30])
    return path


def long_tar(tmp_path):
    return tarred(tmp_path / "de-en.tgz", {"train.tags.de-en.de": "".join(map(str, range(9999)))})


BAD = {
    "cut zip": (
        lambda place: ["enwik8", cut(zipped(place / "enwik8.zip", {"enwik8": "abc" * 99}))],
        "is not a zip file",
    ),
    "cut tar": (lambda place: ["iwslt14", cut(long_tar(place))], "de-en.tgz cannot be read: "),
    "no tar": (
        lambda place: ["iwslt14", written(place, {"de-en.tgz": "<html>"}) / "de-en.tgz"],
        "de-en.tgz cannot be read: ",
    ),
    "member": (lambda place: ["text8", zipped(place / "text8.zip", {"enwik8": "a"})], "there is no text8 in "),
    "sides": (
        lambda place: ["gigaword", written(place, {"train.src.txt": "a\nb\n", "train.tgt.txt": "a\n"})],
        "the sides of Gigaword, train have 2 and 1 lines; give what belongs together",
    ),
    "twice": (
        lambda place: ["text8", written(place, {"a/text8": "a", "b/text8": "b"})],
        "hold a/text8 and b/text8, of which",
    ),
    "bytes": (
        lambda place: ["wikitext-103", zipped(place / "w.zip", {"wiki.train.tokens": b"\xff"})],
        "w.zip cannot be read: 'utf-8'",
    ),
    "gone": (lambda place: ["text8", place / "gone.zip"], "there is no file or folder "),
    "row": (
        lambda place: ["code-java", written(place, {"train.json": '{"code": "a"}\n'})],
        "is no row with the columns 'code' and one of",
    ),
    "article": (
        lambda place: ["wikipedia-books", written(place, {"wiki_00": "<doc>\n", "a.txt": "a"})],
        "wiki_00 has '<doc>', which is no article with a text; call WikiExtractor with --json",
    ),
    "books": (
        lambda place: ["wikipedia-books", written(place, {"wiki_00": "{}"})],
        "there are no books (files .txt) in ",
    ),
    "name": (
        lambda place: ["enwik9", place],
        "corpus 'enwik9' is unknown, did you mean 'enwik8'?; choose from enwik8, text8,",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_sources_are_told_in_one_sentence_and_leave_nothing(case, tmp_path, out, refusal):
    make, sentence = BAD[case]
    (tmp_path / "given").mkdir()
    said = refusal("data", *make(tmp_path / "given"), "--output_dir", out)
    assert sentence in said
    assert said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["given"]


def test_nothing_of_an_archive_is_written_under_its_own_name(tmp_path, out, capsys):
    archive = tmp_path / "bad.tar"
    tarred(tmp_path / "bad.tar", {"../text8": "a" * 100, "/elsewhere/other": "b"})
    with tarfile.open(archive, "a") as file:
        link = tarfile.TarInfo("more/text8")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        file.addfile(link)
    folder, _ = prepare(capsys, "text8", archive, folder=out)
    assert {path.name for path in tmp_path.iterdir()} == {"bad.tar", "out"}
    assert {path.name for path in folder.iterdir()} == {"train.txt", "validation.txt", "test.txt"}
    assert (folder / "train.txt").read_text() == "a" * 90


def test_the_documentation_lists_every_corpus():
    page = (Path(__file__).resolve().parents[3] / "docs" / "how_to" / "data.md").read_text("utf-8")
    for name, corpus in PUBLISHED.items():
        [row] = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        exact = [f"{size.number:,}" for size in corpus.sizes.values() if size.number % 100_000]
        assert all(number in row for number in exact)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_recipe_that_reads_a_corpus_takes_its_flags(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    check_command(["sublayers", *shlex.split(PUBLISHED[name].used), "--train_file", "train"], monkeypatch)


def test_the_command_that_is_printed_names_the_files(tmp_path, out, capsys):
    _, printed = prepare(capsys, "text8", zipped(tmp_path / "text8.zip", {"text8": "a" * 100}), folder=out)
    files = [str(Path(out, f"{split}.txt")) for split in ("train", "validation")]
    assert printed.splitlines()[-1] == (
        f"sublayers pretrain sandwich_text8 --train_file {files[0]} --validation_file {files[1]}"
    )
