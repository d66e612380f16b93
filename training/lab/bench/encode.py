"""What `sublayers bench encode` measures: a sentence encoder or reranker on texts, as it is, optimized, in graphs."""

import copy
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm
from transformers import AutoConfig, PreTrainedModel
from transformers.utils import ModelOutput

from sublayers import optimize
from sublayers.convert.graphs.program import draw_inputs, runtime as runtime_of
from sublayers.families import head_of
from sublayers.hub.loading import load
from sublayers.modeling.graph_sessions import Run
from sublayers.training.flags import flag, number as count
from sublayers.training.lab.bench.encode_others import Encode, OtherRuntimes, others_of, parts_of
from sublayers.training.lab.bench.flags import BenchFlags, size
from sublayers.training.metrics.timing import Call, Comparison, Task
from sublayers.training.serve.export import export_graph, read_lines

THEIRS, OURS, UNPACKED = "sentence-transformers", "sublayers.optimize", "without prepacking"
REMARK = (
    "Times are of all texts of a file, with so many at once, tokenizer included. Ratios are to the model as "
    "sentence-transformers runs it, which sorts texts by their length. Graphs were exported from the optimized model, "
    "and run inside of sentence-transformers, too. Below 'without prepacking', each takes away one thing more."
)
GRAPHS = [f"{form}{kind}" for form in ("onnx", "openvino") for kind in ("", " int8")]
ORDERS = "that of the model"
PAIRED = "files with a text in each line; for a reranker, the first line is the query that is asked of all others"


@dataclass(kw_only=True)
class Flags(BenchFlags, OtherRuntimes):
    """Flags of `sublayers bench encode`."""

    model: str = flag("folder or repository of a SentenceTransformer or CrossEncoder", MISSING, positional=True)
    texts: list[Path] = flag(PAIRED, MISSING)
    number: int = count("texts of each file", 64)
    batch_sizes: list[int] = count("texts at once", [1, 32])
    graphs: list[str] = flag("runtimes beside torch", [], nargs="*", choices=GRAPHS)
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
    """Give the tasks, while the graphs exist."""
    with TemporaryDirectory() as place:
        encoders = encoders_of(args, model, is_reranker, parts, Path(place)) | others
        for name, inputs in texts.items():
            for size in args.batch_sizes:
                calls: dict[str, Call] = {key: partial(encode, inputs, size) for key, encode in encoders.items()}
                title = f"{len(inputs)} of {name}, {size} at once"
                yield Task(title, "texts", calls, dict.fromkeys(calls, len(inputs)))


def encoders_of(args: Flags, model: Any, is_reranker: bool, parts: dict[str, Any], place: Path) -> dict[str, Encode]:
    """Make what encodes texts in each runtime, and with each of the `parts_of` what is optimized."""

    def by_torch(held: Any) -> Encode:
        if is_reranker:
            return lambda pairs, size: held.predict(pairs, batch_size=size, show_progress_bar=False)
        # one text at once is one call, as somebody who asks makes it
        return lambda inputs, size: (
            [held.encode(text) for text in inputs] if size == 1 else held.encode(inputs, batch_size=size)
        )

    ours = optimize(model)
    encoders = {THEIRS: by_torch(model), OURS: by_torch(ours), UNPACKED: by_torch(optimize(model, prepack=False))}
    encoders |= {name: by_torch(part) for name, part in parts.items()}
    if args.graphs:
        ours.save_pretrained(str(place / "ours"))
    for graph in tqdm(args.graphs, "writing graphs", leave=False):
        form, _, kind = graph.partition(" ")
        report = export_graph(place / "ours", place / graph, form, bool(kind))
        run = runtime_of(form).load(place / graph / report["file"], torch.get_num_threads())
        # the copy has the graph in the model's place
        encoders[graph] = by_torch(copy.deepcopy(ours, {id(ours[0].model): Graph(run, ours[0].model)}))
    return encoders


class Graph(nn.Module):
    """Stands for a model inside of what sentence-transformers opens: inputs (batch, length) go to its graph."""

    def __init__(self, run: Run, model: PreTrainedModel):
        super().__init__()
        self.run, self.config = run, model.config
        self.names, self.dtype, self.device = [*draw_inputs(model, 1, 1)], model.dtype, model.device

    def forward(self, input_ids, attention_mask, token_type_ids=None, **kwargs) -> ModelOutput:
        """Run the graph; a segment that is not given is the first."""
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        outputs = self.run({name: given[name].numpy() for name in self.names})
        return ModelOutput({name: torch.from_numpy(output) for name, output in outputs.items()})

    # what `optimize` lets sentence-transformers call
    forward_first_token = forward_last_token = forward
