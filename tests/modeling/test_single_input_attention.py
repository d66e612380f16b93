"""The letter m against a network that is written out: every token is computed, and keys come from the stored depth."""

import pytest
import torch
from common import tokens
from families import TODAY, build, inputs
from transformers import AutoModel, AutoModelForSequenceClassification, DynamicCache, StaticCache

from sublayers import expand

ORDERS = ["(sf)2(mf)2", "smm", "fsf2mfm", "ssfmf"]
LOCAL = {"sublayer_order": "swf(mf)2", "attention_window": 4}
# options of the stack, for families with one
PARTS = {
    "post": {"norm_position": "post"},
    "pre": {"norm_position": "pre", "final_norm": True},
    "today": TODAY | {"norm_position": "pre"},
    "both": {"norm_position": "both", "feed_forward_scale": 0.5},
    "today, post": TODAY | {"norm_position": "post"},
    "windows": TODAY | LOCAL,
}
CLOSE = {"atol": 1e-6, "rtol": 1e-6}


def rotated(states: torch.Tensor, places: torch.Tensor, theta: float) -> torch.Tensor:
    """Turn each pair of channels of (heads, length, width) by its place, as complex numbers."""
    half = states.shape[-1] // 2
    rates = theta ** (-torch.arange(half, dtype=states.dtype) / half)
    turns = torch.polar(torch.ones_like(rates), rates)[None] ** places[:, None]
    pairs = torch.complex(states[..., :half], states[..., half:]) * turns
    return torch.cat([pairs.real, pairs.imag], -1)


def attend(mixer, config, asking, seen, visible, places=None):
    """One row: what asks (length, hidden) sees of (keys, hidden) what is visible (length, keys)."""

    def heads(states, project, norm=None, positions=None):
        split = project(states).unflatten(-1, (-1, config.head_width)).transpose(0, 1)
        split = split if norm is None else norm(split)
        return split if positions is None else rotated(split, positions, config.rope_parameters["rope_theta"])

    places = places if config.position_embedding_type == "rotary" else None
    query = heads(asking, mixer.q_proj, mixer.q_norm, places)
    key, value = heads(seen, mixer.k_proj, mixer.k_norm, places), heads(seen, mixer.v_proj)
    mixed = []
    for head, one in enumerate(query):
        shared = head // (len(query) // len(key))
        scores = (one @ key[shared].T / config.head_width**0.5).masked_fill(~visible, -torch.inf)
        mixed.append(scores.softmax(-1) @ value[shared])
    return mixer.o_proj(torch.cat(mixed, -1))


def naive(stack, config, row, is_causal, mean=False):
    """Run a stack of any order on one row (length, hidden) without padding, for all tokens; `mean` is one more."""
    order, fixed, length = stack.order.letters, None, len(row)
    distance = torch.arange(length)[:, None] - torch.arange(length)
    everything = distance >= 0 if is_causal else torch.ones(length, length, dtype=torch.bool)
    window = config.attention_window or 0
    near = (distance < window) if is_causal else (distance.abs() <= window // 2)
    places = torch.arange(length)
    states = row
    for layer, letter in zip(stack, order, strict=True):
        if letter == "m" and fixed is None:
            fixed = states
            states = states.mean(0, keepdim=True) if mean else states
        pre = config.norm_position != "post"
        norm = layer.norm if pre else lambda x: x
        given = norm(states)
        if letter == "f":
            out = layer.mixer(given)[0]
        elif letter == "m" and mean:
            # the mean stands where the text begins
            rows = torch.cat([given, given.new_zeros(length - 1, given.shape[1])])
            out = attend(layer.mixer, config, rows, norm(fixed), everything, places)[:1]
        else:
            visible = everything & near if letter == "w" else everything
            out = attend(layer.mixer, config, given, given if letter in "sw" else norm(fixed), visible, places)
        out = layer.output_norm(out) if layer.output_norm else out
        states = states + layer.scale * out
        states = states if pre else layer.norm(states)
    return states


def embedded(body, batch, **more):
    """What the stack gets of every token."""
    return body(**batch, **more, output_hidden_states=True).hidden_states[0]


def rows_of(batch):
    """The number of each row, and where its tokens are that are no padding."""
    return [(i, mask.bool()) for i, mask in enumerate(batch["attention_mask"])]


@pytest.mark.parametrize("backend", ["sdpa", "eager", "flex_attention"])
@pytest.mark.parametrize("parts", PARTS)
@torch.no_grad()
def test_every_token_of_an_encoder_equals_a_naive_network(parts, backend):
    for order in ORDERS:
        model = build("par_bert", AutoModel, **{"sublayer_order": order} | PARTS[parts])
        # eager attention has a softmax in 32 bits
        model = model if backend == "eager" else model.double()
        close = {"atol": 3e-5, "rtol": 1e-5} if backend == "eager" else CLOSE
        batch = inputs(model)
        states = embedded(model, batch)
        model.set_attn_implementation(backend)
        with torch.compiler.set_stance("force_eager"):
            got = model(**batch).last_hidden_state
            first = model.forward_first_token(**batch).last_hidden_state
        for i, real in rows_of(batch):
            expected = model.norm(naive(model.layers, model.config, states[i, real], is_causal=False))
            torch.testing.assert_close(got[i, real], expected, **close)
            torch.testing.assert_close(first[i], expected[:1], **close)


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("parts", PARTS)
@torch.no_grad()
def test_the_mean_of_the_states_runs_through_the_tail_alone(parts, backend):
    for order in ORDERS:
        model = build("par_bert", AutoModelForSequenceClassification, **{"sublayer_order": order} | PARTS[parts])
        model = model if backend == "eager" else model.double()
        close = {"atol": 3e-5, "rtol": 1e-5} if backend == "eager" else CLOSE
        model.config.tail_query = "mean"
        batch, body = inputs(model), model.model
        states = embedded(body, batch)
        model.set_attn_implementation(backend)
        recorded = model(**batch, output_hidden_states=True)
        assert [len(state[0]) for state in recorded.hidden_states] == [9] * (body.layers.tail + 1) + [1] * (
            len(body.layers) - body.layers.tail
        )
        for i, real in rows_of(batch):
            mean = body.norm(naive(body.layers, model.config, states[i, real], is_causal=False, mean=True))
            expected = model.classifier(body.pooler(mean))[0]
            torch.testing.assert_close(model(**batch).logits[i], expected, **close)
            torch.testing.assert_close(recorded.logits[i], expected, **close)


def test_the_mean_needs_no_m():
    model = build("par_bert", AutoModelForSequenceClassification, sublayer_order="sfs2f2", tail_query="mean")
    batch, body = inputs(model), model.model
    states = body(**batch, output_hidden_states=True).hidden_states[4]
    for i, real in rows_of(batch):
        mean = states[i, real].mean(0, keepdim=True)
        for layer in body.layers[4:]:
            mean = layer(mean[None])[0]
        torch.testing.assert_close(model(**batch).logits[i], model.classifier(body.pooler(mean))[0])


@pytest.mark.parametrize("parts", PARTS)
@torch.no_grad()
def test_a_language_model_equals_a_naive_network_with_every_cache(parts):
    for order in ORDERS:
        model = build("sandwich_lm", **{"sublayer_order": order} | PARTS[parts]).double()
        ids, body = tokens(2, 12), model.model
        states = embedded(body, {"input_ids": ids})
        rows = [naive(body.layers, model.config, row, is_causal=True) for row in states]
        expected = model.lm_head(body.norm(torch.stack(rows)))
        torch.testing.assert_close(model(ids).logits, expected, **CLOSE)
        torch.testing.assert_close(model(ids, logits_to_keep=1).logits, expected[:, -1:], **CLOSE)
        for split in (1, 5, 11):
            for cache in (DynamicCache(), StaticCache(model.config, max_cache_len=20)):
                first = model(ids[:, :split], cache=cache, use_cache=True, logits_to_keep=1)
                torch.testing.assert_close(first.logits, expected[:, split - 1 : split], **CLOSE)
                rest = model(ids[:, split:], cache=cache, use_cache=True).logits
                torch.testing.assert_close(rest, expected[:, split:], **CLOSE)


@torch.no_grad()
def test_a_single_query_needs_no_keys():
    model = build("par_bert", AutoModelForSequenceClassification, sublayer_order="sf(mf)2")
    batch = inputs(model)
    expected = model(**batch).logits
    for layer in (model.model.layers[2], model.model.layers[4]):
        # keys would be made with it, and softmax ignores it
        layer.mixer.k_proj.bias.fill_(float("nan"))
    torch.testing.assert_close(model(**batch).logits, expected)


def test_the_first_m_does_what_s_does():
    one, other = (build("par_bert", sublayer_order=order) for order in ("(sf)2mf", "(sf)3"))
    other.load_state_dict(one.state_dict())
    torch.testing.assert_close(one(**inputs(one)).logits, other(**inputs(one)).logits)


def test_an_m_runs_as_s_until_it_is_told():
    model, plain = (build("par_bert", AutoModel, sublayer_order=order) for order in ("sf(mf)2", "(sf)3"))
    plain.load_state_dict(model.state_dict())
    batch = inputs(model)
    expected = model(**batch).last_hidden_state
    model.layers.run_in("(sf)3")
    torch.testing.assert_close(model(**batch).last_hidden_state, plain(**batch).last_hidden_state)
    model.layers.run_in("sf(mf)2")
    torch.testing.assert_close(model(**batch).last_hidden_state, expected)
    for order in ("(sf)2f2", "(sf)4"):
        with pytest.raises(ValueError, match=r"has other sublayers than 'sf\(mf\)2'"):
            model.layers.run_in(order)
    with pytest.raises(ValueError, match=r"has other sublayers than '\(sf\)3'"):
        plain.layers.run_in("(sf)2mf")


def test_the_mean_asks_alone_only_where_the_backend_can():
    model = build("par_bert", AutoModelForSequenceClassification, sublayer_order="sfmf", tail_query="mean")
    model.set_attn_implementation("flex_attention")
    with torch.no_grad(), pytest.raises(ValueError, match="choose 'eager' or 'sdpa', or tail_query='first'"):
        model(tokens(2, 5))


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("fmf", "put an s there\n  fmf\n   ^"),
        ("cm", "put an s there\n  cm\n   ^"),
        ("sf(mf)2sf", "'s' cannot follow.*\n  sfmfmfsf\n        ^"),
        ("smw", "'w' cannot follow"),
        ("dmd", "'d' cannot follow"),
    ],
)
def test_an_order_in_which_it_has_no_meaning_is_refused(order, message):
    with pytest.raises(ValueError, match=message.replace("^", r"\^")):
        expand(order)
