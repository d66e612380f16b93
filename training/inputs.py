"""What can be wrong with a command line, as far as that is known before torch and transformers, which take seconds."""

import argparse
from pathlib import Path

from sublayers.configuration.sublayer_order import expand
from sublayers.hub.sources import check_source
from sublayers.training.flags import HELP, expand_settings_file

# commands with a teacher; commands with settings files, and the folder of their recipes
TEACHERS = {"distill": "sublayers distill TEACHER --sublayer_order s6f6"}
TEACHERS |= {"study frontier": "sublayers study frontier TEACHER --students s6f6"}
SETTINGS = {name: name for name in ("pretrain", "seq2seq", "distill", "glue", "squad")} | {"study seq2seq": "seq2seq"}
SETTINGS |= dict.fromkeys(("study bert", "study orders", "study frontier"), "study")
# flags that name files, folders, models and orders
FILES = ("train_file", "validation_file", "test_file", "sts_file", "squad_file", "vocabulary_file")
FOLDERS = ("data_dir", "glue_dir")
MODELS = ("model_name_or_path", "tokenizer_name_or_path", "target_tokenizer_name_or_path")
ORDERS = ("sublayer_order", "encoder_sublayer_order", "decoder_sublayer_order")


def check_words(command: str, words: list[str]) -> None:
    """Check the files, folders, models and orders that a command with settings files is given; others check their own.

    Raises:
        FileNotFoundError: one of them is not there.
        ValueError: an order that cannot be read, an unknown recipe, or no teacher.
    """
    if command not in SETTINGS or HELP & {*words}:
        return
    if command in TEACHERS:
        if not words or words[0].startswith("-"):
            raise ValueError(f"there is no teacher; name its folder first, as in {TEACHERS[command]}")
        check_source(words[0])
        words = words[1:]
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in (*FILES, *FOLDERS, *MODELS, *ORDERS):
        parser.add_argument(f"--{name}", nargs="*", default=[])
    given = vars(parser.parse_known_args(expand_settings_file(words, SETTINGS[command]))[0])
    for name, value in ((name, value) for name, values in given.items() for value in values):
        if name in ORDERS:
            expand(value)
        elif name in MODELS:
            check_source(value)
        elif not Path(value).exists():
            raise FileNotFoundError(
                f"there is no {'folder' if name in FOLDERS else 'file'} {value}; give another --{name}"
            )
