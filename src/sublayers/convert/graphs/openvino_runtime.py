"""A program as a graph for OpenVINO, where neither torch nor this package is installed; see `program`."""

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import openvino
from torch.export import ExportedProgram

from sublayers.convert.graphs import onnx_runtime
from sublayers.convert.graphs.program import quiet
from sublayers.modeling.graph_sessions import Batch, open_openvino

FILE = "openvino_model.xml"
load = open_openvino


@quiet()
def write(program: ExportedProgram, file: Path) -> None:
    """Write a program as a graph; the weights lie in a file beside it that ends with .bin."""
    with TemporaryDirectory() as folder:
        # OpenVINO's own reader of programs makes NaN of queries that see no key, such as padding on the left
        onnx_runtime.write(program, Path(folder) / onnx_runtime.FILE)
        graph = openvino.convert_model(Path(folder) / onnx_runtime.FILE)
        openvino.save_model(graph, file, compress_to_fp16=False)


@quiet()
def quantize(full: Path, file: Path, batches: Iterable[Batch] | None = None) -> None:
    """Store the weights of linear maps and embeddings in 8 bits, with a scale for each output.

    What OpenVINO rounds of their inputs is then its own choice for a processor; batches tell the range of all inputs,
    and the linear maps are computed in integers everywhere.
    """
    # only this export needs the file
    import nncf

    graph = openvino.Core().read_model(full)
    if batches is None:
        quantized = nncf.compress_weights(graph, mode=nncf.CompressWeightsMode.INT8_SYM)
    else:
        rows = [*batches]
        kind = nncf.ModelType.TRANSFORMER
        quantized = nncf.quantize(graph, nncf.Dataset(rows), model_type=kind, subset_size=len(rows))
    openvino.save_model(quantized, file, compress_to_fp16=False)
