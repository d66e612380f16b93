"""What all searches for an order can be asked for, known before the models, which take seconds to import."""

import argparse
from pathlib import Path

from sublayers.training.flags import positive


def add_flags(parser: argparse.ArgumentParser, output_dir: str) -> None:
    """Add the flags that all searches have."""
    parser.add_argument("training", choices=("pretrain", "seq2seq"), help="the command that trains an order")
    parser.add_argument(
        "--output_dir",
        type=Path,
        default=Path(output_dir),
        help=f"default {output_dir}; what is finished in it is not run again",
    )
    parser.add_argument("--stack", choices=("encoder", "decoder"), default="decoder", help="of an encoder-decoder")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="each order is trained with each seed")
    parser.add_argument("--jobs", type=positive, default=1, help="trainings at a time")
    parser.add_argument("--length", type=positive, default=128, help="tokens of a sequence whose cost is counted")
    parser.epilog = (
        "All other flags are those of the training, after an optional recipe or settings file of it. The order that "
        "they give says which sublayers there are, and how many. Give a tokenizer; otherwise each run trains one."
    )
