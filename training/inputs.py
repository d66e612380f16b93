"""Checks of a command line that come before torch and transformers are imported, which takes seconds."""

import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from sublayers.configuration.alphabet import ALPHABET
from sublayers.configuration.order import Order
from sublayers.hub.sources import check_model, check_source
from sublayers.training.flags import HELP, expand_settings_file, nearest, words_by_flag

# commands whose first word is a model, with an example of each
EXAMPLES = {"distill": "sublayers distill TEACHER --sublayer_order s6f6"}
EXAMPLES |= {"study frontier": "sublayers study frontier TEACHER --students s6f6"}
EXAMPLES |= {"prune": "sublayers prune MODEL --budget 0.5 --output_dir FOLDER"}
# commands with settings files, and the folder of their recipes
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
    """Check the flags, files, folders, models and orders of a command line.

    Args:
        command: its name.
        module: its module in `training`.
        words: after the name.

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
    given = words_by_flag(words)
    check_flags(given, module, f"commands.{SETTINGS.get(command)}")
    for name, value in ((name, value) for name, values in given.items() for value in values):
        if name in ORDERS:
            Order(value)
        elif name == MODEL:
            _check_model(value)
        elif name in TOKENIZERS:
            check_source(value)
        elif name in (*FILES, *FOLDERS) and not Path(value).exists():
            kind = "folder" if name in FOLDERS else "file"
            raise FileNotFoundError(f"there is no {kind} {value}; give another --{name}")


def check_flags(names: Iterable[str], *modules: str) -> None:
    """Check that the sources of a command, of the Trainer or of a configuration declare each flag.

    Sources are read, since importing them takes seconds. The parser checks later whether the command has the flag.

    Args:
        names: of the flags.
        modules: in `training`, of the command and of the one whose flags it takes, too; as far as they are there.

    Raises:
        ValueError: no source declares a flag.
    """
    if (trainer := find_spec("transformers")) is None:
        # `require` says so
        return
    package = Path(__file__).parents[1]
    found = {*package.glob("configuration/*.py"), *Path(str(trainer.origin)).parent.glob("training_args*.py")}
    started = ("trainers.arguments", *modules)
    waiting = [package / "training" / f"{module.replace('.', '/')}.py" for module in started]
    while waiting:
        if (file := waiting.pop()) not in found and file.exists():
            found.add(file)
            imported = IMPORTS.findall(file.read_text(encoding="utf-8"))
            waiting += [package / f"{name.replace('.', '/')}.py" for name in imported]
    sources = [file.read_text(encoding="utf-8") for file in found]
    known = {name for source in sources for form in (FIELD, QUOTED) for name in form.findall(source)}
    known |= {name for kind in ALPHABET.values() for name in kind.fields}
    for name in names:
        if name.removeprefix("no_") not in known:
            raise ValueError(f"unknown option {name!r}{nearest(name, sorted(known))}")


def _check_model(source: str) -> None:
    check_source(source)
    # without a name there is no model, which some commands do without
    if source and Path(source).exists():
        check_model(Path(source))
