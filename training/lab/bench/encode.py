"""What `sublayers bench encode` measures: a sentence encoder or reranker on texts, as it is, optimized, in graphs."""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from transformers import AutoConfig

from sublayers import optimize
from sublayers.hub.loading import load
from sublayers.training.flags import positive
from sublayers.training.metrics.timing import Call, Comparison, Task
from sublayers.training.serve.encoders import EMBEDDING, SCORES
from sublayers.training.serve.export import RUNTIMES, export_graph, read_lines
from sublayers.training.serve.program import Batch, Run, draw_inputs

THEIRS, OURS, UNPACKED = "sentence-transformers", "sublayers.optimize", "without prepacking"
REMARK = (
    "Times are of all texts of a file, with so many at once, tokenizer included. Ratios are to the model as "
    "sentence-transformers runs it, which sorts texts by their length, as graphs do here. Graphs were exported from "
    "the optimized model, and compute padding."
)
GRAPHS = [f"{form}{kind}" for form in ("onnx", "openvino") for kind in ("", " int8")]
SIZES = {"repeats": 5}
ORDERS = "that of the model"
PAIRED = "files with a text in each line; for a reranker, the first line is the query that is asked of all others"
FLAGS: dict[str, dict[str, Any]] = {
    "model": {"help": "folder or repository of a SentenceTransformer or CrossEncoder"},
    "--texts": {"type": Path, "nargs": "+", "required": True, "help": PAIRED},
    "--number": {"type": positive, "default": 64, "help": "texts of each file"},
    "--batch_sizes": {"type": positive, "nargs": "+", "default": [1, 32], "help": "texts at once"},
    "--graphs": {"nargs": "*", "choices": GRAPHS, "default": [], "help": "runtimes beside torch"},
}
# inputs, and how many are read at once
Encode = Callable[[list[Any], int], Any]


def default_orders(args: argparse.Namespace) -> list[str]:
    """Name no order: the model has its own."""
    return []


def comparison(args: argparse.Namespace) -> Comparison:
    """Compare the runtimes on each file and for each number of texts at once.

    Raises:
        FileNotFoundError, ValueError: a file or model that cannot be read, or that `optimize` refuses.
    """
    model, is_reranker = open_model(args.model, args.device)
    texts = {file.stem: read(file, args.number, is_reranker) for file in args.texts}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    names = [THEIRS, OURS, UNPACKED, *args.graphs]
    totals = {"parameters": dict.fromkeys(names, parameters)}
    tasks = measured(args, model, is_reranker, texts)
    return Comparison(tasks, {name: [THEIRS] for name in names}, totals, REMARK)


def open_model(source: str, device: Any) -> tuple[Any, bool]:
    """Open what sentence-transformers opens, and say whether it scores pairs of texts."""
    from sentence_transformers import CrossEncoder, SentenceTransformer

    architectures = load(AutoConfig, source).architectures or [""]
    is_reranker = architectures[0].endswith(("ForSequenceClassification", "ForCausalLM"))
    return (CrossEncoder if is_reranker else SentenceTransformer)(source, device=str(device)), is_reranker


def read(file: Path, number: int, is_reranker: bool) -> list[Any]:
    """Read the texts of a file or, for a reranker, pairs of its first line and another.

    Raises:
        ValueError: there are too few, or what `read_lines` refuses.
    """
    lines = read_lines(file)
    inputs: list[Any] = [(lines[0], line) for line in lines[1:]] if is_reranker else lines
    if not inputs:
        raise ValueError(f"{file} has too few texts; write one in each line, and a query first for a reranker")
    return inputs[:number]


def measured(args: argparse.Namespace, model: Any, is_reranker: bool, texts: dict[str, list[Any]]) -> Iterator[Task]:
    """Give the tasks, while the graphs exist."""
    with TemporaryDirectory() as place:
        encoders = encoders_of(args, model, is_reranker, Path(place))
        for name, inputs in texts.items():
            for size in args.batch_sizes:
                calls: dict[str, Call] = {key: partial(encode, inputs, size) for key, encode in encoders.items()}
                yield Task(f"{name}, {size} at once", "texts", calls, dict.fromkeys(calls, len(inputs)))


def encoders_of(args: argparse.Namespace, model: Any, is_reranker: bool, place: Path) -> dict[str, Encode]:
    """Make what encodes texts in each runtime."""

    def by_torch(held: Any) -> Encode:
        if is_reranker:
            return lambda pairs, size: held.predict(pairs, batch_size=size, show_progress_bar=False)
        # one text at once is one call, as somebody who asks makes it
        return lambda inputs, size: (
            [held.encode(text) for text in inputs] if size == 1 else held.encode(inputs, batch_size=size)
        )

    ours = optimize(model)
    encoders = {THEIRS: by_torch(model), OURS: by_torch(ours), UNPACKED: by_torch(optimize(model, prepack=False))}
    if args.graphs:
        ours.save_pretrained(str(place / "ours"))
    for graph in args.graphs:
        form, _, kind = graph.partition(" ")
        runtime: Any = import_module(f"sublayers.training.serve.{RUNTIMES[form]}")
        export_graph(place / "ours", place / graph, form, bool(kind))
        run = runtime.load(place / graph / runtime.FILE, args.threads)
        encoders[graph] = by_graph(run, ours, SCORES if is_reranker else EMBEDDING)
    return encoders


def by_graph(run: Run, held: Any, output: str) -> Encode:
    """Encode by a graph as sentence-transformers does: batches of texts of about the same length."""
    names = [*draw_inputs(held[0].model, 1, 1)]
    longest = held.max_seq_length or held.tokenizer.model_max_length
    options = {"padding": True, "truncation": True, "max_length": longest, "return_token_type_ids": True}

    def encode(inputs: list[Any], size: int) -> np.ndarray:
        order = sorted(range(len(inputs)), key=lambda i: -len("".join(inputs[i])))
        found = []
        for start in range(0, len(order), size):
            batch = [inputs[i] for i in order[start : start + size]]
            tokens = held.tokenizer(batch, **options, return_tensors="np")
            given: Batch = {name: tokens[name].astype(np.int64) for name in names}
            found.append(run(given)[output])
        return np.concatenate(found)[np.argsort(order)]

    return encode
