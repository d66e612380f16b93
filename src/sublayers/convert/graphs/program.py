"""A model as a program of torch, which each runtime of this folder writes in its own form.

`trace` takes any model of transformers that reads tokens. A runtime (`onnx_runtime`, `openvino_runtime`,
`torch_program`) is a module that has `FILE`, the name of what it writes, and

    write(program, file)                    the program in 32 bits, for any number of rows and tokens
    quantize(full, file, batches=None)      what was written to `full`, with linear maps and embeddings in 8 bits,
                                            to `file`; `batches` of inputs tell how large activations are, without
                                            which they are measured while it runs
    load(file, threads=None)                a function from inputs to outputs, both arrays by name, that runs on this
                                            number of cores, by default on all, and rows of like lengths together

    program = trace(model)
    onnx_runtime.write(program, file)
    logits = onnx_runtime.load(file, threads=1)(batch)["logits"]

`torch_program` has no `quantize`.
"""

import inspect
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import wraps
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import ExportedProgram
from transformers import PreTrainedModel

from sublayers.modeling.graph_sessions import Batch, Run

# a module for each form; it is imported when it is needed, since nobody has to install all of these programs
RUNTIMES = {"onnx": "onnx_runtime", "openvino": "openvino_runtime", "torch_export": "torch_program"}
# names that a model lacks are left out
INPUTS = ("input_ids", "attention_mask", "token_type_ids", "decoder_input_ids", "decoder_attention_mask")
TOLERANCE = 1e-4
# rows and tokens: what is traced, and what is checked then
TRACED, CHECKED = (2, 8), ((1, 1), (3, 7), (4, 32))


@contextmanager
def quiet() -> Iterator[None]:
    """Hide what exporters and quantisers tell their developers."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


class Finished(nn.Module):
    """A model whose outputs go on through other functions, with the same inputs and configuration.

    Args:
        model: that has the weights.
        run: what calls it.
        finish: from its outputs and inputs to tensors by name.
    """

    def __init__(self, model: PreTrainedModel, run: Callable[..., Any], finish: Callable[[Any, Any], Any]):
        super().__init__()
        self.model, self.config = model, model.config
        self.forward = wraps(run)(lambda **inputs: finish(run(**inputs), inputs))


@quiet()
def trace(model: nn.Module) -> ExportedProgram:
    """Trace a model in evaluation for any number of rows and tokens, padded on either side.

    The program takes those of `INPUTS` that the model knows, without types of tokens where there is only one, and
    returns its tensors by name, and no cache, hidden states or attentions, whatever the model's configuration says.
    """
    batch = draw_inputs(model, *TRACED)
    shapes = {name: _dimensions(name, tensor.ndim, model.config) for name, tensor in batch.items()}
    # outputs of a class of this package or of transformers could not be read where there is torch alone
    with _plain(model.config), model.eval().register_forward_hook(lambda module, given, outputs: _tensors(outputs)):
        program = torch.export.export(model, (), batch, dynamic_shapes=shapes, strict=False)
    for node in program.graph.nodes:
        # stack traces in the graph name paths of this machine
        node.meta.pop("stack_trace", None)
    return program


def runtime(form: str) -> Any:
    """Import the module of a form."""
    return import_module(f"sublayers.convert.graphs.{RUNTIMES[form]}")


def output_names(program: ExportedProgram) -> list[str]:
    """Name a program's outputs, in its order."""
    return [*program.call_spec.out_spec.context]


def draw_inputs(model: nn.Module, rows: int, length: int) -> dict[str, torch.Tensor]:
    """Draw tokens of which a third of the rows is padded on its left, and a third on its right."""
    config: Any = model.config
    generator = torch.Generator().manual_seed(0)
    length = min(length, longest(config) or length)
    vocabulary = min(config.vocab_size, getattr(config, "encoder_vocab_size", None) or config.vocab_size)
    choices = (2,) if type(model).__name__.endswith("ForMultipleChoice") else ()
    accepted = inspect.signature(model.forward).parameters
    batch = {}
    # where there is only one type of tokens, some tokenizers still count two in pairs
    left_out = {"token_type_ids"} if getattr(config, "type_vocab_size", None) == 1 else set()
    for name in [name for name in INPUTS if name in accepted.keys() - left_out]:
        shape = (rows, *choices, max(1, length - 2) if name.startswith("decoder") else length)
        if name.endswith("mask"):
            batch[name] = torch.ones(shape, dtype=torch.long)
            batch[name][0::3, ..., : shape[-1] // 3] = 0
            batch[name][1::3, ..., shape[-1] - shape[-1] // 3 :] = 0
        else:
            number = config.type_vocab_size if name == "token_type_ids" else vocabulary
            batch[name] = torch.randint(number, shape, generator=generator)
    return batch


def longest(config: Any) -> int | None:
    """Say how many tokens a model takes at most, if there is a limit."""
    return getattr(config, "max_position_embeddings", None) or None


def run_model(model: nn.Module, batch: dict[str, torch.Tensor]) -> Batch:
    """Run a model in eager mode as its program runs."""
    with torch.no_grad():
        return {name: output.numpy() for name, output in _tensors(model(**batch)).items()}


def check(run: Run, model: nn.Module) -> float:
    """Return the largest difference between a graph and its model, relative for outputs above 1.

    Raises:
        ValueError: it is more than `TOLERANCE`.
    """
    largest = 0.0
    for rows, length in CHECKED:
        batch = draw_inputs(model, rows, length)
        given, wanted = run({name: tensor.numpy() for name, tensor in batch.items()}), run_model(model, batch)
        for name in given.keys() | wanted.keys():
            difference = np.abs(given[name] - wanted[name]) / np.maximum(1, np.abs(wanted[name]))
            # NaN stays NaN
            largest = float(np.maximum(largest, difference.max()))
    if not largest <= TOLERANCE:
        raise ValueError(
            f"outputs of the graph differ from the model's by {largest:.2g}, more than {TOLERANCE}, so that it is not "
            "kept; serve the model with torch"
        )
    return largest


@contextmanager
def _plain(config: Any) -> Iterator[None]:
    """Let a model return nothing but its outputs for a while."""
    fields = ("use_cache", "output_hidden_states", "output_attentions")
    before = {name: getattr(config, name) for name in fields if hasattr(config, name)}
    try:
        for name in before:
            setattr(config, name, False)
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)


def _tensors(outputs: Any) -> dict[str, torch.Tensor]:
    return {name: output for name, output in outputs.items() if isinstance(output, torch.Tensor)}


def _dimensions(name: str, rank: int, config: Any) -> dict[int, Any]:
    """Name the axes of an input; the last one is as long as there are positions."""
    length = "decoder_length" if name.startswith("decoder") else "length"
    names = ["batch", "choices"][: rank - 1]
    return {axis: torch.export.Dim(name) for axis, name in enumerate(names)} | {
        rank - 1: torch.export.Dim(length, max=longest(config))
    }
