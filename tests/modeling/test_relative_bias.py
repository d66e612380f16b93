"""Biases by distance; that a model with them is MPNet is tested where MPNet is converted."""

import pytest
import torch
from common import tokens
from families import build
from transformers import AutoModelForSequenceClassification

from sublayers.modeling.relative_bias import RelativeBias, add_bias, buckets


def test_near_distances_have_groups_of_their_own_and_far_ones_share():
    found = buckets(torch.tensor([0, -1, -7, 1, 7, -8, -9, -127, -128, -1000, 1000]), 32).tolist()
    assert found[:5] == [0, 1, 7, 17, 23]
    assert found[5] == 8
    assert found[6] in (8, 9)
    assert found[7:] == [15, 15, 15, 31]


def test_each_head_has_a_number_for_each_pair_of_places():
    bias = RelativeBias(8, 3)
    found = bias(5)
    assert found.shape == (1, 3, 5, 5)
    for query in range(5):
        for key in range(5):
            place = buckets(torch.tensor(key - query), 8)
            assert torch.equal(found[0, :, query, key], bias.table.weight[place])


@pytest.mark.parametrize("kind", ["none", "bool", "added"])
def test_what_is_hidden_stays_hidden(kind):
    bias, seen = torch.randn(1, 2, 3, 3), torch.tensor([[1, 1, 0], [0, 1, 1]])[:, None, None].bool()
    added = torch.zeros(2, 1, 1, 3).masked_fill(~seen, torch.finfo(torch.float).min)
    mask = {"none": None, "bool": seen, "added": added}[kind]
    weights = add_bias(mask, bias).softmax(-1)
    expected = bias.softmax(-1)
    if mask is not None:
        expected = (bias.exp() * seen) / (bias.exp() * seen).sum(-1, keepdim=True)
    torch.testing.assert_close(weights, expected)


@pytest.mark.parametrize("order", ["sfsf", "s2f2", "sfmf"])
@torch.no_grad()
def test_backends_and_narrow_tails_agree_with_all_positions(order):
    head = AutoModelForSequenceClassification
    model = build("par_bert", head, sublayer_order=order, relative_attention_num_buckets=8).eval()
    ids, mask = tokens(3, 9), torch.ones(3, 9, dtype=torch.long)
    mask[1, -4:] = mask[2, :3] = 0
    found = model(ids, mask).logits
    # recorded states are those of all positions
    torch.testing.assert_close(model(ids, mask, output_hidden_states=True).logits, found, rtol=1e-5, atol=1e-5)
    for row, real in enumerate(mask.bool()):
        alone = model(ids[row : row + 1, real]).logits
        torch.testing.assert_close(alone, found[row : row + 1], rtol=1e-5, atol=1e-5)
    model.set_attn_implementation("eager")
    torch.testing.assert_close(model(ids, mask).logits, found, rtol=1e-5, atol=1e-5)
    model.set_attn_implementation("flex_attention")
    with pytest.raises(ValueError, match="knows no relative biases; choose 'eager'"):
        model(ids, mask)
