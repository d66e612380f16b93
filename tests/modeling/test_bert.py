"""What the BERT-like families do beside what every family does: a naive network, and heads that read few tokens."""

import random

import pytest
import torch
from common import backward, tokens
from common_naive import ACTIVATIONS, NaiveNetwork
from families import BERTS, ROWS, SHORT, every_row, labelled, unlabelled
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForNextSentencePrediction,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
)

from sublayers import MacaronBertForPreTraining

WORDS = [AutoModelForMaskedLM, AutoModelForPreTraining]
READS_ONE = [AutoModelForSequenceClassification, AutoModelForMultipleChoice, AutoModelForNextSentencePrediction]
every_head_of_words = every_row(*BERTS, heads=lambda row: WORDS)


def naive_network(model, ids: torch.Tensor, segments: torch.Tensor) -> dict[str, torch.Tensor]:
    """A pre-training model written out from its weights, position by position."""
    config, naive, bert = model.config, NaiveNetwork(model), model.config.head_type == "bert"
    table = naive.weights["model.embed_token_types.weight"]
    pairs = zip(ids, segments, strict=True)
    states = [naive.embed("model", i, token, table[segment]) for i, (token, segment) in enumerate(pairs)]
    states = naive.run("model", states, config.sublayer_order, is_causal=False)
    pooled = ACTIVATIONS[config.pooler_act](naive.affine(states[0], "model.pooler.dense")) if bert else states[0]
    follows = naive.affine(pooled, "seq_relationship.scores")
    words = [ACTIVATIONS[config.hidden_act](naive.affine(x, "lm_transform.dense")) for x in states]
    return {
        "hidden_states": torch.stack(naive.hidden_states["model"]),
        "pooler_output": pooled,
        "prediction_logits": torch.stack([naive.affine(naive.norm(x, "lm_transform.norm"), "lm_head") for x in words]),
        "seq_relationship_logits": follows if bert else torch.stack([follows[0], torch.tensor(0.0)]),
    }


@pytest.mark.parametrize("seed", range(14))
@pytest.mark.parametrize("family", BERTS)
@torch.no_grad()
def test_equals_a_naive_network_for_any_options_in_any_order(family, seed):
    draw, row = random.Random(seed), ROWS[family]
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
        "attention_output_gate": draw.random() < 0.5,
        "attention_output_bias": draw.random() < 0.5,
    }
    model = row.build(AutoModelForPreTraining, *[*row.all_orders, *SHORT[:3], SHORT[4]][seed % 13], **options)
    ids, segments = tokens(1, 5), torch.tensor([[0, 0, 1, 1, 0]])
    expected = naive_network(model, ids[0], segments[0])
    actual = dict(model(ids, token_type_ids=segments, output_hidden_states=True))
    actual["hidden_states"] = torch.stack(actual["hidden_states"], dim=1)
    actual["pooler_output"] = model.model(ids, token_type_ids=segments).pooler_output
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name][0], tensor, atol=1e-4, rtol=1e-4, msg=f"{name} with {options}")


# modules whose tokens are counted
COUNTED = ("q_proj", "k_proj", "v_proj", "o_proj", "in_proj", "out_proj", "fc1", "fc2", "shared_expert", "lm_head")


@every_row(*BERTS, heads=lambda row: [head for head in row.heads if head is not AutoModel])
@pytest.mark.representatives(14)
def test_computes_only_what_is_read(row, head):
    for orders in row.all_orders:
        for training in (True, False):
            model, counted = row.build(head, *orders).train(training), []
            batch, letters = labelled(model, head), model.config.order.letters
            for path, module in model.named_modules():
                name = path.split(".")[-1]
                if name in COUNTED:
                    module.register_forward_hook(
                        lambda _, args, out, name=name, counted=counted: counted.append((name, out[..., 0].numel()))
                    )
            model(**batch)
            lengths = batch["attention_mask"].flatten(0, -2).sum(-1).tolist()
            real, words = sum(lengths), int((batch["labels"] != -100).sum()) if head in WORDS else 0
            # the first token, which the pooler reads and which has no label, and those with a label
            read = {AutoModelForMaskedLM: words, AutoModelForPreTraining: words + 3}.get(head, real)
            read = len(lengths) if head in READS_ONE else read
            expected, inputs = [], real
            for i, letter in enumerate(letters):
                asked = real if letters[i:].strip("fe") else read
                if "m" in letters:
                    asked = real if i < letters.index("m") else read
                elif letter in "swg" and not letters[i + 1 :].strip("fe"):
                    asked = read
                elif head in READS_ONE and not {*"sg"} & {*letters[i + (letter in "sg") :]}:
                    # each window reaches one token further than the next, from the first token on
                    asked = sum(min(length, 1 + letters[i + 1 :].count("w")) for length in lengths)
                seen = real if letter == "m" else inputs
                # keys of distances need all queries
                queries = inputs if model.config.relative_key_distance and letter == "s" else asked
                attention = [("q_proj", queries), ("k_proj", seen), ("v_proj", seen), ("o_proj", queries)]
                convolution = [("in_proj", inputs), ("out_proj", asked)]
                feed_forward = [("fc1", asked), ("fc2", asked)]
                experts = [("shared_expert", asked)]
                expected += {"f": feed_forward, "g": convolution, "e": experts}.get(letter, attention)
                inputs = asked
            assert counted == expected + ([("lm_head", words)] if head in WORDS else []), orders


def test_answers_that_were_cut_off_do_not_count():
    model = ROWS["par_bert"].build(AutoModelForQuestionAnswering)
    out = model(tokens(3, 5), start_positions=torch.tensor([5, 1, -1]), end_positions=torch.tensor([0, 1, 5]))
    start, end = out.start_logits.log_softmax(-1), out.end_logits.log_softmax(-1)
    torch.testing.assert_close(out.loss, -(start[1, 1] + (end[0, 0] + end[1, 1]) / 2) / 2)


@every_head_of_words
@torch.no_grad()
def test_given_labels_scores_only_labelled_words(row, head):
    for orders in row.some_orders:
        model = row.build(head, *orders)
        batch = labelled(model, head)
        given, full, logits = batch["labels"] != -100, model(**unlabelled(batch))[0], model(**batch)[1]
        torch.testing.assert_close(logits[given], full[given], atol=1e-5, rtol=1e-4)
        assert logits[~given].isnan().all()
        out = model.train()(**batch)
        assert out.get("logits", out.get("prediction_logits")) is None
        torch.testing.assert_close(out.labelled_logits, full[given], atol=1e-5, rtol=1e-4)
        everywhere = model.eval()(**batch | {"labels": batch["input_ids"]})[1]
        real = batch["attention_mask"].bool()
        torch.testing.assert_close(everywhere[real], full[real], atol=1e-5, rtol=1e-4)


@every_head_of_words
def test_labels_on_padding_are_read(row, head):
    for orders in row.some_orders:
        model, results = row.build(head, *orders), []
        batch = labelled(model, head) | {"labels": tokens(3, 9)}
        for recorded in (True, False):
            out = model(**batch, output_hidden_states=recorded)
            results.append((out.loss, out[1], backward(model, out.loss)))
        torch.testing.assert_close(results[1], results[0], atol=1e-4, rtol=1e-3)


def test_the_first_segment_starts_at_zero_and_is_not_trained():
    model = MacaronBertForPreTraining(ROWS["macaron_bert"].config()).train()
    table = model.model.embed_token_types
    segments = (torch.arange(9) > 4).long()[None]
    model(tokens(1, 9), token_type_ids=segments, labels=tokens(1, 9)).loss.backward()
    for values in (table.weight, table.weight.grad):
        assert (values[0] == 0).all()
        assert (values[1] != 0).all()


def test_heads_that_read_the_mean_read_all_tokens_and_no_padding():
    options = {"classifier_pooling": "mean", "pooler_norm": True}
    model = ROWS["par_bert"].build(AutoModelForSequenceClassification, "sfsf", **options)
    ids, mask = tokens(2, 6), torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    states = [model.model(ids[row : row + 1, real]).last_hidden_state for row, real in enumerate(mask.bool())]
    pooled = torch.cat([model.model.pooler(each.mean(1)) for each in states])
    torch.testing.assert_close(model(ids, mask).logits, model.classifier(pooled), rtol=1e-5, atol=1e-5)
    assert model(ids).logits.shape == (2, model.config.num_labels)
