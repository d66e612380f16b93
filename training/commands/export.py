"""`sublayers export`: a model's folder as one that works for somebody without this package."""

import argparse
from pathlib import Path


def main(argv: list[str] | None = None) -> None:
    """Run `export` for the command line."""
    parser = argparse.ArgumentParser(prog="sublayers export", description=__doc__)
    parser.add_argument("source", type=Path, help="a model's folder, such as the output_dir of a training command")
    parser.add_argument("destination", type=Path, help="a new folder")
    arguments = parser.parse_args(argv)
    # takes seconds, which --help need not
    from sublayers.training.trainers.export import export

    export(arguments.source, arguments.destination)
    print(f"{arguments.destination} loads with trust_remote_code=True where this package is not installed")
