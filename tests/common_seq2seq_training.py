"""The contract of encoder-decoders: exact losses and gradients, whatever is padded, and the Seq2SeqTrainer."""

from collections import Counter

import pytest
import torch
from common import (
    EOS,
    PAD,
    VOCAB,
    assert_accumulates,
    assert_same,
    gradients,
    tokens,
    train_gradients,
    with_todays_parts,
)
from common_seq2seq import Seq2SeqContract
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

IGNORED = -100


def ragged_rows(number: int = 8) -> list[dict[str, list[int]]]:
    """Sources of 3 to 9 tokens with targets of 2 to 8."""
    sources, targets = tokens(number, 9).tolist(), tokens(number, 8).tolist()
    return [
        {"input_ids": source[: 3 + 5 * i % 7], "labels": target[: 2 + 3 * i % 7]}
        for i, (source, target) in enumerate(zip(sources, targets, strict=True))
    ]


def full_rows(number: int = 8) -> list[dict[str, torch.Tensor]]:
    """The same, padded; some labels at the start and in the middle of targets count nowhere."""
    rows = []
    for i, row in enumerate(ragged_rows(number)):
        source, labels = torch.full((9,), PAD), torch.full((8,), IGNORED)
        # every other source is padded on its left
        place = slice(-len(row["input_ids"]), None) if i % 2 else slice(len(row["input_ids"]))
        source[place] = torch.tensor(row["input_ids"])
        labels[: len(row["labels"])] = torch.tensor(row["labels"])
        if i in (1, 3, 4):
            labels[(0, 0, 0, 2, 1)[i]] = IGNORED
        rows.append({"input_ids": source, "attention_mask": (source != PAD).long(), "labels": labels})
    return rows


def stacked(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def shifted(labels: torch.Tensor) -> torch.Tensor:
    return torch.tensor([EOS, *(PAD if label == IGNORED else label for label in labels.tolist()[:-1])])


def naive_losses(model, rows: list[dict[str, torch.Tensor]], smoothing: float, **inputs) -> list[torch.Tensor]:
    """The smoothed loss of every label, from one row at a time without padding."""
    losses = []
    for row in rows:
        labels = row["labels"]
        length = max(i + 1 for i, label in enumerate(labels) if label != IGNORED)
        source = row["input_ids"][row["attention_mask"].bool()]
        given = {"decoder_input_ids": shifted(labels[:length])[None], "use_cache": False}
        logits = model(source[None], **given, **inputs).logits[0]
        for scores, label in zip(logits, labels[:length], strict=True):
            if label != IGNORED:
                log_probs = scores - scores.exp().sum().log()
                losses.append(-(1 - smoothing) * log_probs[label] - smoothing * log_probs.mean())
    return losses


def trainer_arguments(folder, **options) -> Seq2SeqTrainingArguments:
    settings = {"use_cpu": True, "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    return Seq2SeqTrainingArguments(output_dir=str(folder), **settings | options)


def collator(model) -> DataCollatorForSeq2Seq:
    words = {f"w{i}": i for i in range(VOCAB)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w3"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w1", bos_token="w0", eos_token="w2")
    return DataCollatorForSeq2Seq(tokenizer, model=model)


class Seq2SeqTrainingContract(Seq2SeqContract):
    """What holds for training on pairs."""

    # of a model with other terms in its loss, the options that leave them out
    cross_entropy_only: dict[str, float] = {}
    # of a class whose losses take long to write out
    trained_pairs: list[tuple[str, str]] = []

    def paths(self, model) -> list[dict[str, int]]:
        """What chooses each of the ways through the stacks that a training step takes."""
        return [{}]

    def passes(self, model) -> tuple[int, int]:
        """How often a training step runs the encoder and the decoder."""
        return 1, 1

    def naive_loss(self, model, rows, smoothing: float) -> torch.Tensor:
        """What training reduces."""
        losses = naive_losses(model, rows, smoothing)
        return sum(losses) / len(losses)

    @with_todays_parts
    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    @pytest.mark.representatives(2)
    def test_loss_and_gradients_are_those_of_rows_without_padding(self, smoothing):
        rows = full_rows(5)
        batch = stacked(rows)
        labelled = batch["labels"] != IGNORED
        for orders in self.trained_pairs or self.all_pairs:
            model = self.translator(*orders, label_smoothing=smoothing)
            losses = naive_losses(model, rows, smoothing)
            assert len(losses) == labelled.sum()
            full = model(**batch)
            assert full.logits.shape == (5, 8, VOCAB)
            torch.testing.assert_close(full.loss, sum(losses) / len(losses))
            torch.testing.assert_close(model(**batch, num_items_in_batch=100).loss, sum(losses) / 100)
            expected = self.naive_loss(model, rows, smoothing)
            expected.backward()
            naive_gradients = gradients(model)
            model.train()
            # whoever asks for all states has nothing left out
            for options in ({}, {"output_hidden_states": True}):
                model.zero_grad()
                out = model(**batch, **options)
                torch.testing.assert_close(out.loss, expected, atol=1e-5, rtol=1e-5)
                out.loss.backward()
                assert_same(gradients(model), naive_gradients, atol=1e-5, rtol=1e-4)

    def test_targets_may_be_masked_and_given_beside_their_labels(self):
        batch = stacked(full_rows())
        ids = torch.stack([shifted(labels) for labels in batch["labels"]])
        mask = torch.ones_like(ids)
        # padded on the left, where nothing is labelled
        ids[4, :2], mask[4, :2], batch["labels"][4, :2] = PAD, 0, IGNORED
        for orders in self.all_pairs:
            model = self.translator(*orders)
            given = batch | {"decoder_input_ids": ids, "decoder_attention_mask": mask}
            expected = [model(**given, **path).logits[batch["labels"] != IGNORED] for path in self.paths(model)]
            out = model.train()(**given)
            actual = out.labelled_logits
            assert out.logits is None
            torch.testing.assert_close(actual, torch.stack(expected).view_as(actual), atol=1e-5, rtol=1e-5)

    def test_a_batch_without_a_label_has_no_loss(self):
        model = self.translator(**self.cross_entropy_only).train()
        batch = stacked(full_rows())
        batch["labels"][:] = IGNORED
        loss = model(**batch).loss
        loss.backward()
        assert loss == 0
        assert all(not gradient.any() for gradient in gradients(model).values())

    @with_todays_parts
    def test_no_sublayer_runs_on_padding(self):
        batch = stacked(full_rows())
        real = int(batch["attention_mask"].sum())
        wanted = sum(len(row["labels"]) for row in ragged_rows())
        for orders in self.all_pairs:
            model = self.translator(*orders).train()
            rows: dict[str, list[int]] = {"encoder": [], "decoder": [], "keys": []}
            for name, module in model.model.named_modules():
                side, _, part = name.partition(".layers.")
                if part.endswith("mixer"):
                    module.register_forward_hook(lambda _, args, out, to=rows[side]: to.append(out[0][..., 0].numel()))
                if side == "decoder" and part.endswith("k_proj") and orders[1][int(part.split(".")[0])] == "c":
                    module.register_forward_hook(lambda _, args, out, to=rows["keys"]: to.append(out[..., 0].numel()))
            model(**batch)
            encoders, decoders = self.passes(model)
            assert rows["encoder"] == [real] * model.config.num_encoder_sublayers * encoders
            assert rows["decoder"] == [wanted] * model.config.num_decoder_sublayers * decoders
            assert rows["keys"] == [real] * orders[1].count("c") * encoders

    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    @pytest.mark.slow
    @pytest.mark.representatives(1)
    def test_gradient_accumulation_is_exact(self, smoothing, tmp_path):
        model, rows = self.translator(label_smoothing=smoothing, **self.cross_entropy_only), full_rows(4)
        self.naive_loss(model, rows, smoothing).backward()
        assert_accumulates(model, rows, tmp_path, gradients(model))

    def test_the_trainers_label_smoothing_smooths_the_same(self, tmp_path):
        model, rows = self.translator(), ragged_rows()
        padded = [row | {"attention_mask": torch.ones(len(row["input_ids"]))} for row in rows]
        losses = naive_losses(
            model, [{name: torch.as_tensor(value) for name, value in row.items()} for row in padded], 0.1
        )
        (sum(losses) / len(losses)).backward()
        options = {"per_device_train_batch_size": 8, "label_smoothing_factor": 0.1}
        smoothed = train_gradients(model, rows, tmp_path, data_collator=collator(model), **options)
        assert_same(smoothed, gradients(model), atol=1e-5, rtol=1e-4)

    @pytest.mark.slow
    def test_the_seq2seq_trainer_trains_evaluates_and_predicts(self, tmp_path):
        model, rows = self.model(AutoModelForSeq2SeqLM).train(), ragged_rows()
        losses = []

        class Losses(TrainerCallback):
            def on_log(self, args, state, control, logs, **kwargs):
                losses.extend([logs["loss"]] if "loss" in logs else [])

        options = {"per_device_train_batch_size": 4, "learning_rate": 0.01, "max_steps": 12, "logging_steps": 1}
        arguments = trainer_arguments(
            tmp_path, predict_with_generate=True, generation_max_length=6, generation_num_beams=2, **options
        )
        trainer = Seq2SeqTrainer(
            model, arguments, train_dataset=rows, eval_dataset=rows, data_collator=collator(model), callbacks=[Losses()]
        )
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

    def test_looks_source_and_target_up_at_once_where_they_share_an_embedding(self):
        for shared in (True, False):
            model = self.model(AutoModelForSeq2SeqLM, share_encoder_decoder_embeddings=shared).train()
            shapes, (encoders, decoders) = Counter(), self.passes(model)
            for side in (model.model.encoder, model.model.decoder):
                side.embed_tokens.register_forward_hook(
                    lambda _, args, out, shapes=shapes: shapes.update([tuple(out.shape[:-1])])
                )
            model(tokens(2, 9), labels=tokens(2, 5)).loss.backward()
            assert shapes == ({(2 * 9 + 2 * 5,): 1} if shared else {(2, 9): encoders, (2, 5): decoders})
            wrong = "input_ids and decoder_input_ids" if shared else "decoder_input_ids"
            with pytest.raises(ValueError, match=f"^{wrong} must lie between 0 and {VOCAB - 1}"):
                model(tokens(2, 9), labels=torch.full((2, 5), VOCAB))
