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
from sublayers.training.trainers.machine import machine

# names, defaults and purposes of the sizes that belong to a family
SIZES = {
    "lm": {
        "layers": (8, "self-attention sublayers, and as many feed-forward ones"),
        "hidden_size": (512, "width; feed-forward sublayers are four times as wide"),
        "heads": (8, "attention heads"),
        "vocab_size": (50257, "tokens in the vocabulary"),
        "batch_size": (1, "sequences in train step, forward and prefill"),
        "length": (256, "tokens of these sequences"),
        "prompt_length": (32, "tokens before decoding"),
        "new_tokens": (64, "tokens that are decoded"),
        "repeats": (7, "rounds, after one to warm up"),
    },
    # of `lm --memory`: half of the paper's base model, whose adaptive softmax scores 20,000 columns
    "recurrent_lm": {
        "layers": (8, "self-attention sublayers of the interleaved order, and as many feed-forward ones"),
        "hidden_size": (512, "width; feed-forward sublayers are four times as wide"),
        "heads": (8, "attention heads"),
        "vocab_size": (10000, "tokens in the vocabulary"),
        "batch_size": (4, "texts in a train step"),
        "length": (64, "tokens of a segment that is scored, and of one in a train step"),
        "memory_length": (640, "tokens that are remembered before it, and in generation"),
        "clamp_length": (400, "largest distance in scoring and generation; larger ones count as this"),
        "train_length": (192, "tokens of a segment, and of the memory before it, in another train step"),
        "prompt_length": (640, "tokens before decoding"),
        "new_tokens": (16, "tokens that are decoded"),
        "repeats": (5, "rounds, after one to warm up"),
    },
    "spans": {
        "hidden_size": (512, "width; feed-forward sublayers are four times as wide"),
        "heads": (8, "attention heads"),
        "batch_size": (1, "texts"),
        "length": (512, "characters of a segment behind a full memory"),
        "repeats": (7, "rounds, after one to warm up"),
    },
    "supernet": {
        "layers": (8, "self-attention sublayers of the plain model, and as many feed-forward ones"),
        "hidden_size": (256, "width; feed-forward sublayers are four times as wide"),
        "heads": (4, "attention heads"),
        "vocab_size": (8192, "tokens in the vocabulary"),
        "batch_size": (8, "sequences of a step"),
        "length": (128, "tokens of these sequences"),
        "repeats": (7, "rounds, after one to warm up"),
    },
    "bert": {
        "layers": (12, "layers of BERT; DistilBERT has half of them"),
        "hidden_size": (768, "width; feed-forward sublayers are four times as wide"),
        "heads": (12, "attention heads"),
        "vocab_size": (30522, "tokens in the vocabulary"),
        "repeats": (5, "rounds, after one to warm up"),
    },
    "serve": {
        "layers": (12, "layers of BERT; DistilBERT and MiniLM have half of them, the latter half of the width, too"),
        "hidden_size": (768, "width; feed-forward sublayers are four times as wide"),
        "heads": (12, "attention heads"),
        "vocab_size": (30522, "tokens in the vocabulary"),
        "repeats": (200, "calls of each model"),
        "seconds": (300, "for a runtime and shape; where calls are slow there are fewer, but at least 20"),
    },
    "iot": {
        "layers": (6, "blocks of the encoder, and as many of the decoder"),
        "hidden_size": (512, "width; feed-forward sublayers are twice as wide"),
        "heads": (4, "attention heads"),
        "vocab_size": (10152, "tokens in the vocabulary"),
        "new_tokens": (20, "tokens that are decoded"),
        "repeats": (5, "rounds, after one to warm up"),
    },
    "seq2seq": {
        "layers": (6, "layers of the encoder, and as many of the decoder"),
        "hidden_size": (512, "width; feed-forward sublayers of the interleaved orders are four times as wide"),
        "heads": (8, "attention heads"),
        "vocab_size": (32000, "tokens in the vocabulary"),
        "new_tokens": (32, "tokens that are decoded"),
        "repeats": (5, "rounds, after one to warm up"),
    },
}
# what is measured unless --orders says otherwise
DEFAULT_ORDERS = {
    "lm": "interleaved and half sandwiched; with --memory, interleaved and PAR's",
    "bert": "BERT's, PAR BERT's and three with attention first; ModernBERT's and three of its sublayers",
    "serve": "BERT's, PAR BERT's and three with attention first",
    "iot": "encoder:decoder, block orders with commas between them, the paper's two, three and four decoder orders",
    "seq2seq": "encoder:decoder, interleaved, Macaron's, and half sandwiched on either side",
    "spans": "one attention sublayer of the sandwich character model",
    "supernet": "interleaved",
}
RUNTIMES = ("torch.compile", "torch", "onnx", "onnx int8", "openvino", "openvino int8")
BERT_TASKS = ("classification", "token classification", "question answering", "fine-tuning step", "MLM training step")


def family_module(name: str) -> Any:
    """Import the module of a family's orders and models only when needed: it takes seconds, which --help need not."""
    return importlib.import_module(f"sublayers.training.bench.{name}")


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the flags; those that all families have can be given to each.

    Raises:
        ValueError: an order or a shape that cannot be read.
    """
    parser = argparse.ArgumentParser(prog="sublayers bench", description=__doc__)
    families = parser.add_subparsers(dest="family", required=True)
    for family, what_they_are in DEFAULT_ORDERS.items():
        own = families.add_parser(family)
        own.add_argument("--orders", nargs="+", help=f"default: {what_they_are}")
        with_memory = SIZES["recurrent_lm"] if family == "lm" else {}
        for name, (default, purpose) in {**with_memory, **SIZES[family]}.items():
            flags = dict.fromkeys((f"--{name.replace('_', '-')}", f"--{name}"))
            usual = f"default: {default}"
            if name in with_memory:
                usual += f"; with --memory {with_memory[name][0]}, {with_memory[name][1]}"
            own.add_argument(*flags, type=positive, default=default, help=f"{purpose} ({usual})")
        own.add_argument("--no-onednn", action="store_true", help="run our linear maps in torch's default library")
        own.set_defaults(module=family)
        if family == "serve":
            own.set_defaults(
                device=torch.device("cpu"), dtype="float32", peer="bert", threads=None, json=None, csv=None
            )
            continue
        own.add_argument("--device", type=torch.device, default="cuda" if torch.cuda.is_available() else "cpu")
        own.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
        own.add_argument("--threads", type=positive, help="default: torch's choice")
        own.add_argument("--json", type=Path, help="a new file for all numbers, with every single measurement")
        own.add_argument("--csv", type=Path, help="a new file with a row for each model, for tables in documents")
    lm, bert, serve, iot, seq2seq, spans, _ = (families.choices[name] for name in DEFAULT_ORDERS)
    lm.add_argument(
        "--memory",
        action="store_const",
        const="recurrent_lm",
        dest="module",
        help="PAR Transformer-XL, which has memory",
    )
    spellings = ("--score-batch-sizes", "--score_batch_sizes")
    lm.add_argument(*spellings, type=positive, nargs="+", default=[1, 4], help="texts, with --memory (default: 1 4)")
    spans.add_argument("--spans", type=positive, nargs="+", default=[64, 128, 256, 512, 1024])
    lm.add_argument("--peer", choices=("gpt2", "llama", "qwen3"), default="gpt2", help="peer, whose parts ours has")
    windows = ("--attention-window", "--attention_window")
    lm.add_argument(*windows, type=positive, default=128, help="window of sublayers w in --orders (default: 128)")
    lm.add_argument("--decode-batch-sizes", "--decode_batch_sizes", type=positive, nargs="+", default=[1, 8])
    shapes = ["1x128", "1x384", "8x128", "mixed"]
    peer_help = "compare with BERT and DistilBERT, or with ModernBERT, whose parts our model then gets"
    bert.add_argument("--peer", choices=("bert", "modernbert"), default="bert", help=peer_help)
    bert.add_argument("--shapes", nargs="+", default=shapes, help=f"rows x tokens (default: {' '.join(shapes)})")
    bert.add_argument("--tasks", nargs="+", choices=BERT_TASKS, default=list(BERT_TASKS))
    shapes = ["1x16", "1x128", "1x512", "32x128", "mixed"]
    serve.add_argument("--shapes", nargs="+", default=shapes, help=f"rows x tokens (default: {' '.join(shapes)})")
    serve.add_argument(
        "--runtimes", nargs="+", choices=RUNTIMES, default=list(RUNTIMES[1:]), help="default: all but torch.compile"
    )
    counts = ("--thread-counts", "--thread_counts")
    serve.add_argument(*counts, type=positive, nargs="+", default=[1, 2], help="one after the other (default: 1 2)")
    folder = ("--output-dir", "--output_dir")
    serve.add_argument(*folder, type=Path, help="a new folder for results.csv and a picture")
    shapes = ["8x32", "mixed"]
    seq2seq.add_argument("--shapes", nargs="+", default=shapes, help=f"rows x tokens (default: {' '.join(shapes)})")
    shapes = ["64x20"]
    iot.add_argument("--shapes", nargs="+", default=shapes, help=f"rows x tokens (default: {' '.join(shapes)})")
    args = parser.parse_args(argv)
    if args.module != args.family:
        defaults = {name: default for name, (default, _) in SIZES[args.module].items()}
        lm.set_defaults(**defaults, decode_batch_sizes=[1])
        args = parser.parse_args(argv)
    # orders of a stack between commas, but for those in parentheses; stacks between colons
    args.orders = [
        ":".join(",".join(map(compact, re.split(r",(?![^(]*\))", stack))) for stack in order.split(":"))
        for order in args.orders or family_module(args.module).default_orders(args)
    ]
    return args


def main(argv: list[str]) -> None:
    """Run `sublayers bench`: print one table and, if wanted, write all numbers to a JSON and a CSV file.

    Raises:
        FileExistsError: a file exists.
        ValueError: an order or a shape that cannot be read, or heads that do not divide the width.
    """
    args = parse(argv)
    refuse_to_replace(args.json, args.csv)
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.no_onednn:
        torch.backends.mkldnn.set_flags(False)
    if args.family == "serve":
        family_module("serve").run(args, ["bench", *argv])
        return
    comparison = family_module(args.module).comparison(args)
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
