"""A program as a graph for ONNX Runtime, where neither torch nor this package is installed; see `program`."""

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import onnxruntime
import torch
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantType,
    quant_pre_process,
    quantize_dynamic,
    quantize_static,
)
from torch.export import ExportedProgram

from sublayers.training.serve.program import Batch, Run, output_names, quiet

FILE = "model.onnx"


@quiet()
def write(program: ExportedProgram, file: Path) -> None:
    """Write a program as a graph; weights of 2 GB and more lie in a file beside it."""
    graph: Any = torch.onnx.export(program, output_names=output_names(program), dynamo=True, verbose=False)
    for node in graph.model.graph.all_nodes():
        node.metadata_props.clear()
    graph.save(file)


class _Reader(CalibrationDataReader):
    def __init__(self, batches: Iterable[Batch]) -> None:
        self.batches = iter(batches)

    def get_next(self) -> Batch | None:
        return next(self.batches, None)


@quiet()
def quantize(full: Path, file: Path, batches: Iterable[Batch] | None = None) -> None:
    """Store the weights of linear maps in 8 bits, with a scale for each output, and round their inputs.

    The inputs' range is measured each time, or once for all on batches; in the latter case, maps of single positions,
    such as a classifier's last, stay in 32 bits.
    """
    is_large = full.with_name(f"{full.name}.data").exists()
    with TemporaryDirectory() as folder:
        folded = Path(folder) / full.name
        # what is transposed while it runs, such as a head that is tied to the embeddings, would stay in 32 bits
        quant_pre_process(full, folded, skip_symbolic_shape=True, skip_onnx_shape=True, save_as_external_data=is_large)
        graph = onnx.load(folded)
    # these are not the shapes that the quantiser infers, after which it gives up
    del graph.graph.value_info[:]
    # weights that attention divides by heads have no scales by output in ONNX Runtime
    weights = {weight.name for weight in graph.graph.initializer if len(weight.dims) == 2}
    attention = [node.name for node in graph.graph.node if node.op_type == "MatMul" and node.input[1] not in weights]
    options: dict[str, Any] = {"per_channel": True, "use_external_data_format": is_large, "nodes_to_exclude": attention}
    if batches is None:
        quantize_dynamic(graph, file, ["MatMul"], **options)
        return
    quantize_static(
        graph,
        file,
        _Reader(batches),
        op_types_to_quantize=["MatMul"],
        # with signed ones, each product would be one in 32 bits
        activation_type=QuantType.QUInt8,
        # its outputs are read in 32 bits, and to round them, too, costs a point of accuracy
        extra_options={"OpTypesToExcludeOutputQuantization": ["MatMul"]},
        **options,
    )


def load(file: Path, threads: int | None = None) -> Run:
    """Read a graph as a function from inputs to outputs, both by name."""
    options = onnxruntime.SessionOptions()
    # 0 is all cores
    options.intra_op_num_threads = threads or 0
    # threads that wait for the next call would take the cores from whatever runs between calls
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(file, options)
    names = [output.name for output in session.get_outputs()]
    return lambda batch: dict(zip(names, session.run(None, batch), strict=True))
