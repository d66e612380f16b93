"""What torch makes of every head of every family as a graph, and the tuples that some graphs need."""

import pytest
import torch
from common import backward, tokens
from families import (
    ENCODER_DECODERS,
    ROWS,
    build,
    counts_gaps,
    every_row,
    inputs,
    labelled,
    padded,
    tensors,
    unlabelled,
)
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining, AutoModelForSequenceClassification

from sublayers.modeling import linear

pytestmark = pytest.mark.slow


# by the code of its body, the first family that has it
FIRST = {row.heads[AutoModel].forward: row for name, row in reversed(ROWS.items()) if name == row.family}


def first_heads(row):
    """All heads of the first family with a body, and the main one of others: above it, heads have the same code."""
    return row.heads if FIRST[row.heads[AutoModel].forward] is row else [row.main_head]


every_head = every_row(heads=lambda row: row.heads)
# graphs of these take seconds each
first_head = every_row(heads=first_heads)


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3, equal_nan=True)


@first_head
@pytest.mark.representatives(3)
def test_compiles_in_one_graph(row, head):
    torch.compiler.reset()
    model = row.build(head)
    batch, memory = padded(model) if head is AutoModel else labelled(model, head), {}
    if hasattr(model, "empty_memory") and head is not AutoModelForSequenceClassification:
        del batch["attention_mask"]
        memory = {"memory": model(**batch, memory=model.empty_memory(3)).memory}
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    if head is not row.main_head:
        # gradients of a head are those of its loss
        assert_close(*(each(**batch, **memory)[0] for each in (model, compiled)))
        return
    assert_close(*(tensors(each(**unlabelled(batch), **memory), padded(model, head)) for each in (model, compiled)))
    model.train()
    results = []
    # this traces the gradients, too, which takes as long again
    for each in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        # the weights of orders are drawn
        torch.manual_seed(0)
        out = each(**batch, **memory)
        # graphs know no parameter without a gradient
        loss = out[0].sum() + out.get("pooler_output", out[0]).sum()
        results.append((loss, backward(model, loss)))
    assert_close(*results)


@first_head
@pytest.mark.representatives(4)
def test_exports_with_any_batch_and_length_and_reads_padding_only_where_it_has_a_label(row, head):
    model = row.build(head, use_cache=False)
    batches = [padded(model, head)]
    # a window of nothing but padding sees nothing
    if head in (AutoModelForMaskedLM, AutoModelForPreTraining) and not counts_gaps(model.config):
        batches.append(batches[0] | {"labels": tokens(3, 9)})
    rows, length, target = (torch.export.Dim(name, max=64) for name in ("rows", "length", "target"))
    for batch in batches:
        shapes = {
            name: {0: rows, ids.ndim - 1: target if name.startswith("decoder") else length}
            for name, ids in batch.items()
        }
        # traced where nothing is padding
        first = {name: torch.ones_like(ids[:2, ..., :7]) for name, ids in batch.items()}
        program = torch.export.export(model, (), first, dynamic_shapes=shapes, strict=False).module()
        # whether a label makes a token of padding
        mask = {"attention_mask": torch.ones(3, 9)} if "labels" in batch else batch
        assert_close(tensors(program(**batch), mask), tensors(model(**batch), mask))


@every_head
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.representatives(10)
def test_torchscript_traces_it(row, head, monkeypatch):
    # which runs an operator that a trace cannot record
    monkeypatch.setattr(linear, "fastest", lambda *_, **__: "onednn")
    model = row.build(head, use_cache=False)
    batch = padded(model, head)
    expected = model(**batch)
    model.config.return_dict = False
    graph = torch.jit.trace(model, example_kwarg_inputs=batch)
    torch.testing.assert_close(graph(**batch), expected.to_tuple())


@every_head
@pytest.mark.representatives(12)
def test_gives_tuples_if_the_configuration_says_so(row, head):
    model = row.build(head, use_cache=False, attn_implementation="eager", output_attentions=True)
    batch = padded(model, head)
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
    torch.manual_seed(0)
    assert torch.equal(model(**batch)[0], expected)
