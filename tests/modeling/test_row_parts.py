import pytest
import torch
from common import tokens
from families import build
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

from sublayers.modeling import row_parts

# one that ends with attention, one with a tail, one whose tail attends
ORDERS = ["ffsfs", "s2(sf)2f2", "sf(mf)2"]


def inputs():
    """Rows of several lengths, with padding on both sides."""
    ids, mask = tokens(7, 12), torch.ones(7, 12, dtype=torch.long)
    for row, (start, end) in enumerate([(0, 12), (0, 3), (4, 12), (0, 7), (0, 12), (5, 6), (0, 12)]):
        mask[row, :start] = mask[row, end:] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2}


def split(monkeypatch, rows, config):
    monkeypatch.setattr(row_parts, "PART_BYTES", rows * 4 * config.intermediate_size * 12)


def count_runs(model, monkeypatch):
    """Count how often the stack runs."""
    stack, runs = model.base_model.layers, []
    forward = stack.forward
    monkeypatch.setattr(stack, "forward", lambda *args, **kwargs: runs.append(1) or forward(*args, **kwargs))
    return runs


@pytest.mark.parametrize("head", [AutoModel, AutoModelForSequenceClassification, AutoModelForMaskedLM])
@pytest.mark.parametrize("order", ORDERS)
@torch.no_grad()
def test_rows_run_in_parts_as_they_run_together(order, head, monkeypatch):
    model, batch = build("par_bert", head, sublayer_order=order), inputs()
    runs = count_runs(model, monkeypatch)
    whole = model(**batch)
    assert len(runs) == 1
    for rows in (1, 3):
        runs.clear()
        split(monkeypatch, rows, model.config)
        found = model(**batch)
        assert len(runs) == -(-7 // rows)
        assert found.keys() == whole.keys()
        for name in whole:
            torch.testing.assert_close(found[name], whole[name], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tail_query", ["first", "mean"])
@torch.no_grad()
def test_one_token_of_each_row_is_read(tail_query, monkeypatch):
    model, batch = build("par_bert", AutoModel, sublayer_order="s2f4", tail_query=tail_query), inputs()
    whole = model.forward_first_token(**batch).last_hidden_state
    split(monkeypatch, 2, model.config)
    torch.testing.assert_close(model.forward_first_token(**batch).last_hidden_state, whole, atol=1e-5, rtol=1e-5)


def test_embeddings_and_positions_are_divided_as_tokens_are(monkeypatch):
    model, batch = build("par_bert", AutoModel, sublayer_order="s2f2"), inputs()
    batch["inputs_embeds"] = model.get_input_embeddings()(batch.pop("input_ids")).detach()
    for positions in (torch.arange(12)[None].flip(1), torch.arange(12).repeat(7, 1).roll(1, 1)):
        batch["position_ids"] = positions
        monkeypatch.undo()
        with torch.no_grad():
            whole = model(**batch).last_hidden_state
            split(monkeypatch, 2, model.config)
            torch.testing.assert_close(model(**batch).last_hidden_state, whole, atol=1e-5, rtol=1e-5)


def test_what_is_trained_or_recorded_runs_together(monkeypatch):
    model, batch = build("par_bert", AutoModel, sublayer_order="s2f2"), inputs()
    split(monkeypatch, 1, model.config)
    runs = count_runs(model, monkeypatch)
    model(**batch)
    with torch.no_grad():
        model(**batch, output_hidden_states=True)
    assert len(runs) == 2


@torch.no_grad()
def test_hooks_see_a_batch_once(monkeypatch):
    model, batch = build("par_bert", AutoModel, sublayer_order="s2f2"), inputs()
    split(monkeypatch, 1, model.config)
    seen = []
    model.layers[1].mixer.q_proj.register_forward_hook(lambda module, args, output: seen.append(output))
    model(**batch)
    assert len(seen) == 1
