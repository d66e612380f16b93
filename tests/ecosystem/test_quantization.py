from contextlib import nullcontext

import pytest
import torch
from common import tokens
from families import FAMILIES, build, every_family, every_family_and_todays_parts, inputs, logits
from torch import nn
from transformers import AutoModelForSequenceClassification, BitsAndBytesConfig, TorchAoConfig

from sublayers.modeling import linear

pytestmark = pytest.mark.slow

quantization = pytest.importorskip("torchao.quantization")
pytest.importorskip("bitsandbytes")


@pytest.fixture(autouse=True)
def onednn(monkeypatch):
    # on other processors, single precision runs in oneDNN, which quantised weights must not reach
    monkeypatch.setattr(linear, "fastest", lambda *_, **__: "onednn")


@every_family_and_todays_parts
def test_int8_weights_score_and_generate_like_the_rounded_weights(family, options, tmp_path):
    head = FAMILIES[family][1]
    model = build(family, **options)
    model.save_pretrained(tmp_path)
    settings = TorchAoConfig(quantization.Int8WeightOnlyConfig())
    quantized = head.from_pretrained(tmp_path, quantization_config=settings)
    maps = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    # the output is that of the embeddings, which stay as they are
    output = maps.pop("lm_head", None)
    if output and model.config.tie_word_embeddings:
        assert quantized.lm_head.weight is quantized.get_input_embeddings().weight
        assert torch.equal(quantized.lm_head.weight, output.weight)
    expected = logits(model, inputs(model))
    for name, module in maps.items():
        weight = quantized.get_submodule(name).weight
        assert weight.qdata.dtype == torch.int8, name
        step = module.weight.abs().amax(1, keepdim=True) / 127.5
        rounded = weight.qdata * step
        # none is farther away than half a step
        assert ((rounded - module.weight).abs() <= 0.501 * step).all(), name
        module.weight.data = rounded.detach()
    actual = logits(quantized, inputs(model))
    torch.testing.assert_close(actual, logits(model, inputs(model)), atol=1e-4, rtol=1e-4)
    # measured: 0.013 (sandwich_lm) to 0.030 (par_bert), and 0.070 with the products of gates
    assert (actual - expected).norm() / expected.norm() < (0.1 if options else 0.05)
    if model.can_generate():
        # greedy search between scores that differ by rounding only
        settings = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
        generated = quantized.generate(tokens(2, 9), **settings)
        assert torch.equal(generated, model.generate(tokens(2, 9), **settings))


# one rounds weights, the other one the states, too
@pytest.mark.parametrize("kind", ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"])
@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("family", ["par_bert", "sandwich_lm"])
def test_a_classifier_runs_with_gradients_and_without(family, mode, kind):
    model, quantized = (build(family, AutoModelForSequenceClassification) for _ in range(2))
    quantization.quantize_(quantized, getattr(quantization, kind)())
    with mode():
        expected, actual = model(**inputs(model)).logits, quantized(**inputs(model)).logits
    # measured: 0.009 to 0.02
    assert 0 < (actual - expected).norm() / expected.norm() < 0.1


# measured errors: 0.02 to 0.06 in 8 bit, 0.22 to 0.39 in 4 bit
QUANTISERS = {
    "8 bit": (BitsAndBytesConfig(load_in_8bit=True), "Linear8bitLt", 0.1),
    "4 bit": (BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"), "Linear4bit", 0.6),
}


@pytest.mark.parametrize("bits", QUANTISERS)
@every_family
def test_every_map_but_the_output_is_quantised(family, bits, tmp_path):
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
