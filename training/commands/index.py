"""`sublayers list`: find families, recipes, converters, checkpoints, results and parts of papers by order or task."""

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.table import Column, Table

import sublayers
from sublayers.training.flags import RECIPES, flag, parse_flags, read_settings, recipes
from sublayers.training.results import Row, measured, read

Kind = Literal["family", "recipe", "converter", "model", "checkpoint", "result", "paper"]
# columns of files of figures
ORDER_COLUMNS = ("order", "encoder order", "decoder order", "decoder orders")


class Entry(NamedTuple):
    """One thing that there is.

    Attributes:
        kind: a `Kind`.
        name: a model type, a recipe after its command, a model type of transformers, a published model, a trained model
            of ours, a result, a part of a paper.
        family: the model type, if it is known: files of results have orders only.
        orders: of its stacks.
        heads: the Auto classes that load it.
        tasks: the pipelines that run it.
        command: makes a part of a paper.
        outcome: of a run of ours.
        source: where others have published an order, or where our trained model lies.
    """

    kind: str
    name: str
    family: str
    orders: list[str] = []
    heads: list[str] = []
    tasks: list[str] = []
    command: str = ""
    outcome: str = ""
    source: str = ""


@dataclass
class ListArguments:
    """Flags of `sublayers list`."""

    order: str | None = flag(
        "pattern of orders, such as 's*f*', in their short or expanded form", None, positional=True
    )
    kind: Kind | None = flag("what is listed; default: all")
    family: str | None = flag("a model type, such as par_bert, or a part of it")
    head: str | None = flag("an Auto class, such as AutoModelForMaskedLM, or a part of it")
    task: str | None = flag("of a pipeline, such as text-classification")
    checkpoints: bool = flag("trained models in the repository, with their scores; short for --kind checkpoint", False)
    json: bool = flag("print a list of objects", False)


def main(argv: list[str]) -> None:
    """Print what fits as tables, or as JSON.

    Raises:
        ValueError: nothing fits.
    """
    [args] = parse_flags(argv, [ListArguments], "sublayers list [ORDER] [--name value ...]", description=__doc__)
    if args.checkpoints:
        args.kind = "checkpoint"
    found = [entry for entry in entries() if fits(entry, args)]
    if not found:
        given = [
            f"{name} {value!r}" for name, value in vars(args).items() if value and name not in ("json", "checkpoints")
        ]
        raise ValueError(f"nothing has {' and '.join(given)}; ask for less, any family runs any order")
    if args.json:
        print(json.dumps([entry._asdict() for entry in found], indent=2))
    else:
        Console().print(*tables(found), sep="\n")


def entries() -> Iterator[Entry]:
    """Collect what there is, from the tables by which it works."""
    # this import takes seconds, for which --help does not wait
    from transformers.pipelines import SUPPORTED_TASKS

    from sublayers.auto_models import AUTO_CLASSES
    from sublayers.convert.published import PUBLISHED
    from sublayers.convert.sources import CHECKPOINTS, FAMILIES
    from sublayers.hub.model_card import named_orders
    from sublayers.tasks.table import PIPELINES

    known: dict[str, Any] = SUPPORTED_TASKS
    of_texts = {task: row for task, row in known.items() if row["type"] == "text"}
    tasks = [(task, auto_class) for task, row in of_texts.items() for auto_class in row["pt"]]
    tasks += [(task, auto_class) for task, (_, auto_class) in PIPELINES.items()]

    def entry(kind: str, name: str, config: Any, heads: Collection[Any]) -> Entry:
        orders = [str(order) for _, order in named_orders(config)]
        names = [head.__name__ for head in heads]
        return Entry(kind, name, config.model_type, orders, names, sorted({t for t, head in tasks if head in heads}))

    for config_class, heads in AUTO_CLASSES.items():
        yield entry("family", config_class.model_type, config_class(), heads)
    for command in sorted(folder.name for folder in RECIPES.iterdir()):
        for name in recipes(command):
            # the recipes of other commands train several models, or the user's
            model = model_of(name, command) if command in ("pretrain", "search", "seq2seq") else None
            yield entry("recipe", f"{command} {name}", *model) if model else Entry("recipe", f"{command} {name}", "")
    for source, family in {**FAMILIES, **CHECKPOINTS}.items():
        yield Entry("converter", source, family)
    for name, published in PUBLISHED.items():
        yield Entry("model", name, published.family, [published.order], source=published.source)
    results = Path(sublayers.__file__).with_name("results")
    for file in sorted(results.glob("papers/*.csv")):
        for row in read(file):
            outcome = row["outcome"] or row["measured"]
            yield Entry("paper", f"{file.stem}: {row['part']}", "", command=row["command"], outcome=outcome)
    figures = {file.stem: read(file) for file in sorted(results.glob("*.csv"))}
    for rows in figures.values():
        trained = [row for row in rows if row.get("source")]
        scores = [name for name in measured(trained) if name not in ("model", "family", "source", *ORDER_COLUMNS)]
        for row in trained:
            outcome = ", ".join(f"{name} {row[name]}" for name in scores if row[name])
            named = row["model"], row["family"], orders_in(row)
            yield Entry("checkpoint", *named, outcome=outcome, source=row["source"])
    for name, rows in figures.items():
        for row in rows:
            if not row.get("source") and (orders := orders_in(row)):
                yield Entry("result", f"{name}: {row['model']}", "", orders)


def orders_in(row: Row) -> list[str]:
    """Find the orders that a row of a file of figures names."""
    return [*filter(None, re.split("[:, ]", " ".join(row.get(name, "") for name in ORDER_COLUMNS)))]


def model_of(recipe: str, command: str) -> tuple[Any, list[Any]]:
    """Find the configuration and the Auto class of the model that a recipe trains."""
    import transformers

    from sublayers.auto_configurations import CONFIGURATION_CLASSES
    from sublayers.training.commands.pretrain import OBJECTIVES

    settings = read_settings(recipe, command)
    config_class = CONFIGURATION_CLASSES[settings["model_type"]]
    known = {field.name for field in fields(config_class)}
    # an empty list stands for none, as on the command line
    config = config_class(**{name: None if value == [] else value for name, value in settings.items() if name in known})
    head = "AutoModelForSeq2SeqLM" if command == "seq2seq" else OBJECTIVES[settings.get("objective", "clm")].auto_class
    return config, [getattr(transformers, head)]


def fits(entry: Entry, args: ListArguments) -> bool:
    """Say whether an entry fits the flags."""
    from sublayers.configuration.order import expand

    spelled = [*entry.orders, *map(expand, entry.orders)]
    return (
        args.kind in (None, entry.kind)
        and (args.order is None or any(fnmatchcase(order, args.order) for order in spelled))
        and (args.family or "") in entry.family
        and (args.head is None or any(args.head in head for head in entry.heads))
        and args.task in (None, *entry.tasks)
    )


def tables(found: list[Entry]) -> Iterator[Table]:
    """Draw entries: a table for each kind, a row for each, and only columns that say something."""
    for kind, group in groupby(found, lambda entry: entry.kind):
        rows = [*group]
        says = {"name": True, "family": any(entry.family not in ("", entry.name) for entry in rows)}
        says |= {
            name: any(cell(entry, name) for entry in rows)
            for name in ("orders", "heads", "command", "outcome", "source")
        }
        columns = [name for name in says if says[name]]
        heads = [Column("name", no_wrap=True), *(Column(name, overflow="fold") for name in columns[1:])]
        drawn = Table(*heads, title=kind, title_justify="left")
        for entry in rows:
            drawn.add_row(*(cell(entry, name) for name in columns))
        yield drawn


def cell(entry: Entry, name: str) -> str:
    """Write what an entry has by a name, heads without what Auto classes have in common."""
    value = getattr(entry, name)
    return value if isinstance(value, str) else ", ".join(part.replace("AutoModelFor", "") for part in value)
