"""The command `sublayers`: the table of its sub-commands, and how they report bad input."""

import atexit
import importlib
import os
import signal
import sys
from typing import Any, NoReturn

from sublayers.extras import require
from sublayers.training.flags import nearest, underscored
from sublayers.training.folders import is_of_a_file
from sublayers.training.progress import write_lines

# importing a command's module is slow (torch), so it waits until the command is chosen
COMMANDS = {
    "order": ("commands.order", "draw sublayer orders and compare their costs"),
    "list": ("commands.index", "find families, recipes, converters and results by order, family, head or task"),
    "data": ("commands.data", "make a corpus of the papers into the files that recipes read"),
    "tokenizer": ("commands.tokenizer", "train a tokenizer"),
    "pretrain": ("commands.pretrain", "train or evaluate a language model"),
    "seq2seq": ("commands.seq2seq", "train and evaluate encoder-decoders, such as for translation"),
    "distill": ("commands.distill", "teach a cheaper order what a trained encoder or classifier answers"),
    "prune": ("commands.prune", "find the sublayers that a trained model needs least, and keep the others"),
    "glue": ("commands.glue", "fine-tune and evaluate on the GLUE tasks"),
    "squad": ("commands.squad", "fine-tune and evaluate on SQuAD, both versions"),
    "recipe": ("commands.recipe", "show recipes: their sources, their settings, and what the papers report"),
    "bench": ("lab.bench.command", "measure speed and memory against peers"),
    "search random": ("lab.search.run_random", "train random orders, and find what the good ones share"),
    "search supernet": ("lab.search.run_supernet", "learn an order, within a budget, and compare it with others"),
    "search report": ("lab.search.report", "draw the tables and pictures of a search again"),
    "study bert": ("lab.studies.bert", "pre-train and fine-tune several orders, draw quality against cost"),
    "study orders": ("lab.studies.orders", "study how the order changes what encoder-decoders write"),
    "study paper": ("lab.studies.paper", "train what a table or figure of a paper compares"),
    "study frontier": ("lab.studies.frontier", "distil an encoder into several orders, draw quality against time"),
    "attention-distance": ("lab.attention_distance", "measure how differently models' attention heads look"),
    "convert": ("commands.convert", "convert checkpoints of transformers, fairseq and the authors"),
    "export": ("commands.export", "write a model's folder with code and card, or as a graph for other programs"),
    "push": ("commands.push", "publish a model on the Hugging Face Hub"),
    "results": ("commands.results", "write the tables of documents again, from files of figures"),
    "demo": ("lab.demo.command", "train a sandwich and its interleaved twin, and compare them"),
}
# these need no extra, but for the formats of `export`
BARE = ("order", "list", "convert", "export", "push", "results")
# commands that go on after an interruption, from a checkpoint or with what is not finished; others begin again
RESUMED = ("pretrain", "seq2seq", "distill", "squad")
CONTINUED = ["prune", "glue", "search random", "search supernet"]
CONTINUED += ["study bert", "study orders", "study paper", "study frontier"]
STOPPED = dict.fromkeys(COMMANDS, "it has nothing to go on from, and the same command begins again")
STOPPED |= dict.fromkeys(
    RESUMED, "checkpoints are kept, and the same command with --resume_from_checkpoint goes on from the last one"
)
STOPPED |= dict.fromkeys(CONTINUED, "what is finished is kept, and the same command goes on")


def main(argv: list[str] | None = None) -> None:
    """Run the sub-command that the first words name, with the others as its arguments.

    Raises:
        SystemExit: with status 2 and one sentence on standard error for bad input and files that cannot be read or
            written, and with status 130 where the user interrupts; other errors keep their traceback.
    """
    argv = sys.argv[1:] if argv is None else argv
    name, rest = find(argv)
    if name not in COMMANDS:
        group = {known: row for known, row in COMMANDS.items() if known.startswith(f"{name} ")}
        if name and not group:
            _exit(f"sublayers: unknown command {name!r}{nearest(name, COMMANDS)}; choose from {', '.join(COMMANDS)}")
        print(f"usage: sublayers {name or 'COMMAND'} [--help] ...\n")
        for known, (_, purpose) in (group or COMMANDS).items():
            print(f"  {known:<18} {purpose}")
        return
    try:
        _run(name, rest)
    except KeyboardInterrupt:
        # a second interruption, while this one ends, has nothing to say
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        # of several processes the first one speaks, after whatever bar is there
        if os.environ.get("RANK", "0") == "0":
            line_end = "\n" if sys.stderr.isatty() else ""
            print(f"{line_end}sublayers {name}: stopped; {STOPPED[name]}", file=sys.stderr)
        raise SystemExit(130) from None


def _run(name: str, rest: list[str]) -> None:
    try:
        atexit.register(_leave)
        run([*name.split(), *rest])
    except ModuleNotFoundError as error:
        # a failed import has a name and gets a remedy; the message of `require` has its own
        remedy = "; pip install 'sublayers[train]'" if error.name else ""
        _exit(f"sublayers {name}: {error}{remedy}")
    except Exception as error:
        if not (isinstance(error, (ValueError, OSError)) or is_of_a_file(error)):
            raise
        _exit(f"sublayers {name}: {error}")


def _leave() -> None:
    # threads of a process group that still run when the interpreter ends would abort the process
    torch: Any = sys.modules.get("torch")
    if torch and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def run(argv: list[str]) -> Any:
    """Run a sub-command for another one, and return what it returns. Raises what it and `require` raise."""
    write_lines()
    name, rest = find(argv)
    require("" if name in BARE else "train")
    return importlib.import_module(f"sublayers.training.{COMMANDS[name][0]}").main(rest)


def find(argv: list[str]) -> tuple[str, list[str]]:
    """Divide a command line into the name of the sub-command, which has one word or two, and its arguments.

    Flags are read with dashes as well as with underscores.
    """
    for words in (2, 1):
        if (name := " ".join(argv[:words])) in COMMANDS:
            return name, underscored(argv[words:])
    return ("" if argv[:1] in ([], ["-h"], ["--help"]) else argv[0]), argv[1:]


def _exit(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    raise SystemExit(2)
