"""What torch makes of every head of every family as a graph, and the tuples that some graphs need."""

import families
import pytest
import torch
from common import randomize, tokens
from families import ENCODER_DECODERS, HEADS, small
from transformers import AutoModelForMaskedLM, AutoModelForMultipleChoice, AutoModelForPreTraining

from sublayers import AUTO_CLASSES

every_model = pytest.mark.parametrize(("config_class", "auto_class"), HEADS, ids=lambda part: part.__name__)
labelled_words = pytest.mark.parametrize(
    ("config_class", "auto_class"),
    [(config, head) for config, head in HEADS if head in (AutoModelForMaskedLM, AutoModelForPreTraining)],
    ids=lambda part: part.__name__,
)


def build(config_class, auto_class, **options):
    return randomize(AUTO_CLASSES[config_class][auto_class](small(config_class, use_cache=False, **options)))


def padded(model, auto_class) -> dict[str, torch.Tensor]:
    """Three rows with gaps, and padding on both sides."""
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[0, 2] = mask[1, :4] = mask[2, -3:] = 0
    batch = {"input_ids": tokens(3, 9), "attention_mask": mask}
    if auto_class is AutoModelForMultipleChoice:
        return {name: torch.stack([rows, rows.flip(0)], 1) for name, rows in batch.items()}
    if model.config.is_encoder_decoder:
        batch |= {"decoder_input_ids": tokens(3, 9).flip(0), "decoder_attention_mask": mask.flip(0)}
    return batch


def assert_same_tensors(actual, expected):
    for name, tensor in expected.items():
        if isinstance(tensor, torch.Tensor):
            torch.testing.assert_close(actual[name], tensor, atol=1e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@every_model
def test_a_graph_gives_the_same_at_padding(config_class, auto_class):
    model = build(config_class, auto_class)
    batch = padded(model, auto_class)
    graph = torch.export.export(model, (), batch, strict=False).module()
    assert_same_tensors(graph(**batch), model(**batch))


@labelled_words
def test_a_graph_reads_padding_that_has_a_label(config_class, auto_class):
    model = build(config_class, auto_class)
    batch = padded(model, auto_class) | {"labels": tokens(3, 9)}
    graph = torch.export.export(model, (), batch, strict=False).module()
    assert_same_tensors(graph(**batch), model(**batch))


@every_model
def test_gives_tuples_if_the_configuration_says_so(config_class, auto_class):
    options = {"attn_implementation": "eager", "output_attentions": True}
    model = build(config_class, auto_class, **options)
    batch = padded(model, auto_class)
    model.config.output_hidden_states = True
    expected = model(**batch).to_tuple()
    model.config.return_dict = False
    torch.testing.assert_close(model(**batch), expected)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_encoder_decoders_train_with_tuples(family):
    model = families.build(family).train()
    batch = families.inputs(model) | {"labels": tokens(3, 7)}
    torch.manual_seed(0)
    expected = model(**batch).loss
    model.config.return_dict = False
    # the weights of orders are drawn
    torch.manual_seed(0)
    assert torch.equal(model(**batch)[0], expected)


@every_model
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_torchscript_traces_it(config_class, auto_class, monkeypatch):
    # the tracer of torch does not know oneDNN's product
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    model = build(config_class, auto_class)
    batch = padded(model, auto_class)
    expected = model(**batch)
    model.config.return_dict = False
    graph = torch.jit.trace(model, example_kwarg_inputs=batch)
    torch.testing.assert_close(graph(**batch), expected.to_tuple())
