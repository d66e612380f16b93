"""`sublayers bench`: speed and memory beside other implementations of the same sizes, in one process."""

import importlib
import json
import re
from typing import Any

import torch
from rich.console import Console

from sublayers.configuration.order import compact
from sublayers.training.flags import HELP, parse_flags
from sublayers.training.folders import refuse_to_replace
from sublayers.training.metrics.timing import keep_memory, measure, report, rows_of
from sublayers.training.results import provenance, write
from sublayers.training.trainers.machine import machine

BENCHES = {
    "lm": "language models beside GPT-2, Llama or Qwen3, and models with memory",
    "bert": "encoders beside BERT, DistilBERT or ModernBERT",
    "encode": "a sentence encoder or reranker of yours, as it is and optimized",
    "serve": "encoders in torch, ONNX Runtime and OpenVINO",
    "iot": "encoder-decoders that choose an order for each sentence",
    "seq2seq": "encoder-decoders beside BART and Marian",
    "spans": "attention that learns how far back it looks",
    "supernet": "a step of a super-network beside one of the plain model",
}


def parse(argv: list[str]) -> tuple[Any, Any]:
    """Find the module of a bench, and read its flags.

    A module has `Flags`, and says what it measures unless --orders says otherwise (`ORDERS` in words,
    `default_orders`).

    Raises:
        ValueError: an unknown bench or flag, or an order that cannot be read.
    """
    known = "\n".join(f"  {name:<9} {purpose}" for name, purpose in BENCHES.items())
    family = argv[0] if argv else ""
    if family in HELP:
        usage = "usage: sublayers bench FAMILY [--name value ...], see sublayers bench FAMILY --help"
        print(usage, __doc__, known, sep="\n\n")
        raise SystemExit(0)
    if family not in BENCHES:
        raise ValueError(f"there is no bench {family!r}; choose from {', '.join(BENCHES)}")
    name = "recurrent_lm" if family == "lm" and "--memory" in argv else family
    # this import takes seconds, for which the help above does not wait
    module: Any = importlib.import_module(f"sublayers.training.lab.bench.{name}")
    about = f"{module.__doc__} Without --orders: {module.ORDERS}."
    [args] = parse_flags(argv[1:], [module.Flags], f"sublayers bench {family} [--name value ...]", description=about)
    # commas outside of parentheses separate the orders of a stack, colons the stacks
    args.orders = [
        ":".join(",".join(map(compact, re.split(r",(?![^(]*\))", stack))) for stack in order.split(":"))
        for order in args.orders or module.default_orders(args)
    ]
    return module, args


def main(argv: list[str]) -> None:
    """Run `sublayers bench`: print one table and, if wanted, write all numbers to a JSON and a CSV file.

    Raises:
        FileExistsError: a file exists.
        ValueError: an order or a shape that cannot be read, or heads that do not divide the width.
    """
    module, args = parse(argv)
    if args.no_onednn:
        torch.backends.mkldnn.set_flags(False)
    memory = {"memory": "kept" if not args.release_memory and keep_memory() else "as the allocator has it"}
    if argv[0] == "serve":
        module.run(args, ["bench", *argv], memory)
        return
    refuse_to_replace(args.json, args.csv)
    if args.threads:
        torch.set_num_threads(args.threads)
    comparison = module.comparison(args)
    results = measure(comparison, args.repeats, args.device)
    Console().print(report(results, comparison.totals, args.processor_time))
    settings = {name: value for name, value in vars(args).items() if name not in ("json", "csv", "threads")}
    settings |= {"family": argv[0], "device": str(args.device)}
    for facts in (settings, on := machine(args.device) | memory):
        print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(comparison.remark)
    if args.json:
        everything = {"machine": on, "settings": settings, "totals": comparison.totals, "tasks": results}
        with args.json.open("x", encoding="utf-8") as file:
            json.dump(everything, file, indent=2)
    if args.csv:
        about = provenance(["bench", *argv], device=str(args.device), others=memory)
        write(rows_of(results, comparison.totals, args.orders), args.csv, about)
