"""What torch makes of every head of every family as a graph, and the tuples that some graphs need."""

import pytest
import torch
from common import tokens
from families import ENCODER_DECODERS, FAMILIES, HEADS, TODAY, build, build_model, inputs, padded
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining

from sublayers.modeling import linear

pytestmark = pytest.mark.slow

# today's parts, local attention among them
TODAYS = {
    "sandwich_lm": {"sublayer_order": "sfwff"},
    "par_bert": {"sublayer_order": "sfwff"},
    "sandwich_seq2seq": {"encoder_sublayer_order": "swf", "decoder_sublayer_order": "fscwcf"},
}
MODELS = [(*FAMILIES[family][:2], TODAY | orders | {"attention_window": 3}) for family, orders in TODAYS.items()]
MODELS += [(config_class, auto_class, {}) for config_class, auto_class in HEADS]


def assert_same_tensors(actual, expected):
    for name, tensor in expected.items():
        if isinstance(tensor, torch.Tensor):
            torch.testing.assert_close(actual[name], tensor, atol=1e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(
    ("config_class", "auto_class", "options"),
    MODELS,
    ids=lambda part: getattr(part, "__name__", "today" if part else ""),
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.representatives(11)
def test_graphs_give_the_same_at_padding(config_class, auto_class, options, monkeypatch):
    model = build_model(config_class, auto_class, use_cache=False, **options)
    batch = padded(model, auto_class)
    expected = model(**batch)
    graph = torch.export.export(model, (), batch, strict=False).module()
    assert_same_tensors(graph(**batch), expected)
    if options:
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert_same_tensors(compiled(**batch), expected)
        torch.compiler.reset()
    if auto_class in (AutoModelForMaskedLM, AutoModelForPreTraining):
        # padding that has a label is read
        labelled = batch | {"labels": tokens(3, 9)}
        graph = torch.export.export(model, (), labelled, strict=False).module()
        assert_same_tensors(graph(**labelled), model(**labelled))
    # which runs an operator that a trace cannot record
    monkeypatch.setattr(linear, "gains_from_onednn", lambda: True)
    model = build_model(config_class, auto_class, use_cache=False, **options)
    model.config.return_dict = False
    graph = torch.jit.trace(model, example_kwarg_inputs=batch)
    torch.testing.assert_close(graph(**batch), expected.to_tuple(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_encoder_decoders_train_with_tuples(family):
    model = build(family).train()
    batch = inputs(model) | {"labels": tokens(3, 7)}
    torch.manual_seed(0)
    expected = model(**batch).loss
    model.config.return_dict = False
    # the weights of orders are drawn
    torch.manual_seed(0)
    assert torch.equal(model(**batch)[0], expected)
