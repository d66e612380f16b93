"""A program as a graph for OpenVINO, where neither torch nor this package is installed; see `program`."""

from collections.abc import Iterable
from pathlib import Path

import openvino
from torch.export import ExportedProgram

from sublayers.training.serve.program import Batch, Run, input_names, output_names, quiet

FILE = "openvino_model.xml"


@quiet()
def write(program: ExportedProgram, file: Path) -> None:
    """Write a program as a graph; the weights lie in a file beside it that ends with .bin."""
    graph = openvino.convert_model(program)
    for port, name in zip(
        [*graph.inputs, *graph.outputs], [*input_names(program), *output_names(program)], strict=True
    ):
        port.get_tensor().set_names({name})
    openvino.save_model(graph, file, compress_to_fp16=False)


@quiet()
def quantize(full: Path, file: Path, batches: Iterable[Batch]) -> None:
    """Compute linear maps in integers of 8 bits; the batches tell how large their inputs are."""
    # nothing else needs it
    import nncf

    graph = openvino.Core().read_model(full)
    quantized = nncf.quantize(graph, nncf.Dataset([*batches]), model_type=nncf.ModelType.TRANSFORMER)
    openvino.save_model(quantized, file, compress_to_fp16=False)


def load(file: Path, threads: int | None = None) -> Run:
    """Read a graph as a function from inputs to outputs, both by name."""
    # some processors would compute in 16 bits; 0 is all cores
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads or 0}
    graph = openvino.Core().compile_model(file, "CPU", options)
    names = [output.any_name for output in graph.outputs]
    return lambda batch: dict(zip(names, graph(batch).values(), strict=True))
