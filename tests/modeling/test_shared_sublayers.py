"""Sublayers that run at several places: as ALBERT's, and as copies of them would."""

import pytest
import torch
from common import VOCAB, randomize, tokens
from families import ROWS, inputs, padded, tensors
from transformers import AlbertConfig, AlbertModel

from sublayers import Order, PARBertConfig, PARBertModel
from sublayers.modeling.stack import SublayerStack

SHARED = [name for name in ROWS if name.endswith(" shared")]
# of a layer of ALBERT, by their places in the order
NAMES = {
    "attention.query": "0.mixer.q_proj",
    "attention.key": "0.mixer.k_proj",
    "attention.value": "0.mixer.v_proj",
    "attention.dense": "0.mixer.o_proj",
    "attention.LayerNorm": "0.norm",
    "ffn": "1.mixer.fc1",
    "ffn_output": "1.mixer.fc2",
    "full_layer_layer_norm": "1.norm",
}
OUTSIDE = {
    "embeddings.word_embeddings": "embed_tokens",
    "embeddings.position_embeddings": "embed_positions",
    "embeddings.token_type_embeddings": "embed_token_types",
    "embeddings.LayerNorm": "embed_norm",
    "pooler": "pooler.dense",
}


@pytest.mark.parametrize(("groups", "order"), [(1, "(s_0f_0)4"), (2, "(s_0f_0)2(s_1f_1)2")])
@torch.no_grad()
def test_equals_albert(groups, order):
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
    sizes |= {"max_position_embeddings": 16, "layer_norm_eps": 1e-12}
    # the width of its embeddings is that of the model
    options = {"embedding_size": 32, "num_hidden_layers": 4, "num_hidden_groups": groups}
    albert = randomize(AlbertModel(AlbertConfig(**sizes, **options))).eval()
    torch.nn.init.eye_(albert.encoder.embedding_hidden_mapping_in.weight)
    torch.nn.init.zeros_(albert.encoder.embedding_hidden_mapping_in.bias)
    model = PARBertModel(PARBertConfig(**sizes, sublayer_order=order, hidden_act="gelu_new")).eval()
    parts = {**OUTSIDE}
    for group in range(groups):
        for theirs, ours in NAMES.items():
            place, _, name = ours.partition(".")
            parts[f"encoder.albert_layer_groups.{group}.albert_layers.0.{theirs}"] = (
                f"layers.{2 * group + int(place)}.{name}"
            )
    weights = albert.state_dict()
    weights = {f"{new}{kind}": f"{old}{kind}" for old, new in parts.items() for kind in (".weight", ".bias")}
    own = model.state_dict()
    model.load_state_dict({name: albert.state_dict()[weights[name]] for name in own})
    batch = inputs(model)
    batch["token_type_ids"] = batch["input_ids"] % 2
    real = batch["attention_mask"].bool()
    # here padding has no position
    places = {"position_ids": (real.cumsum(1) - 1).clamp(min=0)}
    found = model(**batch, output_hidden_states=True)
    expected = albert(**batch, **places, output_hidden_states=True)
    # states of ours come after each sublayer, and of ALBERT after each layer
    for ours, theirs in zip(found.hidden_states[::2], expected.hidden_states, strict=True):
        torch.testing.assert_close(ours[real], theirs[real], atol=1e-5, rtol=1e-5)
    # that of a row which begins with padding reads it
    rows = real[:, 0]
    torch.testing.assert_close(found.pooler_output[rows], expected.pooler_output[rows], atol=1e-5, rtol=1e-5)
    # but for the map to the width of the model
    more = sum(p.numel() for p in albert.encoder.embedding_hidden_mapping_in.parameters())
    assert model.num_parameters() == albert.num_parameters() - more


@pytest.mark.parametrize("name", SHARED)
@torch.no_grad()
def test_a_shared_sublayer_does_what_copies_of_it_would(name):
    row = ROWS[name]
    for orders in row.all_orders:
        # those of convolutions follow each other at the places
        widths = {"kernel_sizes": [4]} if "kernel_sizes" in row.options else {}
        model, copied = (row.main(*each, **widths) for each in (orders, [Order(order).letters for order in orders]))
        stacks = {name: part for name, part in model.named_modules() if isinstance(part, SublayerStack)}
        for key, tensor in copied.state_dict().items():
            if ".layers." in key:
                stack, _, within = key.partition(".layers.")
                place, _, rest = within.partition(".")
                key = f"{stack}.layers.{stacks[f'{stack}.layers'].order.sublayers[int(place)]}.{rest}"
            tensor.copy_(model.state_dict()[key])
        assert model.num_parameters() < copied.num_parameters()
        batch = padded(model)
        torch.testing.assert_close(
            tensors(model(**batch), batch), tensors(copied(**batch), batch), atol=1e-5, rtol=1e-5
        )
        if hasattr(model, "empty_memory"):
            read = [each(tokens(2, 20)[:, :7], memory=each.empty_memory(2)) for each in (model, copied)]
            read = [
                each(tokens(2, 20)[:, 7:], memory=out.memory) for each, out in zip((model, copied), read, strict=True)
            ]
            torch.testing.assert_close(read[0].memory, read[1].memory)
            torch.testing.assert_close(read[0].logits, read[1].logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("built", "order"), [("(s_0f)2", "s2f2"), ("(sf)2", "(s_0f)2")])
def test_no_other_order_follows_one_that_shares_sublayers(built, order):
    stack = PARBertModel(ROWS["par_bert"].config(built)).layers
    stack.run_in(built)
    with pytest.raises(ValueError, match=r"cannot follow .*, as one of them shares sublayers$"):
        stack.run_in(order)
