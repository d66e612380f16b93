"""What torch makes of every head of every family as a graph, and the tuples that some graphs need."""

import pytest
import torch
from common import tokens
from families import ENCODER_DECODERS, HEADS, build, build_model, every_model, inputs, padded
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining

from sublayers.modeling import linear

pytestmark = pytest.mark.slow

labelled_words = pytest.mark.parametrize(
    ("config_class", "auto_class"),
    [(config, head) for config, head in HEADS if head in (AutoModelForMaskedLM, AutoModelForPreTraining)],
    ids=lambda part: part.__name__,
)


def assert_same_tensors(actual, expected):
    for name, tensor in expected.items():
        if isinstance(tensor, torch.Tensor):
            torch.testing.assert_close(actual[name], tensor, atol=1e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@every_model
@pytest.mark.representatives(8)
def test_a_graph_gives_the_same_at_padding(config_class, auto_class):
    model = build_model(config_class, auto_class, use_cache=False)
    batch = padded(model, auto_class)
    graph = torch.export.export(model, (), batch, strict=False).module()
    assert_same_tensors(graph(**batch), model(**batch))


@labelled_words
def test_a_graph_reads_padding_that_has_a_label(config_class, auto_class):
    model = build_model(config_class, auto_class, use_cache=False)
    batch = padded(model, auto_class) | {"labels": tokens(3, 9)}
    graph = torch.export.export(model, (), batch, strict=False).module()
    assert_same_tensors(graph(**batch), model(**batch))


@every_model
def test_gives_tuples_if_the_configuration_says_so(config_class, auto_class):
    options = {"attn_implementation": "eager", "output_attentions": True}
    model = build_model(config_class, auto_class, use_cache=False, **options)
    batch = padded(model, auto_class)
    model.config.output_hidden_states = True
    expected = model(**batch).to_tuple()
    model.config.return_dict = False
    torch.testing.assert_close(model(**batch), expected)


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


@every_model
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.representatives(8)
def test_torchscript_traces_it(config_class, auto_class, monkeypatch):
    # which runs an operator that a trace cannot record
    monkeypatch.setattr(linear, "fastest", lambda *_, **__: "onednn")
    model = build_model(config_class, auto_class, use_cache=False)
    batch = padded(model, auto_class)
    expected = model(**batch)
    model.config.return_dict = False
    graph = torch.jit.trace(model, example_kwarg_inputs=batch)
    torch.testing.assert_close(graph(**batch), expected.to_tuple())
