"""Losses and gradients of every head: those of texts without padding, alone and accumulated."""

import pytest
import torch
from common import VOCAB, assert_accumulates, assert_same, backward, tokens, train_gradients
from common_seq2seq_training import collator, rows_of
from families import ENCODER_DECODERS, LABELS_OF_TOKENS, ROWS, every_row, labelled, padded, texts
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)


def trained(row):
    """Heads with a loss that is not of several orders, which has tests of its own."""
    return [head for head in row.heads if head is not AutoModel and row.choices != (2, 3)]


def of_tokens(row):
    """Those with a loss that is zero without labels: where a softmax is not adaptive, transformers' is not a number."""
    is_adaptive = "adaptive_cutoffs" in row.options
    return [
        head for head in row.heads if head in LABELS_OF_TOKENS and (head is not AutoModelForCausalLM or is_adaptive)
    ]


def naive_loss(model, head, batch, num_items=None, smoothing=0.0) -> torch.Tensor:
    """The loss spelled out from the outputs of each text alone; to record all states, everything is computed."""

    def nll(scores, label):
        log_probs = scores.log_softmax(-1)
        return -(1 - smoothing) * log_probs[label] - smoothing * log_probs.mean()

    alone = [model(**text, output_hidden_states=True) for text in texts(batch)]
    if head is AutoModelForMultipleChoice:
        scores = torch.cat([out.logits for out in alone]).view(3, 2)
        return sum(map(nll, scores, batch["labels"])) / (num_items or 3)
    words, rows, mask = [], [], batch.get("decoder_attention_mask", batch["attention_mask"]).bool()
    for i, (out, real) in enumerate(zip(alone, mask, strict=True)):
        if head in LABELS_OF_TOKENS:
            scores, labels = out.get("prediction_logits", out.get("logits"))[0], batch["labels"][i][real]
            scores, labels = (scores[:-1], labels[1:]) if head is AutoModelForCausalLM else (scores, labels)
            mine = [nll(row, label) for row, label in zip(scores, labels, strict=True) if label != -100]
            words += mine
            if head is AutoModelForPreTraining:
                pair = nll(out.seq_relationship_logits[0], batch["next_sentence_label"][i])
                rows.append(pair * (len(mine) if num_items else 1))
        elif head is AutoModelForQuestionAnswering:
            places = [(side, real[: batch[f"{side}_positions"][i]].sum()) for side in ("start", "end")]
            rows.append(sum(nll(out[f"{side}_logits"][0], place) for side, place in places) / 2)
        else:
            rows.append(nll(out.logits[0], batch["labels"][i]))
    return sum(sum(group) / (num_items or len(group)) for group in (words, rows) if group)


@every_row(heads=trained)
@pytest.mark.representatives(16)
def test_loss_and_gradients_are_those_of_texts_alone(row, head):
    for orders in row.all_orders if head is row.main_head else row.some_orders:
        model = row.build(head, *orders)
        batch = labelled(model, head)
        for num_items, smoothing in ((None, 0.0), (100, 0.1)):
            options = {} if head is AutoModelForQuestionAnswering else {"num_items_in_batch": num_items}
            smoothed = {"smoothing": smoothing} if head is AutoModelForSeq2SeqLM else {}
            if smoothed:
                model.config.label_smoothing = smoothing
            expected = naive_loss(model, head, batch, *options.values(), **smoothed)
            wanted = backward(model, expected)
            for training in (True, False):
                loss = model.train(training)(**batch, **options).loss
                torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
                assert_same(backward(model, loss), wanted, atol=1e-4, rtol=1e-3)


@every_row(heads=trained)
@pytest.mark.slow
@pytest.mark.representatives(8)
def test_gradient_accumulation_is_exact(row, head, tmp_path):
    model = row.build(head)
    batch = labelled(model, head)
    number = int((batch["labels"] != -100).sum()) if "labels" in batch else 3
    expected = backward(model, naive_loss(model, head, batch, number))
    # twice the rows, and twice as many labels
    assert_accumulates(model, rows_of(batch) * 2, tmp_path, expected, atol=1e-4, rtol=1e-3)


LABELS = {
    "regression": (torch.linspace(-1, 2, 6), lambda x, y: (x[:, 0] - y).square()),
    "multi_label_classification": (
        torch.tensor([[1.0, 0, 1], [0, 0, 1]] * 3),
        lambda x, y: -(y * x.sigmoid().log() + (1 - y) * (-x).sigmoid().log()),
    ),
    "single_label_classification": (
        torch.tensor([0, 2, 1, 1, 0, 2]),
        lambda x, y: -x.log_softmax(-1)[torch.arange(6), y],
    ),
    "regression of three": (torch.rand(6, 3), lambda x, y: (x - y).square()),
    "multi_label_classification of one": (
        torch.tensor([1.0, 0] * 3),
        lambda x, y: ((1 - 2 * y) * x[:, 0]).exp().log1p(),
    ),
}


@every_row("par_bert", "sandwich_lm", "par_transformer_xl", heads=lambda row: [AutoModelForSequenceClassification])
@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.slow
@pytest.mark.representatives(3)
def test_a_classifier_accumulates_every_kind_of_label_exactly(row, head, kind, tmp_path):
    labels, naive = LABELS[kind]
    # what it is not told, it reads off the labels
    problem_type, _, told = kind.partition(" of ")
    options = {"num_labels": labels[0].numel() if labels.is_floating_point() else 3}
    model = row.build(head, **options | ({"problem_type": problem_type} if told else {}))
    batch = {name: torch.cat([rows, rows]) for name, rows in padded(model, head).items()}
    loss = naive(torch.cat([model(**text).logits for text in texts(batch)]), labels).mean()
    batch["labels"] = labels
    torch.testing.assert_close(model(**batch).loss, loss)
    assert model.config.problem_type == problem_type
    assert_accumulates(model, rows_of(batch), tmp_path, backward(model, loss), atol=1e-4, rtol=1e-3)


@every_row(heads=of_tokens)
@pytest.mark.representatives(8)
def test_without_any_label_the_loss_is_zero(row, head):
    options = {"diversity_weight": 0.0, "sharpness_weight": 0.0} if row.family == "iot_seq2seq" else {}
    for orders in row.some_orders:
        for training in (True, False):
            model = row.build(head, *orders, **options).train(training)
            batch = labelled(model, head)
            batch.pop("next_sentence_label", None)
            loss = model(**batch | {"labels": torch.full((3, 9), -100)}).loss
            assert loss == 0
            assert not any(gradient.any() for gradient in backward(model, loss).values())


@pytest.mark.parametrize("name", ["sandwich_lm", "sandwich_seq2seq", "iot_seq2seq of one order"])
def test_the_trainers_label_smoothing_smooths_the_same(name, tmp_path):
    model, ids = ROWS[name].main(), tokens(4, 8)
    rows = [{"input_ids": row, "labels": row} for row in ids]
    options = {"per_device_train_batch_size": 4, "label_smoothing_factor": 0.1}
    if model.config.is_encoder_decoder:
        options["data_collator"] = collator(model)
        rows = [{name: value.tolist() for name, value in row.items()} | {"attention_mask": [1] * 8} for row in rows]
        logits, labels = model(ids, labels=ids).logits, ids
    else:
        logits, labels = model(ids).logits[:, :-1], ids[:, 1:]
    target = torch.nn.functional.one_hot(labels, VOCAB) * 0.9 + 0.1 / VOCAB
    expected = backward(model, -(logits.log_softmax(-1) * target).sum(-1).mean())
    assert_same(train_gradients(model, rows, tmp_path, **options), expected, atol=1e-5, rtol=1e-4)


@every_row(*ENCODER_DECODERS)
def test_no_sublayer_runs_on_padding(row):
    for orders in row.some_orders:
        model = row.main(*orders).train()
        batch = labelled(model, row.main_head)
        # nothing after the last label is read
        wanted = sum(int(labels.ne(-100).nonzero().max()) + 1 for labels in batch["labels"])
        real, source = int(batch["attention_mask"].sum()), ("input_ids", "attention_mask", "labels")
        rows: dict[str, list[int]] = {"encoder": [], "decoder": [], "keys": []}
        letters = model.model.decoder.layers.letters
        for name, module in model.model.named_modules():
            side, _, part = name.partition(".layers.")
            if part.endswith("mixer"):
                module.register_forward_hook(lambda _, args, out, to=rows[side]: to.append(out[0][..., 0].numel()))
            if side == "decoder" and part.endswith("k_proj") and letters[int(part.split(".")[0])] == "c":
                module.register_forward_hook(lambda _, args, out, to=rows["keys"]: to.append(out[..., 0].numel()))
        model(**{name: batch[name] for name in source})
        encoders, decoders = (len(model.config.encoder_orders), len(model.config.paths)) if row.choices else (1, 1)
        assert rows["encoder"] == [real] * model.config.num_encoder_sublayers * encoders
        assert rows["decoder"] == [wanted] * model.config.num_decoder_sublayers * decoders
        assert rows["keys"] == [real] * model.config.order.counts["c"] * encoders
