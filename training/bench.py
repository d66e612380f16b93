"""`sublayers bench`: speed and memory beside other implementations of the same sizes, in one process."""

import argparse
import json
from pathlib import Path

import torch
from rich.console import Console

from sublayers.configuration.sublayer_order import compact, interleaved, sandwich
from sublayers.training.bench_lm import compare_language_models
from sublayers.training.cli import positive
from sublayers.training.measure import machine, measure, report

SIZES = {
    "layers": (8, "self-attention sublayers, and as many feed-forward ones"),
    "hidden_size": (512, "width; feed-forward sublayers are four times as wide"),
    "heads": (8, "attention heads"),
    "vocab_size": (50257, "tokens in the vocabulary"),
    "batch_size": (1, "sequences in train step, forward and prefill"),
    "length": (256, "tokens of these sequences"),
    "prompt_length": (32, "tokens before decoding"),
    "new_tokens": (64, "tokens that are decoded"),
    "repeats": (7, "rounds, after one to warm up"),
}
FAMILIES = {"lm": compare_language_models}


def main(argv: list[str] | None = None) -> None:
    """Run `sublayers bench`: print one table and, if wanted, write all numbers to a JSON file.

    Raises:
        FileExistsError: the JSON file exists.
        ValueError: an order that cannot be read, or heads that do not divide the width.
    """
    parser = argparse.ArgumentParser(prog="sublayers bench", description=__doc__)
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--orders", nargs="+", help="default: interleaved and half sandwiched")
    for name, (default, purpose) in SIZES.items():
        flags = dict.fromkeys((f"--{name.replace('_', '-')}", f"--{name}"))
        parser.add_argument(*flags, type=positive, default=default, help=f"{purpose} (default: {default})")
    parser.add_argument("--decode-batch-sizes", "--decode_batch_sizes", type=positive, nargs="+", default=[1, 8])
    parser.add_argument("--device", type=torch.device, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=positive, help="default: torch's choice")
    parser.add_argument("--no-onednn", action="store_true", help="run our linear maps in torch's default library")
    parser.add_argument("--json", type=Path, help="a new file for all numbers, single measurements too")
    args = parser.parse_args(argv)
    if args.json and args.json.exists():
        raise FileExistsError(f"{args.json} exists; choose another file")
    if args.threads:
        torch.set_num_threads(args.threads)
    orders = args.orders or [interleaved(args.layers), sandwich(args.layers, args.layers // 2)]
    args.orders = [compact(order) for order in orders]
    if args.no_onednn:
        torch.backends.mkldnn.set_flags(False)
    comparison = FAMILIES[args.family](args)
    results = measure(comparison, args.repeats, args.device)
    Console().print(report(results, comparison.totals))
    settings = {name: value for name, value in vars(args).items() if name not in ("json", "threads")}
    settings["device"] = str(args.device)
    for facts in (settings, on := machine(args.device)):
        print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(comparison.remark)
    if args.json:
        everything = {"machine": on, "settings": settings, "totals": comparison.totals, "tasks": results}
        with args.json.open("x", encoding="utf-8") as file:
            json.dump(everything, file, indent=2)
