"""`sublayers demo`: train small models of each kind on the standard library, compare and try them."""

import argparse
import os
from datetime import datetime
from pathlib import Path

from rich.console import Console

from sublayers.training.flags import positive
from sublayers.training.folders import refuse_to_overwrite

STEPS = 250
# on two cores of a server, with one thread or two
MINUTES = 2


def main(argv: list[str]) -> None:
    """Show language models and a BERT.

    Raises:
        FileExistsError: the output folder holds files.
    """
    parser = argparse.ArgumentParser(prog="sublayers demo", description=__doc__)
    steps_help = "steps of each language model; the BERT has half, then three times as many"
    parser.add_argument("--max_steps", type=positive, default=STEPS, help=steps_help)
    parser.add_argument("--output_dir", type=Path, help="default: a new folder in runs")
    args = parser.parse_args(argv)
    folder = args.output_dir or Path(f"runs/demo-{datetime.now():%Y%m%d-%H%M%S}")
    refuse_to_overwrite(folder)
    console = Console()
    # these imports take seconds, for which --help does not wait
    from sublayers.training.lab.demo.threads import use_free_processors

    threads = use_free_processors()
    how_long = "" if args.max_steps != STEPS else f", for about {MINUTES} minutes"
    chosen = "as OMP_NUM_THREADS says" if "OMP_NUM_THREADS" in os.environ else "as processors are free now"
    console.print(f"Training two language models and a BERT{how_long}; {threads} threads, {chosen}")
    from sublayers.training.data.corpus import STANDARD_LIBRARY
    from sublayers.training.lab.demo import bert, lm
    from sublayers.training.results import provenance, write

    rows = lm.show_language_models(folder, args.max_steps, console)
    rows += bert.show_bert(folder / "bert", max(1, args.max_steps // 2), console)
    # the seed is the Trainer's default, which no flag changes here
    about = provenance(["demo", *argv], [STANDARD_LIBRARY]) | {"seeds": "42"}
    write(rows, folder / "results.csv", about)
    console.print(f"\nModels, loss curves and figures are in {folder}")
