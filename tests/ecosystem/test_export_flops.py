"""What a graph computes where one position is read."""

import numpy as np
import onnxruntime
import pytest
from families import build
from tiny_graphs import RUNTIMES, known_onnx, onnx, onnx_runtime, openvino
from transformers import AutoModelForSequenceClassification

from sublayers.configuration.sublayer_cost import flops
from sublayers.convert.graphs import program

pytestmark = pytest.mark.slow


def graph_flops(file, batch):
    """Count the multiplications of matrices in a graph: two FLOPs for each multiply-add."""
    graph = onnx.load(file)
    assert not {"Attention", "Conv", "Einsum"} & {node.op_type for node in graph.graph.node}
    products = [node for node in graph.graph.node if node.op_type in ("MatMul", "Gemm")]
    matrices = {}
    # the shapes of what a run computes
    del graph.graph.output[:]
    for node in products:
        for name in (node.input[0], node.output[0]):
            matrices[name] = onnx.ValueInfoProto(name=name)
    graph.graph.output.extend(matrices.values())
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    found = dict(zip(matrices, session.run(None, batch), strict=True))
    return sum(2 * found[node.output[0]].size * found[node.input[0]].shape[-1] for node in products)


def openvino_flops(file, batch):
    """Count the multiplications of matrices in a graph, as above, from the shapes that it infers for a batch."""
    graph = openvino.Core().read_model(file)
    graph.reshape({name: openvino.PartialShape([*array.shape]) for name, array in batch.items()})
    nodes = graph.get_ordered_ops()
    assert not {"Convolution", "Einsum"} & {node.get_type_name() for node in nodes}
    total = 0
    for node in nodes:
        if node.get_type_name() == "MatMul":
            shared = [*node.input(0).get_partial_shape().to_shape()][-2 if node.get_attributes()["transpose_a"] else -1]
            total += 2 * int(np.prod([*node.output(0).get_partial_shape().to_shape()])) * shared
        elif node.get_type_name() == "ScaledDotProductAttention":
            query, key = ([*node.input(place).get_partial_shape().to_shape()] for place in (0, 1))
            total += 2 * 2 * int(np.prod(query)) * key[-2]
    return total


COUNTS = {"onnx": graph_flops, "openvino": openvino_flops}


@pytest.mark.parametrize(
    ("order", "tail_query"), [("sf5", "first"), ("sf(mf)2", "first"), ("sf(mf)2", "mean"), ("s2f2", "mean")]
)
@pytest.mark.representatives(1)
def test_of_a_long_tail_one_position_is_computed(order, tail_query, tmp_path):
    hidden, intermediate, labels = 32, 48, 2
    model = build("par_bert", AutoModelForSequenceClassification, sublayer_order=order, tail_query=tail_query)
    traced, head = program.trace(model), 2 * hidden * hidden + 2 * hidden * labels
    onnx_runtime.write(traced, tmp_path / onnx_runtime.FILE)
    for name, count in COUNTS.items():
        runtime, file = RUNTIMES[name], tmp_path / RUNTIMES[name].FILE
        with known_onnx(tmp_path / onnx_runtime.FILE):
            file.exists() or runtime.write(traced, file)
        assert program.check(runtime.load(file), model) < 1e-4
        for length in (7, 40):
            batch = {name: np.ones((1, length), dtype=np.int64) for name in traced.graph_signature.user_inputs}
            how = {"num_attention_heads": 4, "takes_mean": tail_query == "mean"}
            assert count(file, batch) == head + flops(order, hidden, intermediate, length, read=1, **how)
