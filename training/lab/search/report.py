"""`sublayers search report`: draw the tables and pictures of a search from its log, as far as it has come."""

import argparse
import math
from itertools import accumulate, combinations
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from sublayers.configuration.sublayer_cost import READS
from sublayers.configuration.sublayer_order import expand
from sublayers.training.lab.search.draw import unit, units
from sublayers.training.log import Log, read_log
from sublayers.training.metrics.pictures import (
    draw_bottom_halves,
    draw_costs,
    draw_mixtures,
    draw_orders,
    draw_probabilities,
)
from sublayers.training.results import PROVENANCE, Row, measured, score, table, write

# the event of a log that says how its figures are made
BEGUN = "begun"
# the heads of costs by the positions that are read, and their units
COSTS = {"flops": ("GFLOP of reading {}", 1e9), "milliseconds": ("reading {} (ms)", 1), "cache": ("cache (MiB)", 2**20)}


def main(argv: list[str]) -> pd.DataFrame:
    """Write tables and pictures into the folder of a search from its log, and print what they say.

    Returns:
        A row for each run, see `report`.

    Raises:
        FileNotFoundError: there is no search in the folder.
    """
    parser = argparse.ArgumentParser(prog="sublayers search report", description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="the --output_dir of a search")
    return report(read_log(parser.parse_args(argv).folder))


def halves(order: str) -> tuple[str, str]:
    """Cut an order at half of its parameters (Sandwich, section 3): the sublayers near the input, and the others.

    A sublayer belongs where its middle lies, to the first half if that is the cut.
    """
    letters = expand(order)
    ends = accumulate(map(unit, letters))
    middles = (end - unit(letter) / 2 for end, letter in zip(ends, letters, strict=True))
    cut = sum(middle <= units(order) / 2 for middle in middles)
    return letters[:cut], letters[cut:]


def rows_of(log: Log) -> pd.DataFrame:
    """Make a table with a row for each run: order, names, seeds, parameters, halves, costs, loss and perplexity."""
    drawn: dict[str, list[dict[str, Any]]] = {}
    for event in log.events("order"):
        drawn.setdefault(event["order"], []).append(event)
    costs = log.events("costs")[-1]["costs"] if log.events("costs") else {}
    searched = log.events("search")[0]["letters"]
    rows = []
    for event in log.events("run"):
        order, metrics = event["order"], event["metrics"]
        names = ", ".join(origin["name"] for origin in drawn[order])
        row = {"order": order, "names": names, "draw_seed": drawn[order][0]["draw_seed"], "seed": event["seed"]}
        row["parameters"] = event["parameters"]
        for half, letters in zip(("bottom", "top"), halves(order), strict=True):
            row |= {f"{half}_{letter}": letters.count(letter) for letter in searched}
        for kind, numbers in costs.get(order, {}).items():
            row |= {f"{kind}_{read}": number for read, number in numbers.items()}
        # more than 709 would overflow
        row |= {"loss": metrics["eval_loss"], "perplexity": math.exp(min(metrics["eval_loss"], 709))}
        rows.append(row | metrics)
    return pd.DataFrame(rows)


def report(log: Log) -> pd.DataFrame:
    """Write tables and pictures of all runs and super-networks of a log into its folder, and print what they say.

    `results.csv` has a row for each order. `orders.svg` has the orders from the best to the worst,
    `bottom_half.svg` the loss against the self-attentions in the bottom half, `cost.svg` the loss against what counts
    as cost; `supernet-SEED.svg` and `mixtures.svg` have what super-networks learned.

    Returns:
        The rows.
    """
    folder, console = log.file.parent, Console()
    letters = log.events("search")[0]["letters"]
    mixtures = []
    for event in sorted(log.events("supernet"), key=itemgetter("seed")):
        title, curve = f"seed {event['seed']}: {event['order']}", event["curve"]
        draw_probabilities(curve, letters, title, folder / f"supernet-{event['seed']}.svg")
        mixtures.append((title, curve[-1]["probabilities"]))
    if mixtures:
        draw_mixtures(mixtures, letters, folder / "mixtures.svg")
    rows = rows_of(log)
    if len(rows):
        runs = rows.groupby("order", sort=False)
        orders = runs.first().assign(loss=runs["loss"].mean()).sort_values("loss")
        figures = _figures(orders, rows)
        *_, begun = {}, *log.events(BEGUN)
        write(figures, folder / "results.csv", {name: begun[name] for name in PROVENANCE if name in begun})
        _draw(orders, log)
        # a terminal has no room for all columns
        shown = [name for name in measured(figures) if not name.startswith(("perplexity", "cache", "bottom", "top"))]
        shown_table = table(figures, {name: name for name in ("order", *shown, "seeds")})
        console.print("\n".join([shown_table, *_remarks(orders, rows)]), soft_wrap=True, markup=False, highlight=False)
    console.print(f"tables and pictures are in {folder}", soft_wrap=True)
    return rows


def _figures(orders: pd.DataFrame, rows: pd.DataFrame) -> list[Row]:
    found = []
    for order, first in orders.iterrows():
        runs = rows[rows["order"] == order]
        row = {"model": first["names"], "order": str(order), "parameters": f"{first['parameters']}"}
        row |= score("loss (nats)", [*runs["loss"]], 4) | score("perplexity", [*runs["perplexity"]], 2)
        row |= {
            head.format(read): f"{first[f'{kind}_{read}'] / unit:.4g}"
            for kind, (head, unit) in COSTS.items()
            for read in READS
            if f"{kind}_{read}" in first
        }
        halves = [str(name) for name in orders if str(name).startswith(("bottom_", "top_"))]
        row |= {name.replace("_", " half "): f"{first[name]}" for name in halves}
        found.append(row | {"seeds": ", ".join(f"{seed}" for seed in sorted(runs["seed"]))})
    return found


def _draw(orders: pd.DataFrame, log: Log) -> None:
    folder = log.file.parent
    titles = [(f"{row.loss:.4f}  {row.names}", str(order)) for order, row in orders.iterrows()]
    draw_orders(titles, folder / "orders.svg")
    if "bottom_s" in orders:
        draw_bottom_halves([*zip(orders["bottom_s"], orders["loss"], strict=True)], folder / "bottom_half.svg")
    cost, read = (log.events("search")[0].get(name, usual) for name, usual in (("cost", "flops"), ("read", "all")))
    column = next((name for name in (f"{cost}_{read}", f"{cost}_all", cost) if name in orders), "parameters")
    points = [*zip(orders["names"], orders[column], orders["loss"], strict=True)]
    draw_costs(points, column.replace("_", ", positions read: "), folder / "cost.svg")


def _remarks(orders: pd.DataFrame, rows: pd.DataFrame) -> list[str]:
    remarks = []
    half = len(orders) // 2
    columns = [name for name in orders if str(name).startswith(("bottom_", "top_")) and orders[name].any()]
    if half and columns:
        for name, part in (("better", orders[:half]), ("worse", orders[-half:])):
            means = ", ".join(f"{column.replace('_', ' ')} {part[column].mean():.1f}" for column in columns)
            remarks.append(f"sublayers in the halves of the parameters, mean of the {name} {half} orders: {means}")
    if "bottom_s" in orders and orders["bottom_s"].nunique() > 1 and len(orders) > 2:
        rank = orders["bottom_s"].corr(orders["loss"], method="spearman")
        remarks.append(f"rank correlation of the loss with the self-attentions in the bottom half: {rank:.2f}")
    by_seed = rows.pivot_table(index="order", columns="seed", values="loss").dropna()
    if len(by_seed) > 2 and by_seed.shape[1] > 1:
        pairs = [by_seed[a].corr(by_seed[b], method="spearman") for a, b in combinations(by_seed, 2)]
        mean = sum(pairs) / len(pairs)
        remarks.append(f"rank correlation of {len(by_seed)} orders between two seeds, mean of all pairs: {mean:.2f}")
    return remarks
