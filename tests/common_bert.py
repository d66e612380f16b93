"""The contract of the BERT-like families: padding, heads that compute only what they read, exact losses."""

import random

import pytest
import torch
from common import (
    ALL_FEED_FORWARD,
    ModelContract,
    assert_accumulates,
    assert_same,
    gradients,
    token_ids,
    tokens,
    with_todays_parts,
)
from common_bert_naive import LENGTHS, batch_of, examples, naive_loss, naive_network, rows_of, run_alone, unlabelled
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForNextSentencePrediction,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from sublayers import expand

HEADS = [
    AutoModelForPreTraining,
    AutoModelForMaskedLM,
    AutoModelForNextSentencePrediction,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoModelForQuestionAnswering,
    AutoModelForMultipleChoice,
]
every_head = pytest.mark.parametrize("head", HEADS)
# one that ends with attention, one with a tail, one whose tail attends, one without attention
SOME_ORDERS = ["ffsfs", "s2(sf)2f2", "sf(mf)2", ALL_FEED_FORWARD]


def assert_same_outputs(actual, expected, mask: torch.Tensor):
    """Compare outputs, those of tokens only where the mask shows some."""
    for name, tensor in expected.items():
        of_tokens = tensor.shape[:2] == mask.shape
        a, b = (actual[name][mask.bool()], tensor[mask.bool()]) if of_tokens else (actual[name], tensor)
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4, equal_nan=True, msg=lambda m, name=name: f"{name}: {m}")


class BertContract(ModelContract):
    """What holds for an encoder that looks both ways, and for each of its heads."""

    @pytest.mark.parametrize("seed", range(14))
    def test_equals_a_naive_network_for_any_options_in_any_order(self, seed):
        draw = random.Random(seed)
        options = {
            "norm_position": draw.choice(["pre", "post", "both"]),
            "norm_affine": draw.random() < 0.5,
            "final_norm": draw.random() < 0.5,
            "feed_forward_scale": draw.choice([0.5, 1.0]),
            "pre_attention_act": draw.choice(["relu", None]),
            "hidden_act": draw.choice(["relu", "gelu"]),
            "embedding_norm": draw.random() < 0.5,
            "position_embedding_type": draw.choice(["learned", "sinusoidal"]),
            "position_offset": draw.choice([0, 3]),
            "scale_embedding": draw.random() < 0.5,
            "head_type": draw.choice(["bert", "macaron"]),
            "untrained_first_segment": draw.random() < 0.5,
            "pooler_act": draw.choice(["tanh", "relu", "gelu"]),
            "attn_logit_softcapping": draw.choice([None, 1.5]),
        }
        order = (*self.attentive, ALL_FEED_FORWARD)[seed % 9]
        model = self.model(AutoModelForPreTraining, order, **options)
        ids, segments = tokens(1, 5), torch.tensor([[0, 0, 1, 1, 0]])
        expected = naive_network(model, ids[0], segments[0])
        actual = dict(model(ids, token_type_ids=segments, output_hidden_states=True))
        actual["hidden_states"] = torch.stack(actual["hidden_states"], dim=1)
        actual["pooler_output"] = model.model(ids, token_type_ids=segments).pooler_output
        for name, tensor in expected.items():
            torch.testing.assert_close(actual[name][0], tensor, atol=1e-4, rtol=1e-4, msg=f"{name} with {options}")

    @with_todays_parts
    @pytest.mark.parametrize("side", ["right", "left", "both"])
    @pytest.mark.parametrize("head", [AutoModel, *HEADS])
    @pytest.mark.representatives(16)
    def test_padding_changes_no_output(self, head, side):
        for order in SOME_ORDERS:
            model = self.model(head, order)
            rows = examples(head)
            batch = unlabelled(batch_of(rows, side))
            mask = batch["attention_mask"].bool()
            together = model(**batch)
            for i, alone in enumerate(run_alone(model, rows)):
                for name in together.keys():  # noqa: SIM118
                    actual, expected = together[name][i], alone[name][0]
                    if actual.shape[:1] == mask.shape[1:]:
                        actual = actual[mask[i]]
                    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)
            if head is AutoModel:
                padding = model.norm(torch.zeros(16)).expand(int((~mask).sum()), 16)
                assert torch.equal(together.last_hidden_state[~mask], padding)
            if head is AutoModelForQuestionAnswering:
                for logits in (together.start_logits, together.end_logits):
                    assert (logits[~mask] == torch.finfo(logits.dtype).min).all()

    @pytest.mark.parametrize("num_items", [None, 100])
    @pytest.mark.parametrize("side", ["right", "left", "both"])
    @every_head
    @pytest.mark.representatives(12)
    def test_loss_and_gradients_are_those_of_the_rows_alone(self, head, side, num_items):
        if num_items and head is AutoModelForQuestionAnswering:
            pytest.skip("without `labels`, the Trainer gives no number of items")
        for order in SOME_ORDERS:
            model = self.model(head, order).train()
            rows = examples(head)
            expected = naive_loss(rows, run_alone(model, rows), num_items)
            expected.backward()
            expected_gradients = gradients(model)
            model.zero_grad()
            loss = model(**batch_of(rows, side), num_items_in_batch=num_items).loss
            loss.backward()
            torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
            assert_same(gradients(model), expected_gradients, atol=1e-4, rtol=1e-3)

    @with_todays_parts
    @pytest.mark.parametrize("training", [True, False])
    @every_head
    @pytest.mark.representatives(8)
    def test_computes_only_what_is_read(self, head, training):
        for order in (*self.attentive, ALL_FEED_FORWARD):
            model = self.model(head, order).train(training)
            rows = examples(head)
            counted = []
            for path, module in model.named_modules():
                name = path.split(".")[-1]
                if name in ("q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2", "lm_head"):
                    module.register_forward_hook(
                        lambda _, args, out, name=name, counted=counted: counted.append((name, out[..., 0].numel()))
                    )
            model(**batch_of(rows))
            real = sum(row["input_ids"].numel() for row in rows)
            labelled = [row["labels"].flatten() != -100 for row in rows if "labels" in row]
            read = {
                # the first token, which the pooler reads, and others with a label
                AutoModelForPreTraining: len(rows) + sum(int(row[1:].sum()) for row in labelled),
                AutoModelForMaskedLM: sum(int(row.sum()) for row in labelled),
                AutoModelForTokenClassification: real,
                AutoModelForQuestionAnswering: real,
                AutoModelForMultipleChoice: 2 * len(rows),
            }.get(head, len(rows))
            letters = expand(model.config.sublayer_order)
            reads_one = head in (AutoModelForSequenceClassification, AutoModelForMultipleChoice)
            reads_one = reads_one or head is AutoModelForNextSentencePrediction
            texts = [text for row in rows for text in row["input_ids"].reshape(-1, row["input_ids"].shape[-1])]
            expected, inputs = [], real
            for i, letter in enumerate(letters):
                asked = real if letters[i:].strip("f") else read
                if "m" in letters:
                    asked = real if i < letters.index("m") else read
                elif letter in "sw" and not letters[i + 1 :].strip("f"):
                    asked = read
                elif reads_one and "s" not in letters[i + (letter == "s") :]:
                    # each window reaches one token further than the next, from the first token on
                    windows = letters[i + 1 :].count("w")
                    asked = sum(min(len(text), 1 + windows) for text in texts)
                seen = real if letter == "m" else inputs
                attention = [("q_proj", asked), ("k_proj", seen), ("v_proj", seen), ("o_proj", asked)]
                expected += [("fc1", asked), ("fc2", asked)] if letter == "f" else attention
                inputs = asked
            if head in (AutoModelForPreTraining, AutoModelForMaskedLM):
                expected.append(("lm_head", sum(int(row.sum()) for row in labelled)))
            assert counted == expected, order

    @with_todays_parts
    @every_head
    def test_recording_all_states_changes_no_result(self, head):
        for order in SOME_ORDERS:
            model = self.model(head, order, attn_implementation="eager")
            batch = batch_of(examples(head))
            expected = model(**batch)
            expected.loss.backward()
            expected_gradients = gradients(model)
            model.zero_grad()
            actual = model(**batch, output_hidden_states=True, output_attentions=True)
            actual.loss.backward()
            texts, length = batch["input_ids"].flatten(0, -2).shape
            assert [*map(len, actual.hidden_states)] == [texts] * (model.config.num_sublayers + 1)
            assert all(states.shape[1] == length for states in actual.hidden_states)
            assert [w.shape for w in actual.attentions] == [(texts, 4, length, length)] * sum(
                map(expand(order).count, "sm")
            )
            assert_same_outputs(actual, expected, batch["attention_mask"])
            assert_same(gradients(model), expected_gradients, atol=1e-4, rtol=1e-3)

    def test_answers_that_were_cut_off_do_not_count(self):
        model = self.model(AutoModelForQuestionAnswering)
        batch = unlabelled(batch_of(examples(AutoModelForQuestionAnswering, [5, 5, 5])))
        out = model(**batch, start_positions=torch.tensor([5, 1, -1]), end_positions=torch.tensor([0, 1, 5]))
        start, end = out.start_logits.log_softmax(-1), out.end_logits.log_softmax(-1)
        torch.testing.assert_close(out.loss, -(start[1, 1] + (end[0, 0] + end[1, 1]) / 2) / 2)

    @every_head
    @pytest.mark.slow
    @pytest.mark.representatives(2)
    def test_gradient_accumulation_is_exact(self, head, tmp_path):
        model = self.model(head)
        rows = examples(head, LENGTHS)
        labels = torch.cat([row["labels"].flatten() for row in rows]) if "labels" in rows[0] else torch.zeros(8)
        naive_loss(rows, run_alone(model, rows), int((labels != -100).sum())).backward()
        assert_accumulates(model, rows_of(batch_of(rows)), tmp_path, gradients(model), atol=1e-4, rtol=1e-3)

    @pytest.mark.parametrize(
        ("problem_type", "told", "labels", "naive"),
        [
            ("regression", False, torch.linspace(-1, 2, 8), lambda x, y: (x[:, 0] - y).square()),
            (
                "multi_label_classification",
                False,
                torch.tensor([[1.0, 0, 1], [0, 0, 1]] * 4),
                lambda x, y: -(y * x.sigmoid().log() + (1 - y) * (-x).sigmoid().log()),
            ),
            (
                "single_label_classification",
                False,
                torch.tensor([0, 2, 1, 1] * 2),
                lambda x, y: -x.log_softmax(-1)[torch.arange(8), y],
            ),
            ("regression", True, torch.rand(8, 3), lambda x, y: (x - y).square()),
            (
                "multi_label_classification",
                True,
                torch.tensor([1.0, 0] * 4),
                lambda x, y: ((1 - 2 * y) * x[:, 0]).exp().log1p(),
            ),
        ],
        ids=["regression", "multi-label", "single-label", "regressions", "one-logit"],
    )
    @pytest.mark.slow
    @pytest.mark.representatives(3)
    def test_a_classifier_accumulates_every_kind_of_label_exactly(self, problem_type, told, labels, naive, tmp_path):
        # what it is not told, it reads off the labels
        options = {"num_labels": labels[0].numel() if labels.is_floating_point() else 3}
        options |= {"problem_type": problem_type} if told else {}
        model = self.model(AutoModelForSequenceClassification, **options)
        rows = examples(AutoModelForSequenceClassification, LENGTHS)
        batch = batch_of(rows) | {"labels": labels}
        loss = naive(torch.cat([out.logits for out in run_alone(model, rows)]), labels).mean()
        torch.testing.assert_close(model(**batch).loss, loss)
        assert model.config.problem_type == problem_type
        loss.backward()
        assert_accumulates(model, rows_of(batch), tmp_path, gradients(model), atol=1e-4, rtol=1e-3)

    @every_head
    @pytest.mark.slow
    @pytest.mark.representatives(2)
    def test_compiles_in_one_graph(self, head):
        model = self.model(head, "fsf").train()
        batch = batch_of(examples(head))
        expected = model(**batch).loss
        expected.backward()
        expected_gradients = gradients(model)
        model.zero_grad()
        loss = torch.compile(model, fullgraph=True, backend="aot_eager")(**batch).loss
        loss.backward()
        torch.compiler.reset()
        torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
        assert_same(gradients(model), expected_gradients, atol=1e-4, rtol=1e-3)

    @with_todays_parts
    @pytest.mark.parametrize("head", HEADS[:2])
    def test_given_labels_scores_only_labelled_words(self, head):
        rows = examples(head)
        batch = batch_of(rows)
        labelled = batch["labels"] != -100
        for order in SOME_ORDERS:
            model = self.model(head, order)
            full = model(**unlabelled(batch))[0]
            logits = model(**batch)[1]
            torch.testing.assert_close(logits[labelled], full[labelled], atol=1e-5, rtol=1e-4)
            assert logits[~labelled].isnan().all()
            out = model.train()(**batch)
            assert out.get("logits", out.get("prediction_logits")) is None
            torch.testing.assert_close(out.labelled_logits, full[labelled], atol=1e-5, rtol=1e-4)
            everywhere = model.eval()(**batch | {"labels": token_ids(head, *labelled.shape)})[1]
            real = batch["attention_mask"].bool()
            torch.testing.assert_close(everywhere[real], full[real], atol=1e-5, rtol=1e-4)

    @pytest.mark.parametrize("head", HEADS[:2])
    def test_labels_on_padding_are_read(self, head):
        for order in SOME_ORDERS:
            model = self.model(head, order)
            batch = batch_of(examples(head))
            assert not batch["attention_mask"].all()
            batch["labels"] = token_ids(head, *batch["labels"].shape)
            expected = model(**batch, output_hidden_states=True)
            expected.loss.backward()
            expected_gradients = gradients(model)
            model.zero_grad()
            actual = model(**batch)
            actual.loss.backward()
            torch.testing.assert_close(actual.loss, expected.loss, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(actual[1], expected[1], atol=1e-5, rtol=1e-4)
            assert_same(gradients(model), expected_gradients, atol=1e-4, rtol=1e-3)

    @pytest.mark.parametrize("padded", [True, False])
    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("head", [*HEADS[:2], AutoModelForTokenClassification])
    def test_without_any_label_the_loss_is_zero(self, head, training, padded):
        for order in SOME_ORDERS:
            model = self.model(head, order).train(training)
            batch = batch_of(examples(head, [5, 3 if padded else 5]))
            batch = unlabelled(batch) | {"labels": torch.full((2, 5), -100)}
            loss = model(**batch).loss
            loss.backward()
            assert loss == 0
            assert all((gradient == 0).all() for gradient in gradients(model).values())
