import pytest
import torch
from families import build, every_family, inputs, logits

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")


# what torch's exporter says of itself and of names that it could not keep apart
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning", "ignore:# The axis name:UserWarning")
@every_family
def test_runs_in_onnxruntime_with_any_batch_length_and_padding(family, tmp_path):
    model = build(family, use_cache=False)
    batch = inputs(model)
    shapes = {}
    for name in batch:
        length = "target_length" if name == "decoder_input_ids" else "length"
        shapes[name] = {0: torch.export.Dim("batch"), 1: torch.export.Dim(length, max=64)}
    program = torch.onnx.export(model, (), kwargs=batch, dynamic_shapes=shapes, dynamo=True, verbose=False)
    program.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [given.name for given in session.get_inputs()] == list(batch)
    for rows, length in ((3, 9), (5, 20), (4, 64)):
        batch = inputs(model, rows, length)
        scores = session.run(None, {name: tensor.numpy() for name, tensor in batch.items()})[0]
        scores = torch.from_numpy(scores)
        real = (
            torch.ones(scores.shape[:2]).bool() if model.config.is_encoder_decoder else batch["attention_mask"].bool()
        )
        torch.testing.assert_close(scores[real], logits(model, batch), atol=1e-4, rtol=1e-4)
