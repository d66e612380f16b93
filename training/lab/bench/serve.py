"""What `sublayers bench serve` measures: classifiers in the runtimes that serve them, beside those served today."""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import psutil
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm
from transformers import AutoModelForSequenceClassification, BertConfig, PreTrainedModel

# the Auto classes know our models from here on, in every process
import sublayers  # noqa: F401
from sublayers.convert.graphs.program import RUNTIMES, draw_inputs, run_model, runtime as module_of, trace
from sublayers.extras import require
from sublayers.modeling.graph_sessions import Batch, Run
from sublayers.training.flags import flag, number
from sublayers.training.folders import refuse_to_overwrite
from sublayers.training.interrupts import kept_from_children
from sublayers.training.lab.bench.bert import BERT, DISTILBERT, berts, default_orders as default_orders, make_batch
from sublayers.training.lab.bench.contenders import OURS
from sublayers.training.lab.bench.flags import ModelFlags, size
from sublayers.training.metrics.pictures import save
from sublayers.training.metrics.timing import ratio, time_in_turn
from sublayers.training.results import Row, provenance, write
from sublayers.training.trainers.machine import machine

MINILM, TORCH, COMPILED, INT8 = "MiniLM", "torch", "torch.compile", " int8"
PEERS = (BERT, DISTILBERT, MINILM)
# fewer calls say nothing about the slowest twentieth
FEWEST = 20
CAPTION = (
    "p50 / p95 of all calls in ms; in brackets the median ratio to BERT in the same runtime and round. Weights are "
    "random. DistilBERT and MiniLM have half of BERT's layers, MiniLM half of its width, too. Memory is what loading "
    "and running a model on the first shape adds to a process of its own."
)

ORDERS = "BERT's, PAR BERT's and three with attention first"
USUAL = [TORCH, *(form + kind for form in RUNTIMES for kind in ("", INT8))]


@dataclass(kw_only=True)
class Flags(ModelFlags):
    """Flags of `sublayers bench serve`, which chooses devices and threads by itself, in processes of their own."""

    layers: int = number("layers of BERT; DistilBERT and MiniLM have half, the latter half of the width, too", 12)
    hidden_size: int = size("hidden_size", 768)
    heads: int = size("heads", 12)
    vocab_size: int = size("vocab_size", 30522)
    repeats: int = number("calls of each model", 200)
    seconds: int = number("for a runtime and shape; where calls are slow there are fewer, but at least 20", 300)
    shapes: list[str] = flag("rows x tokens", ["1x16", "1x128", "1x512", "32x128", "mixed"])
    runtimes: list[str] = flag("torch.compile is slow", USUAL, choices=[COMPILED, *USUAL])
    thread_counts: list[int] = number("one after the other", [1, 2])
    output_dir: Path | None = flag("a new folder for results.csv and a picture")
    device: torch.device = field(default=torch.device("cpu"), init=False)
    dtype: str = field(default="float32", init=False)
    peer: str = field(default="bert", init=False)


def run(args: Flags, command: list[str], memory: dict[str, str]) -> None:
    """Measure, print a table and, in a new folder if one is named, write `results.csv` and `serve.svg`.

    Args:
        args: the flags.
        command: the words of the command line after `sublayers`.
        memory: what is told of it.

    Raises:
        FileExistsError: the folder holds files.
        ModuleNotFoundError: a runtime is not installed.
    """
    if args.output_dir:
        refuse_to_overwrite(args.output_dir)
    for form in _forms(args):
        require(form)
    results = compare(args)
    Console().print(table(results))
    names = {"onnx": "onnxruntime", "openvino": "openvino"}
    others = {names[form]: version(names[form]) for form in _forms(args)} | memory
    print(", ".join(f"{name} {value}" for name, value in (machine(args.device) | others).items()))
    if args.output_dir:
        args.output_dir.mkdir(parents=True, exist_ok=True)
        write(
            rows_of(results, args.orders),
            args.output_dir / "results.csv",
            provenance(command, (), f"{args.device}", others),
        )
        draw(results, args.output_dir / "serve.svg")


def rows_of(results: pd.DataFrame, orders: list[str]) -> list[Row]:
    """Make a row for each model of what `compare` found, with a time for each runtime, shape and number of threads."""
    rows = {
        name: {"model": name, "order": name if name in orders else "", "parameters": ""}
        for name in results["model"].unique()
    }
    for found in results.itertuples():
        row, of = rows[found.model], f"{found.runtime} {found.shape} threads {found.threads}"
        row |= {f"{of} (ms)": f"{found.p50_ms:.1f}", f"{of} (ms) ratio to {BERT}": f"{found.of_BERT:.2f}"}
        row |= {f"95th percentile of {of} (ms)": f"{found.p95_ms:.1f}"}
        row[f"{found.runtime} memory (MiB)"] = f"{found.memory_MiB:.0f}"
    return [*rows.values()]


def compare(args: Flags) -> pd.DataFrame:
    """Measure every runtime, number of threads and shape: a row for each model.

    A row has the 50th and 95th percentile of all calls in ms, the median ratios within a round to BERT in the same
    runtime and in torch, and the memory in MiB that a process of its own needs for the model.
    """
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as place:
        names = _write(args, Path(place))
        # BERT in torch, from which a user starts, runs beside the models of every runtime
        inputs: dict[Any, list[str]] = {**names, (TORCH, BERT): names[BERT]}
        batches = {shape: _batch(shape, args) for shape in args.shapes}
        for runtime in args.runtimes:
            memory = {
                name: _memory(runtime, Path(place, name), _select(next(iter(batches.values())), taken))
                for name, taken in tqdm(names.items(), f"memory, {runtime}", unit="model")
            }
            for threads in args.thread_counts:
                torch.set_num_threads(threads)
                loaded: dict[Any, Run] = {name: _load(runtime, Path(place, name), threads) for name in names}
                loaded[TORCH, BERT] = _load(TORCH, Path(place, BERT), threads)
                for shape, batch in batches.items():
                    calls: dict[Any, Any] = {k: partial(call, _select(batch, inputs[k])) for k, call in loaded.items()}
                    title = f"{runtime}, {shape}, {threads} threads"
                    samples = time_in_turn(title, calls, args.repeats, args.device, args.seconds, FEWEST)
                    for name in names:
                        p50, p95 = np.percentile(samples[name], (50, 95))
                        row = {"runtime": runtime, "shape": shape, "threads": threads, "model": name}
                        row |= {"p50_ms": p50, "p95_ms": p95, "of_BERT": ratio(samples[name], samples[BERT])}
                        row["of_BERT_in_torch"] = ratio(samples[name], samples[TORCH, BERT])
                        rows.append(row | {"memory_MiB": memory[name]})
    return pd.DataFrame(rows)


def _models(args: Flags) -> dict[str, PreTrainedModel]:
    models: dict[str, Any] = berts(args, AutoModelForSequenceClassification)
    half = {"num_hidden_layers": max(1, args.layers // 2), "hidden_size": args.hidden_size // 2}
    sizes = models[BERT].config.to_dict() | half | {"intermediate_size": 2 * args.hidden_size}
    models[MINILM] = AutoModelForSequenceClassification.from_config(BertConfig(**sizes))
    ours = [name for name in models if name not in PEERS]
    return {name.removeprefix(f"{OURS} "): models[name].eval() for name in (*PEERS, *ours)}


def _write(args: Flags, folder: Path) -> dict[str, list[str]]:
    """Write every model for every runtime into folders, and return the names of its inputs."""
    forms, names = _forms(args), {}
    for name, model in tqdm([*_models(args).items()], "writing", unit="model"):
        model.save_pretrained(folder / name / TORCH)
        names[name] = [*draw_inputs(model, 1, 1)]
        program = trace(model) if forms else None
        for form in forms:
            module = module_of(form)
            full, small = (folder / name / runtime for runtime in (form, f"{form}{INT8}"))
            full.mkdir()
            module.write(program, full / module.FILE)
            if f"{form}{INT8}" in args.runtimes:
                small.mkdir()
                module.quantize(full / module.FILE, small / module.FILE)
    return names


def _forms(args: Flags) -> list[str]:
    return sorted({runtime.removesuffix(INT8) for runtime in args.runtimes} & RUNTIMES.keys())


def _load(runtime: str, folder: Path, threads: int | None) -> Run:
    if runtime in (TORCH, COMPILED):
        model = AutoModelForSequenceClassification.from_pretrained(folder / TORCH).eval()
        if runtime == COMPILED:
            model.compile(dynamic=True)
        return lambda batch: run_model(model, {name: torch.from_numpy(array) for name, array in batch.items()})
    module = module_of(runtime.removesuffix(INT8))
    return module.load(folder / runtime / module.FILE, threads)


def _batch(shape: str, args: Flags) -> Batch:
    batch = make_batch(shape, args)
    batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
    return {name: tensor.numpy() for name, tensor in batch.items()}


def _select(batch: Batch, names: list[str]) -> Batch:
    return {name: batch[name] for name in names}


def _memory(runtime: str, folder: Path, batch: Batch) -> float:
    """Find what loading and running a model adds to a process of its own, in MiB."""
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:
        with kept_from_children():
            grown = alone.submit(_grow, runtime, folder, batch)
        return grown.result() / 2**20


def _grow(runtime: str, folder: Path, batch: Batch) -> int:
    form = runtime.removesuffix(INT8)
    if form in RUNTIMES:
        module_of(form)
    before = psutil.Process().memory_info().rss
    # the name `loaded` keeps the model alive until its memory is measured
    loaded = _load(runtime, folder, None)
    loaded(batch)
    return psutil.Process().memory_info().rss - before


def table(results: pd.DataFrame) -> Table:
    """Lay out what `compare` found: a row for each runtime, shape and number of threads, a column for each model."""
    drawn = Table(caption=CAPTION, caption_justify="left")
    for title in ("runtime", "shape", "threads", *results["model"].unique()):
        drawn.add_column(title, justify="left" if title in results else "right")
    for keys, group in results.groupby(["runtime", "shape", "threads"], sort=False):
        cells = [f"{row.p50_ms:,.1f} / {row.p95_ms:,.1f} ({row.of_BERT:.2f})" for row in group.itertuples()]
        drawn.add_row(*map(str, keys), *cells)
    drawn.add_section()
    for runtime, group in results.drop_duplicates(["runtime", "model"]).groupby("runtime", sort=False):
        drawn.add_row(str(runtime), "memory, MiB", "", *(f"{value:,.0f}" for value in group["memory_MiB"]))
    return drawn


def draw(results: pd.DataFrame, file: Path) -> None:
    """Draw the times as shares of BERT's in torch: a panel for each shape, a group of bars for each runtime."""
    shown = results[results["threads"] == results["threads"].max()]
    shapes, runtimes, models = (shown[name].unique() for name in ("shape", "runtime", "model"))
    figure = Figure(figsize=(9, 2.6 * len(shapes)), layout="constrained")
    panels = figure.subplots(len(shapes), sharex=True, squeeze=False)[:, 0]
    for axes, shape in zip(panels, shapes, strict=True):
        wide = shown[shown["shape"] == shape].pivot(index="runtime", columns="model", values="of_BERT_in_torch")
        wide.loc[runtimes, models].plot.bar(ax=axes, rot=0, legend=False, width=0.85)
        axes.axhline(1, color="black", linewidth=0.5)
        axes.set(title=shape, xlabel="", ylabel="time / BERT's in torch")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    save(figure, file)
