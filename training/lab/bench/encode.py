"""What `sublayers bench encode` measures: a sentence encoder or reranker on texts, as it is, optimized, in graphs."""

from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from sublayers import optimize
from sublayers.families import head_of
from sublayers.hub.loading import load
from sublayers.training.flags import flag, number as count
from sublayers.training.lab.bench.encode_others import Encode, OtherRuntimes, others_of, parts_of
from sublayers.training.lab.bench.flags import BenchFlags, size
from sublayers.training.metrics.timing import Call, Comparison, Task
from sublayers.training.serve.export import read_lines

THEIRS, OURS, UNPACKED = "sentence-transformers", "sublayers.optimize", "without prepacking"
REMARK = (
    "Times are of all texts of a file, with so many at once, tokenizer included. Ratios are to the model as "
    "sentence-transformers runs it, which sorts texts by their length. All run inside of sentence-transformers. Below "
    "'without prepacking', each takes away one thing more."
)
GRAPHS = [f"{runtime}{kind}" for runtime in ("onnx", "openvino", "auto") for kind in ("", " int8")]
ORDERS = "that of the model"
PAIRED = "files with a text in each line; for a reranker, the first line is the query that is asked of all others"


@dataclass(kw_only=True)
class Flags(BenchFlags, OtherRuntimes):
    """Flags of `sublayers bench encode`."""

    model: str = flag("folder or repository of a SentenceTransformer or CrossEncoder", MISSING, positional=True)
    texts: list[Path] = flag(PAIRED, MISSING)
    number: int = count("texts of each file", 64)
    batch_sizes: list[int] = count("texts at once", [1, 32])
    graphs: list[str] = flag("runtimes beside torch, see `sublayers.optimize`", [], nargs="*", choices=GRAPHS)
    parts: bool = flag("take one thing after the other away from what optimize does, to see what each gains", False)
    repeats: int = size("repeats", 5)


def default_orders(args: Flags) -> list[str]:
    """Name no order: the model has its own."""
    return []


def comparison(args: Flags) -> Comparison:
    """Compare the runtimes on each file and for each number of texts at once.

    Raises:
        FileNotFoundError, ValueError: a file or model that cannot be read, or that `optimize` refuses.
    """
    model, is_reranker = open_model(args.model, args.device)
    texts = {file.stem: read(file, args.number, is_reranker) for file in args.texts}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    others = others_of(args, model, is_reranker, next(iter(texts.values())))
    parts = parts_of(model) if args.parts else {}
    names = [THEIRS, OURS, UNPACKED, *parts, *args.graphs, *others]
    totals = {"parameters": dict.fromkeys(names, parameters)}
    tasks = measured(args, model, is_reranker, texts, parts, others)
    return Comparison(tasks, {name: [THEIRS] for name in names}, totals, REMARK)


def open_model(source: str, device: Any) -> tuple[Any, bool]:
    """Open what sentence-transformers opens, and say whether it scores pairs of texts."""
    from sentence_transformers import CrossEncoder, SentenceTransformer

    architectures = load(AutoConfig, source).architectures or [""]
    is_reranker = head_of(architectures[0]) in ("ForSequenceClassification", "ForCausalLM")
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


def measured(
    args: Flags,
    model: Any,
    is_reranker: bool,
    texts: dict[str, list[Any]],
    parts: dict[str, Any],
    others: dict[str, Encode],
) -> Iterator[Task]:
    """Give the tasks."""
    encoders = encoders_of(args, model, is_reranker, parts, texts) | others
    for name, inputs in texts.items():
        for rows in args.batch_sizes:
            calls: dict[str, Call] = {key: partial(encode, inputs, rows) for key, encode in encoders.items()}
            title = f"{len(inputs)} of {name}, {rows} at once"
            yield Task(title, "texts", calls, dict.fromkeys(calls, len(inputs)))


def encoders_of(
    args: Flags, model: Any, is_reranker: bool, parts: dict[str, Any], texts: dict[str, list[Any]]
) -> dict[str, Encode]:
    """Make what encodes texts in each runtime, and with each of the `parts_of` what is optimized."""

    def by_torch(held: Any) -> Encode:
        if is_reranker:
            return lambda pairs, size: held.predict(pairs, batch_size=size, show_progress_bar=False)
        # one text at once is one call, as somebody who asks makes it
        return lambda inputs, size: (
            [held.encode(text) for text in inputs] if size == 1 else held.encode(inputs, batch_size=size)
        )

    held = {THEIRS: model, OURS: optimize(model), UNPACKED: optimize(model, prepack=False)} | parts
    known = [text for inputs in texts.values() for text in inputs]
    for graph in args.graphs:
        runtime: Any
        runtime, _, kind = graph.partition(" ")
        # auto measures with texts of these lengths, and 8 bits are compared on them
        verify = known if kind or runtime == "auto" else False
        held[graph] = optimize(model, runtime=runtime, int8=bool(kind), verify=verify)
    return {name: by_torch(each) for name, each in held.items()}
