import copy
import re

import pytest
import torch
from common import VOCAB, assert_same, gradients, randomize, tokens
from torch import nn

from sublayers import SandwichLMConfig, SandwichLMForCausalLM, SandwichLMModel

CUTOFFS = [20, 40]
# of the three bands: where they begin, and how wide their vectors are
BANDS = [(0, 16), (20, 8), (40, 4)]


def adaptive_config(**overrides):
    sizes = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4}
    dropouts = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout", "adaptive_softmax_dropout"), 0.0)
    adaptive = {"sublayer_order": "sfsf", "adaptive_cutoffs": CUTOFFS, "adaptive_factor": 2}
    return SandwichLMConfig(**sizes | dropouts | adaptive | overrides)


def language_model(**overrides):
    return randomize(SandwichLMForCausalLM(adaptive_config(**overrides)))


def torchs_softmax(head):
    """torch's own adaptive softmax with the weights of ours."""
    softmax = nn.AdaptiveLogSoftmaxWithLoss(16, VOCAB, CUTOFFS, div_value=2)
    with torch.no_grad():
        softmax.head.weight.copy_(torch.cat([head.words, head.bands.weight]))
        for theirs, ours in zip(softmax.tail, head.tails, strict=True):
            theirs[0].weight.copy_(ours.projection.T)
            theirs[1].weight.copy_(ours.table)
    return softmax


def test_the_word_level_model_of_the_paper_has_the_parameters_of_fairseqs():
    with torch.device("meta"):
        config = SandwichLMConfig(sublayer_order="(sf)16", vocab_size=267_744, adaptive_cutoffs=[20_000, 60_000])
        model = SandwichLMForCausalLM(config)
    assert config.adaptive_bands == [(20_000, 1024), (40_000, 256), (207_744, 64)]
    # what fairseq 0.9 counts in its transformer_lm_baevski_wiki103
    assert model.num_parameters() == 246_933_504


def test_embeds_every_word_by_the_table_and_the_matrix_of_its_band():
    model = randomize(SandwichLMModel(adaptive_config()))
    weights = model.state_dict()
    embedded = model.embed_tokens(torch.arange(VOCAB)[None])[0]
    for word in range(VOCAB):
        band = sum(word >= cutoff for cutoff in CUTOFFS)
        table, matrix = (weights[f"embed_tokens.{band}.{name}"] for name in ("table", "projection"))
        first, width = BANDS[band]
        assert (table.shape[1], matrix.shape) == (width, (16, width))
        naive = torch.stack([(matrix[i] * table[word - first]).sum() for i in range(16)])
        torch.testing.assert_close(embedded[word], naive)


def test_scores_and_gradients_equal_those_of_torchs_adaptive_softmax():
    head = language_model().lm_head
    softmax = torchs_softmax(head)
    states, labels = torch.randn(5, 7, 16), tokens(5, 7)
    torch.testing.assert_close(head(states).flatten(0, 1), softmax.log_prob(states.flatten(0, 1)))
    torch.testing.assert_close(head(states[0, 0]), softmax.log_prob(states[0, :1])[0])
    loss, expected = head(states, labels), softmax(states.flatten(0, 1), labels.flatten()).loss
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    words, bands = softmax.head.weight.grad.split([20, 2])
    naive = {"words": words, "bands.weight": bands}
    for i, (matrix, table) in enumerate(softmax.tail):
        naive |= {f"tails.{i}.projection": matrix.weight.grad.T, f"tails.{i}.table": table.weight.grad}
    assert_same(gradients(head), naive)


@pytest.mark.parametrize("tied", [True, False])
def test_loss_in_training_is_that_of_the_log_probabilities(tied):
    model = language_model(tie_word_embeddings=tied)
    ids = tokens(3, 9)
    labels = ids.clone()
    labels[0, :4] = labels[2] = -100
    log_probs = model(ids).logits
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(3, 9))
    scored = [(row, i) for row in range(3) for i in range(8) if labels[row, i + 1] != -100]
    naive = -torch.stack([log_probs[row, i, labels[row, i + 1]] for row, i in scored])
    torch.testing.assert_close(model(ids, labels=labels).logits, log_probs)
    naive.mean().backward()
    expected = gradients(model)
    for training in (True, False):
        model.zero_grad()
        out = model.train(training)(ids, labels=labels)
        assert (out.logits is None) == training
        torch.testing.assert_close(out.loss, naive.mean())
        out.loss.backward()
        assert_same(gradients(model), expected)
    torch.testing.assert_close(model(ids, labels=labels, num_items_in_batch=7).loss, naive.sum() / 7)
    shifted = nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
    torch.testing.assert_close(model(ids, labels=labels, shift_labels=shifted).loss, naive.mean())


def test_training_scores_a_band_only_where_a_word_of_it_is_next():
    model = language_model().train()
    rows = []
    for tail in model.lm_head.tails:
        tail.register_forward_hook(lambda _, args, out: rows.append(tuple(out.shape)))
    ids = torch.tensor([[3, 19, 20, 39, 40, 5], [60, 3, 20, 3, 3, 3]])
    model(ids, labels=ids).loss.backward()
    # the first word of each row is nobody's label
    assert rows == [(3, 20), (1, 21)]
    rows.clear()
    frequent = ids.clamp(max=19)
    model.zero_grad()
    model(frequent, labels=frequent).loss.backward()
    assert rows == [(0, 20), (0, 21)]
    # every parameter has a gradient, so that processes that average them find one each
    assert not model.lm_head.tails[0].table.grad.any()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_batch_without_labels_has_no_loss():
    model = language_model().train()
    loss = model(tokens(2, 5), labels=torch.full((2, 5), -100)).loss
    loss.backward()
    assert loss == 0
    assert not any(gradient.any() for gradient in gradients(model).values())


def test_drops_what_the_softmax_reads_and_what_is_narrow():
    head = language_model(adaptive_softmax_dropout=1.0).lm_head
    states, labels = torch.randn(3, 16), torch.tensor([5, 25, 45])
    assert not torch.allclose(head(states), head.train()(states))
    # without a score all 20 words and 2 bands are equally likely, and so are the 20 or 21 words of a band
    naive = torch.tensor([22.0, 22 * 20, 22 * 21]).log()
    torch.testing.assert_close(head(states, labels), naive.mean())
    head.dropout.p = 0.0
    log_probs = head(states)
    torch.testing.assert_close(log_probs[:, 20:40], log_probs[:, 20:21].expand(-1, 20))
    assert log_probs[:, :20].std(1).min() > 0.1


def test_starts_with_embeddings_as_large_as_the_sinusoids_in_every_band():
    torch.manual_seed(0)
    model = SandwichLMForCausalLM(adaptive_config(vocab_size=900, hidden_size=64, adaptive_cutoffs=[300, 600]))
    embedded = model.model.embed_tokens(torch.arange(900)) * 8
    sizes = [part.std().item() for part in embedded.split(300)]
    # Xavier's rule makes sqrt(2 * hidden / (width + hidden)) of it
    assert sizes == pytest.approx([(128 / (width + 64)) ** 0.5 for width in (64, 32, 16)], rel=0.1)
    assert model.lm_head.bands.weight.std().item() == pytest.approx(0.02, rel=0.2)
    torch.manual_seed(0)
    untied = SandwichLMForCausalLM(adaptive_config(vocab_size=900, hidden_size=64, tie_word_embeddings=False))
    assert untied.lm_head.words.std().item() == pytest.approx(1 / 8, rel=0.1)
    assert untied.lm_head.tails[1].table.std().item() == pytest.approx(1 / 4, rel=0.1)


def test_scores_are_in_single_precision_where_the_model_is_not():
    model = language_model()
    ids = tokens(2, 5)
    half = copy.deepcopy(model).bfloat16()
    out = half(ids, labels=ids)
    assert out.logits.dtype == out.loss.dtype == torch.float32
    torch.testing.assert_close(out.logits.exp().sum(-1), torch.ones(2, 5))
    torch.testing.assert_close(out.loss, -out.logits[:, :-1].gather(-1, ids[:, 1:, None]).mean())
    torch.testing.assert_close(out.loss, model(ids, labels=ids).loss, atol=0, rtol=0.02)


def test_tensor_parallel_plans_name_only_what_is_there():
    model = language_model()
    names = {re.sub(r"\.\d+", ".*", name.removesuffix(".weight")) for name in model.state_dict()}
    assert set(model.tp_plan) <= names
    assert {f"model.{name}" for name in model.config.base_model_tp_plan} == set(model.tp_plan)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"adaptive_cutoffs": []}, r"adaptive_cutoffs=\[\] must increase from above 0"),
        ({"adaptive_cutoffs": [0, 20]}, r"adaptive_cutoffs=\[0, 20\] must increase"),
        ({"adaptive_cutoffs": [20, 20]}, r"adaptive_cutoffs=\[20, 20\] must increase"),
        ({"adaptive_cutoffs": [40, 20]}, r"adaptive_cutoffs=\[40, 20\] must increase"),
        ({"adaptive_factor": 8}, "hidden_size=16 cannot be divided by adaptive_factor=8"),
        ({"vocab_size": 40}, r"adaptive_cutoffs=\[20, 40\] leave no word of vocab_size=40"),
    ],
)
def test_refuses_bands_that_cannot_be(overrides, message):
    with pytest.raises(ValueError, match=message):
        SandwichLMForCausalLM(adaptive_config(**overrides))


@pytest.mark.parametrize("tied", [True, False])
def test_the_last_band_takes_new_words(tied):
    model = language_model(tie_word_embeddings=tied)
    before = copy.deepcopy(model)
    model.resize_token_embeddings(65, pad_to_multiple_of=8, mean_resizing=False)
    assert model.config.vocab_size == 72
    assert (model.lm_head.tails[1].table is model.model.embed_tokens[2].table) == tied
    old = tokens(2, 9)
    assert torch.equal(model.model.embed_tokens(old), before.model.embed_tokens(old))
    scores, expected = model(old).logits, before(old).logits
    # within the last band words share its probability with the new ones, elsewhere nothing changes
    torch.testing.assert_close(scores[..., :40], expected[..., :40])
    torch.testing.assert_close(scores[..., 40:].exp().sum(-1), expected[..., 40:].exp().sum(-1))
    torch.testing.assert_close(scores[..., 41:61] - scores[..., 40:41], expected[..., 41:] - expected[..., 40:41])
    assert model(torch.full((1, 3), 71), labels=torch.full((1, 3), 71)).loss.isfinite()
    model.resize_token_embeddings(VOCAB)
    torch.testing.assert_close(model(old).logits, expected)
    assert model.resize_token_embeddings() is model.get_input_embeddings()
    with pytest.raises(ValueError, match="40 words are not enough"):
        model.resize_token_embeddings(40)
