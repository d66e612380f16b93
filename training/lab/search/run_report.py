"""`sublayers search report`: draw the tables and pictures of a search again, as far as it has come."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sublayers.training.log import read_log

if TYPE_CHECKING:
    import pandas as pd


def main(argv: list[str]) -> "pd.DataFrame":
    """Write tables and pictures into the folder of a search from its log, and print what they say.

    Returns:
        A row for each run, see `report`.

    Raises:
        FileNotFoundError: there is no search in the folder.
    """
    parser = argparse.ArgumentParser(prog="sublayers search report", description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="the --output_dir of a search")
    log = read_log(parser.parse_args(argv).folder)
    # this import takes seconds, for which --help does not wait
    from sublayers.training.lab.search.report import report

    return report(log)
