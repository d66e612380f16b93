import pytest
import torch
from common import randomize, tokens
from common_fairseq import load_reference
from transformers import AutoModelForCausalLM

from sublayers import SandwichLMConfig, SandwichLMForCausalLM
from sublayers.convert.language_models import from_fairseq_lm

LENGTH = {"max_target_positions": 64}


@pytest.mark.parametrize("name", ["interleaved", "sandwich_n4k1", "sandwich_n4k2", "sandwich_n4k3", "random"])
@pytest.mark.parametrize("kind", ["adaptive", "tied_noadaptive"])
def test_equals_fairseqs_language_model(kind, name, tmp_path):
    weights, io, meta = load_reference(f"sandwich/lm_{kind}")
    heads = meta["args"]["decoder_attention_heads"]
    from_fairseq_lm(weights, heads, LENGTH, meta["patterns"][name])[0].save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    config, out = model.config, model(io["src_tokens"])
    assert (config.tie_word_embeddings, config.vocab_size) == (True, meta["dictionary"]["size"])
    log_probs, target = out.logits.log_softmax(-1), io["target"]
    if kind == "adaptive":
        assert (config.adaptive_cutoffs, config.adaptive_factor) == ([20, 40], 4)
        states = model.model(io["src_tokens"]).last_hidden_state
        torch.testing.assert_close(states, io[f"{name}.output"], atol=1e-5, rtol=0)
        torch.testing.assert_close(out.logits, io[f"{name}.log_probs"], atol=1e-5, rtol=0)
        labels = target.where(target != meta["dictionary"]["pad"], -100)
        loss = model(io["src_tokens"], labels=labels, shift_labels=labels, num_items_in_batch=1).loss
        torch.testing.assert_close(loss[None], io[f"{name}.adaptive_loss_sum"], atol=0, rtol=1e-6)
    else:
        torch.testing.assert_close(out.logits, io[f"{name}.output"], atol=1e-5, rtol=0)
    nll = -log_probs.gather(-1, target[..., None])[..., 0]
    torch.testing.assert_close(nll, io[f"{name}.nll"], atol=1e-5, rtol=0)


def adaptive_model(**overrides):
    sizes = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    adaptive = {"adaptive_cutoffs": [20, 40], "adaptive_factor": 2}
    offset = {"position_offset": 2, "max_position_embeddings": 64}
    return randomize(
        SandwichLMForCausalLM(SandwichLMConfig(sublayer_order="(sf)2", **sizes | adaptive | offset | overrides))
    )


def fairseq_names(model, single_head=False):
    """A model's weights as fairseq 0.9 keeps them."""
    state = {}
    for i in range(2):
        for ours, theirs in [("q_proj", "q_proj"), ("k_proj", "k_proj"), ("v_proj", "v_proj"), ("o_proj", "out_proj")]:
            linear = getattr(model.model.layers[2 * i].mixer, ours)
            state |= {f"decoder.layers.{i}.self_attn.{theirs}.{k}": v for k, v in linear.state_dict().items()}
        for name, module in [
            ("self_attn_layer_norm", model.model.layers[2 * i].norm),
            ("final_layer_norm", model.model.layers[2 * i + 1].norm),
            ("fc1", model.model.layers[2 * i + 1].mixer.fc1),
            ("fc2", model.model.layers[2 * i + 1].mixer.fc2),
        ]:
            state |= {f"decoder.layers.{i}.{name}.{k}": v for k, v in module.state_dict().items()}
    for i, band in enumerate(model.model.embed_tokens):
        state[f"decoder.embed_tokens.embeddings.{i}.0.weight"] = band.table
        state[f"decoder.embed_tokens.embeddings.{i}.1.weight"] = band.projection
    head = model.lm_head
    if single_head:
        state["decoder.adaptive_softmax.head.weight"] = torch.cat([head.words, head.bands.weight])
    else:
        state["decoder.adaptive_softmax.head.word_proj.weight"] = head.words
        state["decoder.adaptive_softmax.head.class_proj.weight"] = head.bands.weight
    for i, tail in enumerate(head.tails):
        # tied ones are those of the embedding, others those of a linear map from hidden to narrow
        tied = torch.equal(tail.projection, model.model.embed_tokens[i + 1].projection)
        matrix = tail.projection if tied else tail.projection.T
        state[f"decoder.adaptive_softmax.tail.{i}.0.weight"] = matrix
        state[f"decoder.adaptive_softmax.tail.{i}.2.weight"] = tail.table
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def test_converts_a_softmax_of_its_own():
    model = adaptive_model(tie_word_embeddings=False)
    options = {"adaptive_softmax_dropout": 0.35, "max_target_positions": 32}
    converted, _ = from_fairseq_lm(fairseq_names(model, single_head=True), 2, options=options)
    assert not converted.config.tie_word_embeddings
    assert (converted.config.adaptive_softmax_dropout, converted.config.max_position_embeddings) == (0.35, 32)
    assert torch.equal(converted(tokens(2, 9)).logits, model(tokens(2, 9)).logits)


@pytest.mark.parametrize("own", [("words",), ("tails.1.table",), ("tails.0.projection", "tails.1.projection")])
def test_converts_a_softmax_that_shares_some_weights(own):
    model = adaptive_model(tie_word_embeddings=False)
    shared = {"words": model.model.embed_tokens[0].table}
    for i, band in enumerate(list(model.model.embed_tokens)[1:]):
        shared |= {f"tails.{i}.{name}": weight for name, weight in band.named_parameters()}
    kept = {name: weight for name, weight in shared.items() if name not in own}
    model.lm_head.load_state_dict(kept, strict=False)
    converted, _ = from_fairseq_lm(fairseq_names(model), 2, LENGTH)
    assert not converted.config.tie_word_embeddings
    assert torch.equal(converted(tokens(2, 9)).logits, model(tokens(2, 9)).logits)


def test_refuses_what_it_has_no_place_for():
    state = fairseq_names(adaptive_model())
    tail = "decoder.adaptive_softmax.tail.1.2.weight"
    with pytest.raises(ValueError, match=r"the checkpoint has no decoder.adaptive_softmax.tail.1.2.weight"):
        from_fairseq_lm({name: tensor for name, tensor in state.items() if name != tail}, 2)
    with pytest.raises(ValueError, match=r"no place for .*tail.2.0.weight"):
        from_fairseq_lm(state | {"decoder.adaptive_softmax.tail.2.0.weight": torch.ones(16, 2)}, 2)
    # the softmax has other bands than the embedding
    with pytest.raises(ValueError, match=r"lm_head.tails.1.table of shape \(20, 4\) does not fit"):
        from_fairseq_lm(state | {tail: torch.ones(20, 4)}, 2)
