import argparse

import pytest
import torch
from common import tokens
from common_fairseq import WIDTH, load_reference, search_as_fairseq, translation_stacks
from safetensors.torch import save_file
from transformers import AutoModelForSeq2SeqLM

from sublayers.convert.iot import from_fairseq_iot
from sublayers.convert.seq2seq import from_fairseq_seq2seq
from sublayers.training.commands.convert import main

# Table 11 of the paper and its choices (A.3), whose numbers are the code's plus 1
TABLE_11 = {1: "SA ED FF", 2: "FF SA ED", 3: "ED FF SA", 4: "ED SA FF", 5: "SA FF ED", 6: "FF ED SA"}
CHOICES = ["46", "146", "1246", "12456", "123456"]
LETTERS = {"SA": "s", "ED": "c", "FF": "f"}
ORDERS = ["".join(LETTERS[unit] for unit in order.split()) for order in TABLE_11.values()]
LOSSES = pytest.mark.parametrize("name", ["loss_N2_postln", "loss_N4_postln", "loss_N6_postln"])
TERMS = {"loss": "loss", "cross_entropy": "old_loss", "sharpness": "kl_loss", "diversity": "diversity_loss"}


def convert_reference(name):
    """A converted model, and what the authors' code computed with the original."""
    weights, io, meta = load_reference(f"iot/{name}")
    return from_fairseq_iot(weights, meta["args"]["encoder_attention_heads"], options=meta["args"])[0], io


def batch(io):
    return {"input_ids": io["src_tokens"], "attention_mask": (io["src_tokens"] != 1).long()}


def labels(io):
    return io["target"].masked_fill(io["target"] == 1, -100)


def assert_close(actual, expected, **tolerance):
    torch.testing.assert_close(actual, expected, **{"atol": 1e-5, "rtol": 0} | tolerance)


def assert_terms(out, io, prefix):
    """Theirs are sums over the tokens."""
    for ours, theirs in TERMS.items():
        expected = (io[f"{prefix}.{theirs}"] / io["ntokens"]).float()[0]
        assert_close(getattr(out, ours).detach(), expected, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("encoder", range(2))
@torch.no_grad()
def test_every_pair_of_orders_scores_as_the_authors_code_does(encoder):
    model, io = convert_reference("orders_postln")
    assert (model.config.encoder_orders, model.config.decoder_orders) == (["sf", "fs"], ORDERS)
    encoded = model.get_encoder()(**batch(io), forced_encoder_order=encoder)
    assert_close(encoded.decoder_order_logits, io[f"order_logits.enc{encoder}"])
    assert_close(encoded.decoder_order_logits.softmax(-1), io[f"order_probs.enc{encoder}"])
    assert torch.equal(encoded.decoder_order, io[f"order_logits.enc{encoder}"].argmax(-1))
    states = io[f"encoder_out_TBC.enc{encoder}"].transpose(0, 1)
    real = io["target"] != 1
    for decoder in range(6):
        out = model(
            **batch(io),
            decoder_input_ids=io["prev_output_tokens"],
            forced_encoder_order=encoder,
            forced_decoder_order=decoder,
        )
        assert_close(out.encoder_last_hidden_state[io["src_tokens"] != 1], states[io["src_tokens"] != 1])
        assert_close(out.logits[real], io[f"logits.enc{encoder}.dec{decoder}"][real])
        assert out.decoder_order.tolist() == [decoder] * 4


@pytest.mark.parametrize("temperature", [20, 2, 0.5])
@LOSSES
def test_losses_and_gradients_are_the_authors(name, temperature, monkeypatch):
    model, io = convert_reference(name)
    prefix = f"tau{temperature}"
    model.train().temperature = float(temperature)

    def compute():
        noise = iter(io[f"{prefix}.gumbel_noise_fwd_B_N"])

        def gumbel_softmax(log_probabilities, tau, dim):
            return ((log_probabilities + next(noise)) / tau).softmax(dim)

        monkeypatch.setattr(torch.nn.functional, "gumbel_softmax", gumbel_softmax)
        out = model(**batch(io), labels=labels(io))
        assert next(noise, None) is None, "a pass has not drawn its noise"
        return out

    out = compute()
    assert_terms(out, io, prefix)
    (out.loss * io["ntokens"]).backward()
    encoder, decoder = model.model.encoder, model.model.decoder
    feed_forward = [layer for layer in decoder.layers if type(layer.mixer).__name__ == "FeedForward"]
    gradients = {
        "encoder.embed_order": encoder.decoder_order_predictor.weight.grad,
        "encoder.layers.0.fc1.weight": encoder.layers[1].mixer.fc1.weight.grad,
        "decoder.layers.1.final_layer_norm.weight": feed_forward[1].norm.weight.grad,
        "encoder.embed_tokens.weight": encoder.embed_tokens.weight.grad,
    }
    for key, gradient in gradients.items():
        expected = io[f"{prefix}.grad.{key}"]
        assert_close(gradient, expected, atol=1e-5 * expected.abs().max().item(), rtol=1e-5)
    model.config.label_smoothing = 0.0
    expected = (io[f"{prefix}.nll_loss"] / io["ntokens"]).float()[0]
    assert_close(compute().cross_entropy.detach(), expected, rtol=1e-5, atol=0)


@LOSSES
@torch.no_grad()
def test_the_choice_of_one_order_costs_what_the_authors_validation_says(name, monkeypatch):
    model, io = convert_reference(name)
    real = io["target"] != 1

    def argmax(log_probabilities, tau, dim):
        return torch.nn.functional.one_hot(log_probabilities.argmax(dim), log_probabilities.shape[dim]).float()

    monkeypatch.setattr(torch.nn.functional, "gumbel_softmax", argmax)
    # they validate like they train, but for the noise
    assert_terms(model.train()(**batch(io), labels=labels(io)), io, "valid_hard")
    model.eval().config.label_smoothing = 0.0
    costs = []
    # the authors have a pass for each decoder order
    for n in range(len(model.config.decoder_orders)):
        encoder = min(n, len(model.config.encoder_orders) - 1)
        forced = {"forced_encoder_order": encoder, "forced_decoder_order": n}
        logits = model(**batch(io), labels=labels(io), **forced).logits
        costs.append(-logits.log_softmax(-1).gather(-1, io["target"][..., None])[..., 0])
        assert_close(costs[n][real], io["nll_per_order_N_B_T"][n][real])
        encoded = model.get_encoder()(**batch(io), forced_encoder_order=encoder)
        assert_close(encoded.decoder_order_logits, io["order_logits_N_B_N"][n])
    if len(model.config.encoder_orders) == 1:
        out = model(**batch(io), labels=labels(io))
        chosen = io["order_logits_N_B_N"][0].argmax(-1)
        assert torch.equal(out.decoder_order, chosen)
        assert_close(out.loss, (io["valid_hard.nll_loss"] / io["ntokens"]).float()[0], rtol=1e-5, atol=0)
        assert_close(out.loss, torch.stack(costs)[chosen, range(4)][real].mean())


def search(model, io, **forced):
    return search_as_fairseq(model, 9, num_beams=5, length_penalty=1.0, **batch(io), **forced)


def test_each_sentence_finds_its_beams_in_its_own_order():
    model, io = convert_reference("generate_N3_postln")
    found = search(model, io)
    assert torch.equal(found.decoder_order, io["chosen_position"])
    assert len({*found.decoder_order.tolist()}) > 1, "the orders should be mixed, or the test shows little"
    assert torch.equal(found.sequences[:, 1:], io["hard.beam5.tokens"])
    assert_close(found.sequences_scores, io["hard.beam5.score"])
    assert_close(model.get_encoder()(**batch(io)).decoder_order_logits.detach(), io["order_logits"])
    for position, code in enumerate(io["decoder_orders"].tolist()):
        found = search(model, io, forced_decoder_order=position)
        expected = io[f"only_order{code}.beam5.tokens"]
        assert torch.equal(found.sequences[:, 1:], expected)
        assert_close(found.sequences_scores, io[f"only_order{code}.beam5.score"])


def make_checkpoint(number):
    """Random weights by the names of the authors' code."""
    return translation_stacks() | {"encoder.embed_order": torch.randn(number, WIDTH)}


def options(codes, **more):
    found = {"decoder_orders": codes, "decoder_max_order": len(codes), "encoder_max_order": 1, "kl": 0.02}
    found |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "gs_clamp": False, "clamp_value": 0.01}
    found |= {"diversity": 0.2, "label_smoothing": 0.15, "dropout": 0.25, "max_source_positions": 64}
    found |= {"gumbel_softmax_max": 10.0, "gumbel_softmax_min": 1.0, "gumbel_softmax_tau_r": 1e-4}
    return found | {"max_target_positions": 64} | more


@pytest.mark.parametrize("choice", CHOICES)
@torch.no_grad()
def test_decoder_orders_that_no_option_tells_are_the_papers(choice):
    state = make_checkpoint(len(choice))
    model, _ = from_fairseq_iot(state, 4, options={"encoder_max_order": 1})
    assert model.config.encoder_orders == ["sf"]
    assert model.config.decoder_orders == [ORDERS[int(number) - 1] for number in choice]
    assert torch.equal(model.model.encoder.decoder_order_predictor.weight, state.pop("encoder.embed_order"))
    inputs = {"input_ids": tokens(3, 9), "decoder_input_ids": tokens(3, 7)}
    for n, order in enumerate(model.config.decoder_orders):
        plain, _ = from_fairseq_seq2seq(state, 4, decoder_sublayer_order=f"({order})2")
        assert_close(model(**inputs, forced_decoder_order=n).logits, plain(**inputs).logits)


def test_a_checkpoint_file_becomes_a_folder_that_trains_as_released(tmp_path, capsys):
    path, state = tmp_path / "checkpoint_best.pt", make_checkpoint(4)
    namespace = argparse.Namespace(**options([4, 1, 2, 0], encoder_max_order=2))
    torch.save({"args": namespace, "model": state}, path)
    main([str(path), str(tmp_path / "ours")])
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert "encoder orders sf fs, decoder orders sfc fsc cfs scf" in capsys.readouterr().out
    config = model.config
    assert (config.model_type, config.num_attention_heads, config.max_position_embeddings) == ("iot_seq2seq", 4, 64)
    assert (config.encoder_orders, config.decoder_orders) == (["sf", "fs"], ["sfc", "fsc", "cfs", "scf"])
    assert (config.num_encoder_blocks, config.num_decoder_blocks, config.order_paths) == (2, 2, "paired")
    assert (config.shared_encoder, config.gumbel_per_pass, config.weighted_smoothing) == (False, True, False)
    assert (config.clamp_gumbel, config.min_order_probability) == (False, 0.01)
    assert (config.diversity_weight, config.sharpness_weight, config.label_smoothing) == (0.2, 0.02, 0.15)
    assert (config.dropout, config.predictor_dropout) == (0.25, 0.25)
    found = config.gumbel_temperature, config.gumbel_temperature_min, config.gumbel_temperature_decay
    assert found == (10.0, 1.0, 1e-4)
    # the modules stand in the sequence of the first order
    assert torch.equal(model.model.decoder.layers[4].mixer.fc1.weight, state["decoder.layers.1.fc1.weight"])
    norm = model.model.decoder.layers[5].norm
    assert torch.equal(norm.weight, state["decoder.layers.1.encoder_attn_layer_norm.weight"])


def test_one_order_needs_no_predictor():
    model, _ = from_fairseq_iot(make_checkpoint(1), 4, options=options([5]))
    assert model.config.decoder_orders == ["fcs"]
    assert not [name for name in model.state_dict() if "predictor" in name]


ONE = {"encoder_max_order": 1}
REFUSED = [
    (options([0, 3, 6]), "there is no decoder order 6; the codes are 0 to 5"),
    (options([0, -1, 3]), "there is no decoder order -1; the codes are 0 to 5"),
    (options([0, 3, 5], encoder_max_order=3), "there is no encoder order 2; the codes are 0 to 1"),
    (ONE | {"decoder_orders": [3, 5]}, r"chooses among 3 decoder orders, but \[3, 5\] are 2; give the codes"),
    (options([0, 3, 5], layer_wise_attention=True), "fairseq's option layer_wise_attention=True cannot be converted"),
]


@pytest.mark.parametrize(("told", "sentence"), REFUSED)
def test_options_that_do_not_fit_are_one_sentence(told, sentence):
    with pytest.raises(ValueError, match=sentence):
        from_fairseq_iot(make_checkpoint(3), 4, options=told)


def test_weights_that_do_not_fit_are_one_sentence(tmp_path):
    state = make_checkpoint(3)
    with pytest.raises(ValueError, match=r"chooses among 7 decoder orders, but \[\] are 0; give the codes"):
        from_fairseq_iot(make_checkpoint(7), 4, options=ONE)
    with pytest.raises(ValueError, match=r"no place for \['decoder.embed_order'\] in an encoder-decoder"):
        from_fairseq_iot(state | {"decoder.embed_order": torch.ones(3, 16)}, 4, options=ONE)
    save_file({name: tensor.clone() for name, tensor in state.items()}, tmp_path / "iot.safetensors")
    arguments = [str(tmp_path / "iot.safetensors"), str(tmp_path / "ours"), "--num_attention_heads", "4"]
    with pytest.raises(ValueError, match="leave out --decoder_sublayer_order; this source takes no order but its own"):
        main([*arguments, "--decoder_sublayer_order", "(scf)2"])
    with pytest.raises(
        ValueError, match=r"in how many orders its encoder runs; convert the authors' own \.pt file, or"
    ):
        main(arguments)
    assert not (tmp_path / "ours").exists()
