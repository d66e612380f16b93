"""`sublayers bench`: speed and memory beside other implementations of the same sizes, in one process."""

import argparse
import importlib
import json
import re
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from sublayers.configuration.sublayer_order import compact
from sublayers.training.flags import positive
from sublayers.training.folders import refuse_to_replace
from sublayers.training.metrics.timing import measure, report, rows_of
from sublayers.training.results import provenance, write
from sublayers.training.trainers.machine import device, machine

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
# what the sizes mean that several benches have
SIZES = {
    "layers": "blocks of an attention and a feed-forward sublayer; of encoder and decoder each, where there are both",
    "hidden_size": "width; feed-forward sublayers are four times as wide, those of iot twice",
    "heads": "attention heads",
    "vocab_size": "tokens in the vocabulary",
    "batch_size": "texts that are read at once",
    "length": "tokens of these texts, or of a segment of them behind a full memory",
    "prompt_length": "tokens before decoding",
    "new_tokens": "tokens that are decoded",
    "repeats": "rounds, after one to warm up",
}


def parse(argv: list[str]) -> tuple[Any, argparse.Namespace]:
    """Find the module of a bench, and read its flags.

    A module says what it measures unless --orders says otherwise (`ORDERS` in words, `default_orders`), and has the
    defaults of shared `SIZES` and `FLAGS` of its own.

    Raises:
        ValueError: an order that cannot be read.
    """
    known = "\n".join(f"  {name:<9} {purpose}" for name, purpose in BENCHES.items())
    formatter = argparse.RawDescriptionHelpFormatter
    chooser = argparse.ArgumentParser("sublayers bench", description=f"{__doc__}\n\n{known}", formatter_class=formatter)
    chooser.add_argument("family", choices=BENCHES, help="has flags of its own, see sublayers bench FAMILY --help")
    family = chooser.parse_args(argv[:1]).family
    name = "recurrent_lm" if family == "lm" and "--memory" in argv else family
    # this import takes seconds, for which the help above does not wait
    module: Any = importlib.import_module(f"sublayers.training.lab.bench.{name}")
    shown = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(f"sublayers bench {family}", description=module.__doc__, formatter_class=shown)
    parser.add_argument("--orders", nargs="+", default=argparse.SUPPRESS, help=f"default: {module.ORDERS}")
    for size, default in module.SIZES.items():
        parser.add_argument(f"--{size}", type=positive, default=default, help=SIZES[size])
    parser.add_argument("--no_onednn", action="store_true", help="run our linear maps in torch's default library")
    if family == "serve":
        # this bench chooses devices and threads by itself, in processes of their own
        parser.set_defaults(device=torch.device("cpu"), dtype="float32", peer="bert")
    else:
        parser.add_argument("--device", type=device, default="cuda" if torch.cuda.is_available() else "cpu")
        parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
        parser.add_argument("--threads", type=positive, default=argparse.SUPPRESS, help="default: torch's choice")
        parser.add_argument("--json", type=Path, help="a new file for all numbers, with every single measurement")
        parser.add_argument("--csv", type=Path, help="a new file with a row for each model, for tables in documents")
    for flag, options in module.FLAGS.items():
        parser.add_argument(flag, **options)
    args = parser.parse_args(argv[1:], argparse.Namespace(family=family, orders=None, threads=None))
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
    if args.family == "serve":
        module.run(args, ["bench", *argv])
        return
    refuse_to_replace(args.json, args.csv)
    if args.threads:
        torch.set_num_threads(args.threads)
    comparison = module.comparison(args)
    results = measure(comparison, args.repeats, args.device)
    Console().print(report(results, comparison.totals))
    settings = {name: value for name, value in vars(args).items() if name not in ("json", "csv", "threads")}
    settings["device"] = str(args.device)
    for facts in (settings, on := machine(args.device)):
        print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(comparison.remark)
    if args.json:
        everything = {"machine": on, "settings": settings, "totals": comparison.totals, "tasks": results}
        with args.json.open("x", encoding="utf-8") as file:
            json.dump(everything, file, indent=2)
    if args.csv:
        about = provenance(["bench", *argv], device=str(args.device))
        write(rows_of(results, comparison.totals, args.orders), args.csv, about)
