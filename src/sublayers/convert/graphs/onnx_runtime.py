"""A program as a graph for ONNX Runtime, where neither torch nor this package is installed; see `program`."""

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import torch
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantType,
    quant_pre_process,
    quantize_dynamic,
    quantize_static,
)
from torch.export import ExportedProgram

from sublayers.convert.graphs.program import output_names, quiet
from sublayers.modeling.graph_sessions import Batch, open_onnx

FILE = "model.onnx"
load = open_onnx


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
    """Store tables of embeddings and weights of linear maps in 8 bits, with a scale for each vector and each output.

    The inputs of linear maps are rounded, too. Their range is measured each time, or once for all on batches; in the
    latter case, maps of single positions, such as a classifier's last, stay in 32 bits.
    """
    is_large = full.with_name(f"{full.name}.data").exists()
    with TemporaryDirectory() as folder:
        folded = Path(folder) / full.name
        # matrices that the graph transposes, such as a head tied to the embeddings, would stay in 32 bits
        quant_pre_process(full, folded, skip_symbolic_shape=True, skip_onnx_shape=True, save_as_external_data=is_large)
        graph = onnx.load(folded)
    # these are not the shapes that the quantiser infers, after which it gives up
    del graph.graph.value_info[:]
    _round_tables(graph.graph)
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
        # with signed activations, products would be computed in 32 bits
        activation_type=QuantType.QUInt8,
        # outputs stay in 32 bits; rounding them costs a point of accuracy
        extra_options={"OpTypesToExcludeOutputQuantization": ["MatMul"]},
        **options,
    )


def _round_tables(graph: onnx.GraphProto) -> None:
    """Store in 8 bits what is read by rows alone; the quantisers of ONNX Runtime know one scale for a whole table."""
    for table in [weight for weight in graph.initializer if len(weight.dims) == 2]:
        readers = [node for node in graph.node if table.name in node.input]
        by_rows = all(
            node.op_type == "Gather" and not onnx.helper.get_node_attr_value(node, "axis") for node in readers
        )
        if not readers or not by_rows or table.data_type != onnx.TensorProto.FLOAT:
            continue
        rows = onnx.numpy_helper.to_array(table)
        # a row of zeros has any scale
        scales = np.maximum(np.abs(rows).max(1, keepdims=True), np.finfo(np.float32).tiny) / 127
        names = f"{table.name}_quantized", f"{table.name}_scale"
        for name, values in zip(names, (np.round(rows / scales).astype(np.int8), scales), strict=True):
            graph.initializer.append(onnx.numpy_helper.from_array(values, name))
        graph.initializer.remove(table)
        for node in readers:
            index, (_, ids), [output] = [*graph.node].index(node), node.input, node.output
            parts = [f"{output}_{part}" for part in ("quantized", "scale", "rounded")]
            graph.node.remove(node)
            for new in (
                onnx.helper.make_node("Mul", [parts[2], parts[1]], [output]),
                onnx.helper.make_node("Cast", [parts[0]], [parts[2]], to=onnx.TensorProto.FLOAT),
                onnx.helper.make_node("Gather", [names[1], ids], [parts[1]]),
                onnx.helper.make_node("Gather", [names[0], ids], [parts[0]]),
            ):
                graph.node.insert(index, new)
