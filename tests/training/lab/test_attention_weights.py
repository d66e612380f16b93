from itertools import permutations, product

import numpy as np
import pytest
import torch
from transformers import AutoModel, ByT5Tokenizer

from sublayers import (
    MacaronSeq2SeqConfig,
    PARBertConfig,
    PARTransformerXLConfig,
    SandwichCharLMConfig,
    SandwichLMConfig,
)
from sublayers.training.data.tokenizers import train_tokenizer
from sublayers.training.lab.attention_weights import (
    attention_distances,
    attention_weights,
    position_distance,
    read_windows,
    value_distance,
)

SIZES = {"vocab_size": 259, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 4}
WINDOWS = torch.tensor([[5, 70, 70, 30, 200, 7], [8, 8, 90, 3, 4, 100]])


def model(config=SandwichLMConfig, order="sfsf", seed=0, **settings):
    torch.manual_seed(seed)
    made = AutoModel.from_config(config(sublayer_order=order, **SIZES | settings), attn_implementation="eager").eval()
    for name, weight in made.named_parameters():
        # small random weights would look at everything alike
        if "q_proj" in name or "k_proj" in name:
            weight.data.normal_(std=2.0)
    return made


def weights(*args, **kwargs):
    return attention_weights(model(*args, **kwargs), WINDOWS)


# what one-dimensional earth mover's distances are, without scipy
INDEPENDENT = {
    "value": lambda a, b: np.abs(np.sort(a) - np.sort(b)).mean(),
    "position": lambda a, b: np.abs(np.cumsum(a) - np.cumsum(b)).sum(),
}


def cheapest(a, b, metric):
    """The least sum over all ways to give each of the fewer heads one of its own."""
    a, b = sorted((a, b), key=len)
    costs = [[INDEPENDENT[metric](x, y) for y in b] for x in a]
    return min(sum(costs[i][j] for i, j in enumerate(chosen)) for chosen in permutations(range(len(b)), len(a)))


def mean_cost(a, b, metric, causal):
    """The mean over sublayers, windows and tokens, which see those up to themselves or all of their window."""
    places = product(range(2), range(2), range(6))
    seen = [(layer, row, token, token + 1 if causal else 6) for layer, row, token in places]
    return np.mean([cheapest(*(each[i, j, :, k, :end] for each in (a, b)), metric) for i, j, k, end in seen])


def test_distances_are_means_over_tokens_and_sublayers_of_sums_over_heads():
    models = [weights(seed=0), weights(seed=1, num_attention_heads=2), weights(order="s2f2", seed=2)]
    for metric, matrix in attention_distances(models).items():
        expected = [[mean_cost(a, b, metric, causal=True) for b in models] for a in models]
        np.testing.assert_allclose(matrix, expected, rtol=1e-5, atol=1e-7)
        assert (matrix == matrix.T).all()
        assert (matrix[~np.eye(3, dtype=bool)] > 0).all()


def test_all_keys_count_where_a_model_looks_ahead():
    causal, bert = weights(), weights(PARBertConfig)
    assert not np.triu(causal, 1).any()
    for first, second in ((bert, bert[:, :, ::-1] ** 2), (causal, bert), (bert, causal)):
        second = second / second.sum(-1, keepdims=True)
        expected = mean_cost(first, second, "value", causal=False)
        assert attention_distances([first, second])["value"][0, 1] == pytest.approx(expected, rel=1e-4)


def test_a_model_is_no_distance_from_its_copy_with_other_heads_first():
    one, other = model(), model()
    for layer, first in ((other.layers[0], [2, 0, 3, 1]), (other.layers[2], [1, 3, 2, 0])):
        places = torch.arange(16).view(4, 4)[first].flatten()
        for name in ("q_proj", "k_proj", "v_proj"):
            linear = getattr(layer.mixer, name)
            linear.weight.data, linear.bias.data = linear.weight.data[places], linear.bias.data[places]
        layer.mixer.o_proj.weight.data = layer.mixer.o_proj.weight.data[:, places]
    read = [attention_weights(each, WINDOWS) for each in (one, other)]
    assert np.abs(read[0] - read[1]).max() > 0.1
    for matrix in attention_distances(read).values():
        assert matrix[0, 1] == pytest.approx(0, abs=1e-5)


def test_only_the_distance_of_positions_knows_where_a_head_looks():
    a, b = np.array([[0.7, 0.2, 0.1, 0.0]]), np.array([[0.0, 0.1, 0.2, 0.7]])
    assert value_distance(a[0], b[0]) == 0
    # 0.7 by three tokens and 0.1 by one come one way: 0.7 + 0.8 + 0.7
    assert position_distance(a[0], b[0]) == pytest.approx(2.2)
    looking = [np.tile(each, (2, 1, 3, 4, 1)) for each in (a, b)]
    found = attention_distances(looking)
    assert found["value"][0, 1] == 0
    assert found["position"][0, 1] == pytest.approx(3 * 2.2)


@pytest.mark.parametrize("config", [SandwichLMConfig, PARBertConfig, PARTransformerXLConfig])
def test_weights_are_those_of_the_model(config):
    read = weights(config, seed=3)
    expected = model(config, seed=3)(input_ids=WINDOWS, output_attentions=True).attentions
    assert read.shape == (2, 2, 4, 6, 6)
    torch.testing.assert_close(torch.from_numpy(read), torch.stack(expected))


def broken():
    made = model()
    made.layers[0].mixer.q_proj.weight.data.fill_(torch.nan)
    return made


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: model(order="f2"), "has no self-attention whose weights can be read"),
        (lambda: model(SandwichCharLMConfig, attention_span=8), "14 places of a window of 6 tokens"),
        (lambda: model(max_position_embeddings=4), "max_position_embeddings=4"),
        (lambda: model(vocab_size=100), "must lie between 0 and 99, got 5 to 200"),
        (broken, "not finite"),
        (lambda: AutoModel.from_config(MacaronSeq2SeqConfig()), "is an encoder-decoder"),
    ],
)
def test_models_that_cannot_be_read_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        attention_weights(make(), WINDOWS)


def test_windows_are_full_and_inside_one_document_with_the_tokenizers_special_tokens():
    tokenizer = train_tokenizer([], "byte", 0)
    texts = ["abcdef", "g", "hijk"]
    assert tokenizer.batch_decode(read_windows(texts, tokenizer, 2, 4)) == ["abcd", "hijk"]
    bert = train_tokenizer(["a b c d e"], "wordpiece", 61)
    assert bert.batch_decode(read_windows(["a b c d e"], bert, 2, 4)) == ["[CLS] a b [SEP]", "[CLS] c d [SEP]"]
    for refused, number, length, message in (
        (tokenizer, 3, 4, "has 2 full windows of 4 tokens, and 3 are asked for"),
        (bert, 1, 2, "2 tokens are too short for 2 special tokens"),
        (ByT5Tokenizer(), 1, 2, r"give a model with a tokenizer\.json"),
    ):
        with pytest.raises(ValueError, match=message):
            read_windows(texts, refused, number, length)
