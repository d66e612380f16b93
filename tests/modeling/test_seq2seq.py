"""What encoder-decoders do beside what every family does: naive networks, two embeddings, the Seq2SeqTrainer."""

from collections import Counter

import pytest
import torch
from common import VOCAB, assert_same, backward, tokens
from common_naive import NaiveSeq2Seq, NaiveWithConvolutions
from common_seq2seq_training import collator, ragged_rows, trainer_arguments
from families import ENCODER_DECODERS, ROWS, every_row, labelled, padded
from safetensors import safe_open
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    Seq2SeqTrainer,
    TrainerCallback,
)

every_pair = every_row(*ENCODER_DECODERS)
every_family_of_pairs = pytest.mark.parametrize("family", ENCODER_DECODERS)


def naive(row, model):
    return (NaiveWithConvolutions if "kernel_sizes" in row.options else NaiveSeq2Seq)(model)


def close(found, expected, **options):
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5, **options)


# the naive networks have no parts of today
@every_row(*ENCODER_DECODERS, heads=lambda row: [] if "qk_norm" in row.options else [row.main_head], siblings=True)
@pytest.mark.parametrize("norm_position", ["pre", "post", "both"])
@pytest.mark.parametrize(
    "options",
    [
        {"position_embedding_type": "learned", "final_norm": True, "feed_forward_scale": 0.5},
        {"embedding_norm": True, "final_norm": False, "scale_embedding": False, "feed_forward_scale": 1.0},
        {"pre_attention_act": "tanh", "output_bias": True, "position_offset": 0, "tie_word_embeddings": True},
        {"share_encoder_decoder_embeddings": False, "encoder_vocab_size": 80, "norm_affine": False},
    ],
    ids=lambda options: "-".join(options),
)
@torch.no_grad()
def test_equals_a_naive_network_in_every_pair_of_orders(row, head, norm_position, options):
    if row.choices or "_" in row.orders[0][0]:
        options = {name: value for name, value in options.items() if name != "pre_attention_act"}
    source, target = tokens(1, 4), tokens(1, 3)
    asked = {"attn_implementation": "eager", "output_hidden_states": True, "output_attentions": True}
    for orders in row.all_orders:
        # rounding in single precision differs between processors by more than 1e-5 of the largest scores
        model = row.build(head, *orders, norm_position=norm_position, **options | asked).double()
        out, network = model(source, decoder_input_ids=target), naive(row, model)
        close(out.logits[0], network(source[0], target[0]), msg=lambda m, o=orders: f"{o}: {m}")
        for name, expected in [
            ("encoder_hidden_states", network.hidden_states["model.encoder"]),
            ("decoder_hidden_states", network.hidden_states["model.decoder"]),
            ("encoder_attentions", network.attentions["model.encoder.s"]),
            ("decoder_attentions", network.attentions["model.decoder.s"]),
            ("cross_attentions", network.attentions["model.decoder.c"]),
        ]:
            # eager attention has a softmax in 32 bits
            close([tensor[0] for tensor in out[name]], expected, check_dtype=False)
        assert torch.equal(out.encoder_hidden_states[-1], out.encoder_last_hidden_state)


@every_family_of_pairs
def test_gradients_equal_those_of_a_naive_network(family):
    source, target, labels = tokens(1, 4), tokens(1, 3), torch.tensor([7, 8, 9])
    for orders in ROWS[family].orders[:2]:
        model = ROWS[family].main(*orders)
        found = backward(model, model(source, decoder_input_ids=target, labels=labels[None]).loss)
        network = naive(ROWS[family], model)
        network.weights = dict(model.named_parameters(remove_duplicate=False))
        loss = torch.nn.functional.cross_entropy(network(source[0], target[0]), labels)
        assert_same(found, backward(model, loss), atol=1e-5, rtol=1e-4)


@every_pair
@torch.no_grad()
def test_reads_the_outputs_of_the_encoder_in_the_place_of_a_source(row):
    model = row.main()
    batch = padded(model)
    expected, encoded = model(**batch), model.get_encoder()(batch.pop("input_ids"), batch["attention_mask"])
    for outputs in (encoded, (encoded.last_hidden_state,)):
        found = model(encoder_outputs=outputs, **batch)
        torch.testing.assert_close(found.logits, expected.logits)
        assert torch.equal(found.encoder_last_hidden_state, encoded.last_hidden_state)


@every_pair
@torch.no_grad()
def test_target_rows_that_share_a_source_have_attention_weights_of_their_own(row):
    for orders in row.orders:
        model = row.main(*orders, attn_implementation="eager")
        batch = padded(model)
        mask, asked = batch["attention_mask"], {"output_attentions": True, "output_hidden_states": True}
        encoded = model.get_encoder()(batch["input_ids"], mask).last_hidden_state
        shared, repeated = (
            model(encoder_outputs=(rows,), attention_mask=seen, decoder_input_ids=tokens(6, 4), **asked)
            for rows, seen in ((encoded, mask), (encoded.repeat_interleave(2, 0), mask.repeat_interleave(2, 0)))
        )
        assert [w.shape for w in shared.cross_attentions] == [(6, 4, 4, 9)] * model.config.order.counts["c"]
        for name in ("logits", "cross_attentions", "decoder_attentions", "decoder_hidden_states"):
            close(shared[name], repeated[name])


@every_family_of_pairs
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.representatives(4)
@torch.no_grad()
def test_shares_and_ties_only_what_it_is_told_and_resizes_both_sides(family, share, tie, tmp_path):
    for head in (AutoModel, AutoModelForSeq2SeqLM):
        model_class = ROWS[family].heads[head]
        model = ROWS[family].build(head, share_encoder_decoder_embeddings=share, tie_word_embeddings=tie)
        folder, batch = tmp_path / model_class.__name__, padded(model)
        model.save_pretrained(folder)
        prefix = "" if head is AutoModel else "model."
        saved = {f"{prefix}encoder.embed_tokens.weight"}
        saved |= set() if share else {f"{prefix}decoder.embed_tokens.weight"}
        saved |= set() if tie or head is AutoModel else {"lm_head.weight"}
        with safe_open(folder / "model.safetensors", "pt") as file:
            assert {n for n in file.keys() if "embed_tokens" in n or "lm_head" in n} == saved  # noqa: SIM118
        loaded, before = head.from_pretrained(folder), model(**batch)[0]
        assert torch.equal(loaded(**batch)[0], before)
        for size in (VOCAB, VOCAB + 4, 72):
            if size > VOCAB:
                loaded.resize_token_embeddings(VOCAB + 4, pad_to_multiple_of=8 if size == 72 else None)
            source, target = (stack.embed_tokens.weight for _, stack in loaded.base_model.named_children())
            assert source.shape == target.shape == (size, 16)
            assert loaded.config.vocab_size == size
            assert (source is target) == share
            assert head is AutoModel or (loaded.lm_head.weight is target) == tie
            after, new = loaded(**batch)[0], torch.tensor([[size - 1]])
            assert after.shape[-1] == (16 if head is AutoModel else size)
            torch.testing.assert_close(after[..., : before.shape[-1]], before)
            assert loaded(new, decoder_input_ids=new)[0].isfinite().all()


@every_family_of_pairs
@torch.no_grad()
def test_source_and_target_may_have_vocabularies_of_their_own(family, tmp_path):
    row = ROWS[family]
    for head in (AutoModel, AutoModelForSeq2SeqLM):
        model_class = row.heads[head]
        model = row.build(head, encoder_vocab_size=90, share_encoder_decoder_embeddings=False)
        model.save_pretrained(tmp_path / model_class.__name__)
        loaded = head.from_pretrained(tmp_path / model_class.__name__)
        assert loaded.get_input_embeddings().weight.shape == (90, 16)
        batch = {"input_ids": torch.tensor([[89, 61]]), "decoder_input_ids": tokens(1, 3)}
        assert torch.equal(loaded(**batch)[0], model(**batch)[0])
        with pytest.raises(ValueError, match=f"decoder_input_ids must lie between 0 and {VOCAB - 1}"):
            loaded(tokens(1, 2), decoder_input_ids=torch.tensor([[89]]))
        with pytest.raises(ValueError, match="vocabularies of their own"):
            loaded.resize_token_embeddings(99)
    # a shared vocabulary may be named twice
    assert row.build(encoder_vocab_size=VOCAB).encoder.embed_tokens.num_embeddings == VOCAB


@every_family_of_pairs
def test_starts_targets_as_it_is_told(family):
    row = ROWS[family]
    for options, start in [({}, 2), ({"eos_token_id": [5, 2]}, 5), ({"decoder_start_token_id": 0}, 0)]:
        assert row.config(**options).decoder_start_token_id == start
    labels = torch.tensor([[-100, 5, -100, 6], [7, 8, -100, -100]])
    ids = row.main(decoder_start_token_id=0).prepare_decoder_input_ids_from_labels(labels)
    assert ids.tolist() == [[0, 1, 5, 1], [0, 7, 8, 1]]
    with pytest.raises(ValueError, match="decoder_start_token_id=None"):
        row.main(eos_token_id=None).prepare_decoder_input_ids_from_labels(labels)


@every_pair
def test_targets_are_labels_one_place_to_the_right(row):
    model = row.main().train()
    batch = labelled(model, AutoModelForSeq2SeqLM)
    del batch["decoder_input_ids"], batch["decoder_attention_mask"]
    start = torch.full((3, 1), model.config.decoder_start_token_id)
    ids = torch.cat([start, batch["labels"][:, :-1]], 1)
    losses = []
    for more in ({}, {"decoder_input_ids": ids.masked_fill(ids == -100, model.config.pad_token_id)}):
        torch.manual_seed(0)
        losses.append(model(**batch, **more).loss)
    torch.testing.assert_close(*losses)


@every_family_of_pairs
def test_looks_source_and_target_up_at_once_where_they_share_an_embedding(family):
    row = ROWS[family]
    for shared in (True, False):
        model, shapes = row.main(share_encoder_decoder_embeddings=shared).train(), Counter()
        encoders, decoders = (len(model.config.encoder_orders), len(model.config.paths)) if row.choices else (1, 1)
        for side in (model.model.encoder, model.model.decoder):
            side.embed_tokens.register_forward_hook(
                lambda _, args, out, shapes=shapes: shapes.update([tuple(out.shape[:-1])])
            )
        model(tokens(2, 9), labels=tokens(2, 5)).loss.backward()
        assert shapes == ({(2 * 9 + 2 * 5,): 1} if shared else {(2, 9): encoders, (2, 5): decoders})
        wrong = "input_ids and decoder_input_ids" if shared else "decoder_input_ids"
        with pytest.raises(ValueError, match=f"^{wrong} must lie between 0 and {VOCAB - 1}"):
            model(tokens(2, 9), labels=torch.full((2, 5), VOCAB))


@every_family_of_pairs
@pytest.mark.slow
@pytest.mark.representatives(1)
def test_the_seq2seq_trainer_trains_evaluates_and_predicts(family, tmp_path):
    model, rows = ROWS[family].build(AutoModelForSeq2SeqLM).train(), ragged_rows()
    losses = []

    class Losses(TrainerCallback):
        def on_log(self, args, state, control, logs, **kwargs):
            losses.extend([logs["loss"]] if "loss" in logs else [])

    options = {"per_device_train_batch_size": 4, "learning_rate": 0.01, "max_steps": 12, "logging_steps": 1}
    arguments = trainer_arguments(
        tmp_path, predict_with_generate=True, generation_max_length=6, generation_num_beams=2, **options
    )
    given = {"train_dataset": rows, "eval_dataset": rows, "data_collator": collator(model), "callbacks": [Losses()]}
    trainer = Seq2SeqTrainer(model, arguments, **given)
    trainer.train()
    assert losses[-1] < losses[0]
    batch = collator(model)(rows)
    batch.pop("decoder_input_ids")
    model.eval()
    with torch.no_grad():
        assert trainer.evaluate()["eval_loss"] == pytest.approx(model(**batch).loss.item(), rel=1e-4)
    batch.pop("labels")
    expected = model.generate(**batch, max_length=6, num_beams=2)
    predicted = trainer.predict(rows).predictions
    assert predicted[:, : expected.shape[1]].tolist() == expected.tolist()
    arguments.predict_with_generate = False
    assert trainer.predict(rows).predictions.shape == (8, 8, VOCAB)


def test_drops_out_in_training_only():
    model = ROWS["macaron_seq2seq"].main(dropout=0.1)
    batch = {"input_ids": tokens(2, 9), "labels": tokens(2, 7)}
    losses = [model.train(training)(**batch).loss.item() for training in (True, True, False, False)]
    assert losses[0] != losses[1]
    assert losses[2] == losses[3]


@every_family_of_pairs
@torch.no_grad()
def test_classifies_by_the_last_token_that_the_decoder_reads(family):
    model = ROWS[family].build(AutoModelForSequenceClassification, num_labels=3)
    batch = {name: rows for name, rows in padded(model).items() if not name.startswith("decoder")}
    found = model(**batch)
    for ids, real, logits in zip(batch["input_ids"], batch["attention_mask"].bool(), found.logits, strict=True):
        text = ids[real][None]
        states = model.model(text, decoder_input_ids=text).last_hidden_state[0, -1]
        close(logits, model.score.weight @ states + model.score.bias)
    options = {"encoder_vocab_size": VOCAB + 1, "share_encoder_decoder_embeddings": False}
    with pytest.raises(ValueError, match=f"^encoder_vocab_size={VOCAB + 1} is a vocabulary of its own"):
        ROWS[family].build(AutoModelForSequenceClassification, **options)
