import numpy as np
import pytest
import torch
from families import build

pytest.importorskip("onnxscript")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from sublayers.training.serve import onnx_runtime, program  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.representatives(1)
def test_embeddings_have_8_bits_and_a_scale_for_each(is_tied, tmp_path):
    # one of the words is far larger than all others, and one is nothing
    model = build("par_bert", tie_word_embeddings=is_tied, vocab_size=12000)
    with torch.no_grad():
        model.model.embed_tokens.weight[3] *= 50
        model.model.embed_tokens.weight[4] = 0
    onnx_runtime.write(program.trace(model), tmp_path / "full.onnx")
    onnx_runtime.quantize(tmp_path / "full.onnx", tmp_path / "small.onnx")
    graph = onnx.load(tmp_path / "small.onnx").graph
    stored = {weight.name: onnx.numpy_helper.to_array(weight) for weight in graph.initializer}
    # what is left in 32 bits are scales, biases, norms, and the maps of attention that it folds
    assert max(table.size for table in stored.values() if table.dtype == np.float32) == 12000
    looked_up = [stored[node.input[0]] for node in graph.node if node.op_type == "Gather" and node.input[0] in stored]
    tables = {table.shape: table for table in looked_up if table.dtype == np.int8}
    scales = {len(table): table for table in looked_up if table.dtype == np.float32}
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            weight = module.weight.detach().numpy()
            step = np.abs(weight).max(1, keepdims=True) / 127
            found = tables[weight.shape] * scales[len(weight)]
            assert (np.abs(found - weight) <= 0.501 * step).all()
    batch = {name: rows.numpy() for name, rows in program.draw_inputs(model, 3, 17).items()}
    full, small = (onnx_runtime.load(tmp_path / name)(batch)["logits"] for name in ("full.onnx", "small.onnx"))
    # measured: 0.04 and 0.06
    assert 0 < np.linalg.norm(small - full) / np.linalg.norm(full) < 0.1
