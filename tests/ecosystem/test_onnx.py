import pytest
import torch
from families import build, every_family, inputs, logits
from transformers import AutoModelForSequenceClassification

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")

# what torch's exporter says of itself and of names that it could not keep apart
QUIET = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning", "ignore:# The axis name:UserWarning")
pytestmark = [pytest.mark.slow, QUIET]


def run_in_onnxruntime(model, folder):
    """Export for any batch and length: inputs of several sizes, each with the first output of the exported model."""
    batch = inputs(model)
    shapes = {}
    for name in batch:
        length = "target_length" if name == "decoder_input_ids" else "length"
        shapes[name] = {0: torch.export.Dim("batch"), 1: torch.export.Dim(length, max=64)}
    program = torch.onnx.export(model, (), kwargs=batch, dynamic_shapes=shapes, dynamo=True, verbose=False)
    program.save(folder / "model.onnx")
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    assert [given.name for given in session.get_inputs()] == list(batch)
    for rows, length in ((3, 9), (5, 20), (4, 64)):
        batch = inputs(model, rows, length)
        scores = session.run(None, {name: tensor.numpy() for name, tensor in batch.items()})[0]
        yield batch, torch.from_numpy(scores)


@every_family
def test_runs_in_onnxruntime_with_any_batch_length_and_padding(family, tmp_path):
    model = build(family, use_cache=False)
    for batch, scores in run_in_onnxruntime(model, tmp_path):
        real = (
            torch.ones(scores.shape[:2]).bool() if model.config.is_encoder_decoder else batch["attention_mask"].bool()
        )
        torch.testing.assert_close(scores[real], logits(model, batch), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["sandwich_lm", "par_bert", "macaron_bert"])
def test_classifies_in_onnxruntime_with_any_batch_length_and_padding(family, tmp_path):
    model = build(family, AutoModelForSequenceClassification, use_cache=False)
    for batch, scores in run_in_onnxruntime(model, tmp_path):
        torch.testing.assert_close(scores, model(**batch).logits, atol=1e-4, rtol=1e-4)
