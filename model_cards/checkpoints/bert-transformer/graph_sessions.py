"""Graphs that stand for a model where only its outputs are read: what opens them, and what sends batches to them."""

import os
import platform
import re
import shutil
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from math import log
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from huggingface_hub import constants, snapshot_download
from transformers.utils import ModelOutput, logging

Batch: TypeAlias = dict[str, np.ndarray]
Run: TypeAlias = Callable[[Batch], Batch]

logger = logging.get_logger(__name__)
# rows run together whose lengths differ by less than this share, since each run has its cost
LEAST_PADDING = 0.2
# the route to the model itself
TORCH = "torch"
# keywords that ask for nothing when they are so
PLAIN: dict[str, Any] = {"return_dict": True, "use_cache": False}


class Graphs:
    """Graphs of one method of a model, and which of them runs a batch of so and so much text.

    Args:
        folder: where their files are.
        architecture: name of the model's class.
        method: the method that they stand for.
        inputs: names of the tensors that they read.
        files: of the graphs in the folder, by name, each with those beside it; names begin with the runtime.
        routes: rows, tokens in a row and the name of what is fastest there, a graph or `TORCH`; a batch goes where the
            nearest of them goes.
        machine: where that was measured, or None for a runtime that was chosen by hand.

    They run for a model in evaluation, in 32 bits on a CPU, without gradients, as long as its weights are as they were;
    in all other cases, and if something else is asked for than outputs, the model itself runs.
    """

    def __init__(
        self,
        folder: str | Path,
        architecture: str,
        method: str,
        inputs: Sequence[str],
        files: dict[str, list[str]],
        routes: Sequence[tuple[int, int, str]],
        machine: str | None = None,
    ) -> None:
        self.folder, self.architecture, self.method, self.inputs = str(folder), architecture, method, [*inputs]
        self.files, self.routes, self.machine = files, [*routes], machine
        # of the weights when the graphs were written: a parameter, the number of them and of changes to them
        self.weights: tuple[Any, int, int] | None = None
        self.runs: dict[str, Run] = {}

    def __deepcopy__(self, memo: Any) -> "Graphs":
        copied = Graphs(self.folder, **self.description())
        copied.weights, copied.runs = self.weights, self.runs
        return copied

    def __reduce__(self) -> Any:
        # a process of its own opens sessions of its own
        return partial(Graphs, **self.description()), (self.folder,)

    def description(self) -> dict[str, Any]:
        """Say all but the folder, as a model's configuration has it."""
        names = ("architecture", "method", "inputs", "files", "routes", "machine")
        return {name: vars(self)[name] for name in names}

    def open(self) -> None:
        """Open the graphs that have a route, and run each once, so that the first call is as fast as the second."""
        for name in {name for *_, name in self.routes} - {TORCH} - self.runs.keys():
            self.runs[name] = self.session(name)
            self.runs[name]({each: np.ones((1, 2), dtype=np.int64) for each in self.inputs})

    def session(self, name: str) -> Run:
        """Open a graph."""
        return OPENERS[name.split()[0]](Path(self.folder, self.files[name][0]), torch.get_num_threads())

    def route(self, rows: int, tokens: float) -> str:
        """Name what is fastest for this number of rows, and tokens in a row."""
        return min(self.routes, key=lambda at: log(rows / at[0]) ** 2 + log(max(1, tokens) / at[1]) ** 2)[2]

    def run(self, model: Any, method: str, given: dict[str, Any]) -> ModelOutput | None:
        """Give a method's outputs for its keywords; None: the model has to run itself."""
        ids, mask = given.get("input_ids"), given.get("attention_mask")
        if method != self.method or ids is None or ids.ndim != 2 or ids.device.type != "cpu":
            return None
        if model.training or torch.is_grad_enabled() or torch.compiler.is_compiling() or not model.config.return_dict:
            return None
        others = {name: value for name, value in given.items() if name not in self.inputs and value is not None}
        if any(value is not PLAIN.get(name, False) for name, value in others.items()):
            return None
        if model.is_recorded(**given) or model.config.output_router_logits or not self.is_current(model):
            return None
        tokens = float(mask.sum()) / len(ids) if mask is not None else ids.shape[1]
        if (name := self.route(len(ids), tokens)) == TORCH:
            return None
        self.open()
        batch = {each: given.get(each) for each in self.inputs}
        missing = {"attention_mask": torch.ones_like, "token_type_ids": torch.zeros_like}
        outputs = self.runs[name](
            {each: (missing[each](ids) if rows is None else rows).numpy() for each, rows in batch.items()}
        )
        return ModelOutput({each: torch.from_numpy(output) for each, output in outputs.items()})

    def is_current(self, model: Any) -> bool:
        """Say whether the model's weights are those of the graphs."""
        parameters = _parameters(model)
        if (parameters[0].dtype, parameters[0].device.type) != (torch.float32, "cpu"):
            return False
        changes = sum(parameter._version for parameter in parameters)
        if self.weights is None:
            self.weights = weakref.ref(parameters[0]), len(parameters), changes
        parameter, number, before = self.weights
        # those of a copy have not changed since they were made
        return (len(parameters), changes) == (number, before if parameter() is parameters[0] else 0)

    def copy(self, folder: Path) -> None:
        """Write the files into another folder."""
        for file in chain(*self.files.values()):
            copied, found = folder / file, Path(self.folder, file)
            copied.parent.mkdir(parents=True, exist_ok=True)
            if not copied.exists() or not copied.samefile(found):
                shutil.copyfile(found, copied)


def read_graphs(model: Any, folder: str | Path, revision: str | None = None) -> Graphs | None:
    """Open the graphs that a model's configuration names in its folder or repository, if they are of its class.

    A choice that was measured on another machine is not one for this, and a runtime may be missing: the model runs
    itself then, and a sentence says so.

    Raises:
        ValueError: the graphs are not in the folder.
    """
    files = [*chain(*model.config.graphs["files"].values())]
    if any(Path(file).is_absolute() or ".." in Path(file).parts for file in files):
        raise ValueError(f"{folder} names graphs outside of it: {', '.join(files)}; put copies into it, and name those")
    if not Path(folder).is_dir():
        folder = snapshot_download(str(folder), revision=revision, allow_patterns=files)
    graphs = Graphs(folder, **model.config.graphs)
    if graphs.architecture != type(model).__name__:
        return None
    remedy = "so torch runs the model; call sublayers.optimize on it with a runtime"
    if graphs.machine not in (None, machine()):
        logger.warning(f"the runtimes of {folder} were chosen on {graphs.machine}, not here, {remedy}")
        return None
    try:
        graphs.open()
    except ImportError as error:
        logger.warning(f"{folder} has graphs that cannot be opened here ({error}), {remedy}")
        return None
    graphs.is_current(model)
    return graphs


def machine() -> str:
    """Name the processor of this machine and the number of its cores."""
    found = processor()
    described = " ".join(found[name] for name in ("model name", "cpu family", "model") if name in found)
    return f"{described or platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def processor() -> dict[str, str]:
    """Say what Linux tells of a core of this machine, by name; other systems tell nothing."""
    file = Path("/proc/cpuinfo")
    told = file.read_text(encoding="utf-8") if file.exists() else ""
    return dict(re.findall(r"^(.+?)\s*: (.*)$", told, re.MULTILINE))


def cache_folder() -> Path:
    """Name the folder for what is made once for this machine, beside transformers' own."""
    return Path(constants.HF_HOME) / "sublayers"


def open_onnx(file: Path, threads: int | None = None) -> Run:
    """Read a graph of ONNX Runtime as a function from inputs to outputs, both by name."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # 0 is all cores
    options.intra_op_num_threads = threads or 0
    # threads that wait for the next call would take the cores from whatever runs between calls
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # on processors without VNNI, sums of products of 8 bits would overflow
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(file, options)
    names = [output.name for output in session.get_outputs()]
    return by_length(lambda batch: dict(zip(names, session.run(None, batch), strict=True)))


def open_openvino(file: Path, threads: int | None = None) -> Run:
    """Read a graph of OpenVINO as a function from inputs to outputs, both by name."""
    import openvino

    # some processors would compute in 16 bits; 0 is all cores
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads or 0}
    # what is compiled once is read again
    options["CACHE_DIR"] = str(cache_folder() / "openvino")
    graph = openvino.Core().compile_model(file, "CPU", options)
    names = [output.any_name for output in graph.outputs]
    return by_length(lambda batch: dict(zip(names, graph(batch).values(), strict=True)))


OPENERS: dict[str, Callable[..., Run]] = {"onnx": open_onnx, "openvino": open_openvino}


def by_length(run: Run) -> Run:
    """Let a graph run rows of like lengths together, for graphs compute padding: the same outputs, sooner.

    Outputs of padding are zero then. Batches with padding on the left or in between, and those of encoder-decoders, run
    as a whole.
    """

    def run_groups(batch: Batch) -> Batch:
        mask = batch.get("attention_mask", np.ones((1, 1)))
        lengths = mask.sum(-1)
        is_padded_right = mask.ndim == 2 and bool((mask[:, 1:] <= mask[:, :-1]).all())
        groups = [*_groups(lengths)] if is_padded_right and "decoder_input_ids" not in batch else []
        if len(groups) < 2:
            return run(batch)
        widths = [max(1, int(lengths[rows[0]])) for rows in groups]
        parts = [
            run({name: np.ascontiguousarray(array[rows, :width]) for name, array in batch.items()})
            for rows, width in zip(groups, widths, strict=True)
        ]
        outputs = {}
        for name, first in parts[0].items():
            # no other axis is as long as the rows of each group are
            of_tokens = all(part[name].shape[1:2] == (width,) for part, width in zip(parts, widths, strict=True))
            shape = [len(mask), mask.shape[1], *first.shape[2:]] if of_tokens else [len(mask), *first.shape[1:]]
            outputs[name] = np.zeros(shape, first.dtype)
            for rows, width, part in zip(groups, widths, parts, strict=True):
                outputs[name][(rows, slice(width)) if of_tokens else rows] = part[name]
        return outputs

    return run_groups


def _parameters(model: Any) -> list[Any]:
    """Collect the parameters of a model at each call, so without the names that torch would make."""
    found: list[Any] = []
    modules = [model]
    # it grows while it is read
    for module in modules:
        modules += [child for child in module._modules.values() if child is not None]
        found += [parameter for parameter in module._parameters.values() if parameter is not None]
    return found


def _groups(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Divide rows of these lengths into groups of about the same, longer ones first."""
    order = np.argsort(-lengths, kind="stable")
    while len(order):
        near = lengths[order] > (1 - LEAST_PADDING) * lengths[order[0]]
        # a length of zero is near none
        near[0] = True
        yield order[near]
        order = order[~near]
