"""`sublayers data`: make a corpus of the papers, as it is distributed, into the files that recipes read."""

import shlex
from dataclasses import MISSING, dataclass
from pathlib import Path

from sublayers.training.data.archives import Sources
from sublayers.training.data.published import PUBLISHED
from sublayers.training.flags import flag, nearest, parse_flags
from sublayers.training.folders import refuse_to_overwrite, whole_folder

USAGE = "sublayers data NAME SOURCE [SOURCE ...] --output_dir DIR [--any_size]"


@dataclass
class DataArguments:
    """Flags of `sublayers data`."""

    name: str = flag(f"the corpus: {', '.join(PUBLISHED)}", MISSING, positional=True, metavar="NAME")
    sources: list[Path] = flag(
        "archives, files or folders as they are distributed: "
        + "; ".join(f"for {name} {corpus.given}" for name, corpus in PUBLISHED.items()),
        MISSING,
        positional=True,
        metavar="SOURCE",
    )
    output_dir: str = flag("new folder for the files", MISSING)
    any_size: bool = flag("take a corpus whose size is not that of the papers", False)


def main(argv: list[str]) -> None:
    """Write the splits of a corpus into a folder, and tell how large they are and which recipe reads them.

    Raises:
        FileExistsError: the output folder is not empty.
        FileNotFoundError: there is no such source.
        ValueError: an unknown corpus, or sources that lack a file, cannot be read or have another size.
    """
    [args] = parse_flags(argv, [DataArguments], USAGE, description=__doc__)
    if args.name not in PUBLISHED:
        known = ", ".join(PUBLISHED)
        raise ValueError(f"corpus {args.name!r} is unknown{nearest(args.name, PUBLISHED)}; choose from {known}")
    refuse_to_overwrite(args.output_dir)
    corpus, folder = PUBLISHED[args.name], Path(args.output_dir)
    with whole_folder(folder) as place:
        found = corpus.prepare(Sources(args.sources), place)
        if not args.any_size:
            corpus.check(found)
        files = {split: folder / next(place.glob(f"{split}.*")).name for split in found}
    print(f"{'split':<12}{corpus.unit:>12}   expected")
    for split, size in found.items():
        print(f"{split:<12}{size:>12,}   {corpus.sizes.get(split, 'any number')}")
    print(f"the papers: {corpus.printed}")
    command, *flags = shlex.split(corpus.used)
    # language models have no flag for test data
    named = {split: file for split, file in files.items() if command == "seq2seq" or split != "test"}
    words = [command, *flags, *(word for split, file in named.items() for word in (f"--{split}_file", str(file)))]
    print(f"sublayers {shlex.join(words)}")
