"""What can be wrong with a command line, as far as that is known before torch and transformers, which take seconds."""

import argparse
import re
from importlib.util import find_spec
from pathlib import Path

from sublayers.configuration.sublayer_order import expand
from sublayers.hub.sources import check_model, check_source
from sublayers.training.flags import HELP, expand_settings_file, nearest

# commands that begin with a model, as in these examples; commands with settings files, and the folder of their recipes
EXAMPLES = {"distill": "sublayers distill TEACHER --sublayer_order s6f6"}
EXAMPLES |= {"study frontier": "sublayers study frontier TEACHER --students s6f6"}
EXAMPLES |= {"prune": "sublayers prune MODEL --budget 0.5 --output_dir FOLDER"}
SETTINGS = {name: name for name in ("pretrain", "seq2seq", "distill", "glue", "squad")} | {"study seq2seq": "seq2seq"}
SETTINGS |= dict.fromkeys(("study bert", "study orders", "study frontier"), "study")
# commands whose flags are fields of dataclasses, and what declares a flag
FLAGGED = (*SETTINGS, "prune", "tokenizer")
FIELD = re.compile(r"^    (\w+): [^\n]*[^,\n]$", re.MULTILINE)
QUOTED = re.compile(r'"--(\w+)"')
IMPORTS = re.compile(r"^from sublayers\.([\w.]+) import", re.MULTILINE)
# flags that name files, folders, models and orders
FILES = ("train_file", "validation_file", "test_file", "sts_file", "squad_file", "vocabulary_file")
FOLDERS = ("data_dir", "glue_dir")
MODEL, TOKENIZERS = "model_name_or_path", ("tokenizer_name_or_path", "target_tokenizer_name_or_path")
ORDERS = ("sublayer_order", "encoder_sublayer_order", "decoder_sublayer_order")


def check_words(command: str, module: str, words: list[str]) -> None:
    """Check the flags, files, folders, models and orders that a command is given, as far as it has such.

    Args:
        command: its name.
        module: its module in `training`.
        words: behind the name.

    Raises:
        FileNotFoundError: a file, folder or model is not there.
        ValueError: an unknown flag or recipe, an order that cannot be read, or no teacher.
    """
    if command not in FLAGGED or HELP & {*words}:
        return
    if command in EXAMPLES:
        if not words or words[0].startswith("-"):
            what = "model" if command == "prune" else "teacher"
            raise ValueError(f"there is no {what}; name its folder first, as in {EXAMPLES[command]}")
        _check_model(words[0])
        words = words[1:]
    words = expand_settings_file(words, SETTINGS[command]) if command in SETTINGS else words
    check_flags(words, module, f"commands.{SETTINGS.get(command)}")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in (*FILES, *FOLDERS, MODEL, *TOKENIZERS, *ORDERS):
        parser.add_argument(f"--{name}", nargs="*", default=[])
    given = vars(parser.parse_known_args(words)[0])
    for name, value in ((name, value) for name, values in given.items() for value in values):
        if name in ORDERS:
            expand(value)
        elif name == MODEL:
            _check_model(value)
        elif name in TOKENIZERS:
            check_source(value)
        elif not Path(value).exists():
            raise FileNotFoundError(
                f"there is no {'folder' if name in FOLDERS else 'file'} {value}; give another --{name}"
            )


def check_flags(words: list[str], *modules: str) -> None:
    """Check that a command may have its flags: that what it imports, the Trainer or a configuration declares such.

    Sources are read, not imported, so that a mistake is told at once. Which of them are the command's own is checked
    when they are parsed.

    Args:
        words: of the command line.
        modules: in `training`, of the command and of the one whose flags it takes, too; as far as they are there.

    Raises:
        ValueError: nothing declares a flag.
    """
    if (trainer := find_spec("transformers")) is None:
        # that is told later
        return
    package = Path(__file__).parents[1]
    found = {*package.glob("configuration/*.py"), *Path(str(trainer.origin)).parent.glob("training_args*.py")}
    started = ("trainers.arguments", *modules)
    waiting = [package / "training" / f"{module.replace('.', '/')}.py" for module in started]
    while waiting:
        if (file := waiting.pop()) not in found and file.exists():
            found.add(file)
            names = IMPORTS.findall(file.read_text(encoding="utf-8"))
            waiting += [package / f"{name.replace('.', '/')}.py" for name in names]
    sources = [file.read_text(encoding="utf-8") for file in found]
    known = {name for source in sources for form in (FIELD, QUOTED) for name in form.findall(source)}
    for word in words:
        if (flag := re.match(r"--(\w+)(?==|$)", word)) and flag[1].removeprefix("no_") not in known:
            raise ValueError(f"unknown option {flag[1]!r}{nearest(flag[1], sorted(known))}")


def _check_model(source: str) -> None:
    check_source(source)
    # without a name there is no model, which some commands do without
    if source and Path(source).exists():
        check_model(Path(source))
