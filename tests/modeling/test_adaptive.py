import copy
import re

import pytest
import torch
from common import VOCAB, assert_same, gradients, randomize, tokens
from families import ROWS
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM

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


def test_training_scores_a_band_only_where_a_word_of_it_is_next():
    model = language_model().train()
    rows = []
    for tail in model.lm_head.tails:
        tail.register_forward_hook(lambda _, args, out: rows.append(tuple(out.shape)))
    ids = torch.tensor([[3, 19, 20, 39, 40, 5], [60, 3, 20, 3, 3, 3]])
    out = model(ids, labels=ids)
    out.loss.backward()
    assert out.logits is None
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


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sandwich_lm adaptive", {}),
        *(("par_transformer_xl", sizes) for sizes in ({}, {"embedding_size": 8}, {"adaptive_factor": 2})),
    ],
)
def test_ties_the_output_to_the_embeddings_only_when_told(name, options, tied, tmp_path):
    model = ROWS[name].main(tie_word_embeddings=tied, **options)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors").keys()
    # the first band's projections are two, as in the original
    parts = ["table", "projection"] if options or name == "sandwich_lm adaptive" else ["table"]
    shared = {"lm_head.words", *(f"lm_head.tails.{i}.{part}" for i in (0, 1) for part in parts)}
    assert not shared & saved if tied else shared <= saved
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert_same(dict(loaded.named_parameters()), dict(model.named_parameters()), rtol=0, atol=0)
    embedded = loaded.model.embed_tokens
    assert (loaded.lm_head.words is embedded[0].table) == tied
    for band, tail in enumerate(loaded.lm_head.tails, start=1):
        assert (tail.table is embedded[band].table) == tied
        if "projection" in parts:
            owner = embedded if "embedding_size" in options else embedded[band]
            assert (tail.projection is owner.projection) == tied


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
    with pytest.raises(ValueError, match=r"adaptive_cutoffs=\[20, 40\] leave no word of vocab_size=40"):
        language_model(vocab_size=40)
