import pytest
import torch
from families import FAMILIES, build, every_family, inputs, logits
from torch import nn
from transformers import BitsAndBytesConfig

from sublayers.modeling import linear

pytestmark = pytest.mark.slow

bitsandbytes = pytest.importorskip("bitsandbytes")

# measured errors: 0.02 to 0.06 in 8 bit, 0.22 to 0.39 in 4 bit
QUANTISERS = {
    "8 bit": (BitsAndBytesConfig(load_in_8bit=True), "Linear8bitLt", 0.1),
    "4 bit": (BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"), "Linear4bit", 0.6),
}


@pytest.mark.parametrize("bits", QUANTISERS)
@every_family
def test_every_map_but_the_output_is_quantised(family, bits, tmp_path, monkeypatch):
    # on other processors, single precision runs in oneDNN, which quantised weights must not reach
    monkeypatch.setattr(linear, "fastest", lambda *_, **__: "onednn")
    settings, replacement, tolerance = QUANTISERS[bits]
    # 4 bit packs blocks of 64 weights
    model = build(family, hidden_size=64, intermediate_size=128)
    model.save_pretrained(tmp_path)
    quantized = FAMILIES[family][1].from_pretrained(tmp_path, quantization_config=settings, dtype=torch.float32)
    maps = {name for name, module in model.named_modules() if type(module) is nn.Linear} - {"lm_head"}
    assert maps == {name for name, module in quantized.named_modules() if type(module).__name__ == replacement}
    batch = inputs(model)
    expected, actual = logits(model, batch), logits(quantized, batch)
    assert 0 < (actual - expected).norm() / expected.norm() < tolerance
