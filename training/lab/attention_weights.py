"""How differently the attention heads of models look at the same text: Press, Smith and Levy (2020), section 6."""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, islice, product
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import wasserstein_distance
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

Distance = Callable[[np.ndarray, np.ndarray], float]


def value_distance(weights: np.ndarray, others: np.ndarray) -> float:
    """Compare how evenly two heads of one token look, whatever they look at: (keys,), (keys,) -> weight per key.

    The weights are taken as samples. The paper does not say so, but its table 7 has 1e-3, which of the readings that we
    know only this one gives, over thousands of keys. It shrinks as keys are added: compare numbers of one window only.
    """
    return wasserstein_distance(weights, others)


def position_distance(weights: np.ndarray, others: np.ndarray) -> float:
    """Compare where two heads of one token look: (keys,), (keys,) -> tokens by which the attention has to be moved."""
    places = np.arange(len(weights))
    return wasserstein_distance(places, places, weights, others)


METRICS: dict[str, Distance] = {"value": value_distance, "position": position_distance}


def matched_distance(heads: np.ndarray, others: np.ndarray, distance: Distance) -> float:
    """Match the heads (heads, keys) of two models for one token at least cost, and add up the matched distances.

    If the numbers of heads differ, some heads are left over, and the sum is over as many pairs as there can be.
    """
    costs = np.array([[distance(weights, other) for other in others] for weights in heads])
    return costs[linear_sum_assignment(costs)].sum()


def attention_distances(models: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Compare every two models by each metric: a sum over matched heads, then a mean over tokens and sublayers.

    The n-th self-attention sublayer of one model is compared with the n-th of the other. Only keys that a token may see
    count: those up to itself, or all of its window if one of the two models looks ahead.

    Args:
        models: the results of `attention_weights` for the same windows.

    Returns:
        For each metric a symmetric matrix (models, models).

    Raises:
        ValueError: the models have different numbers of self-attention sublayers.
    """
    if len({len(weights) for weights in models}) > 1:
        numbers = ", ".join(f"{len(weights)}" for weights in models)
        raise ValueError(f"the models have {numbers} self-attention sublayers; compare models with as many")
    looks_ahead = [bool(np.triu(weights, 1).any()) for weights in models]
    sublayers, windows, _, tokens, keys = models[0].shape
    pairs = combinations(range(len(models)), 2)
    distances = {metric: np.zeros((len(models), len(models))) for metric in METRICS}
    steps = tqdm([*product(pairs, range(sublayers), range(windows), range(tokens))], unit="token")
    for (i, j), sublayer, window, token in steps:
        seen = keys if looks_ahead[i] or looks_ahead[j] else token + 1
        heads, others = (models[model][sublayer, window, :, token, :seen] for model in (i, j))
        for metric, distance in METRICS.items():
            distances[metric][[i, j], [j, i]] += matched_distance(heads, others, distance)
    return {metric: sums / (sublayers * windows * tokens) for metric, sums in distances.items()}


def mean_distances(distances: np.ndarray, kinds: Sequence[str]) -> dict[str, dict[str, float]]:
    """Average a matrix (models, models) over the pairs of models of each two kinds, as the paper's Table 7 does.

    Returns:
        `means` by names such as `(sf)8 - s3(sf)5f3`, and where there are several pairs their `deviations`.
    """
    found: dict[str, list[float]] = {}
    for i, j in combinations(range(len(kinds)), 2):
        pair = sorted((kinds[i], kinds[j]), key=kinds.index)
        found.setdefault(" - ".join(pair), []).append(distances[i, j])
    deviations = {name: stdev(values) for name, values in found.items() if len(values) > 1}
    return {"means": {name: mean(values) for name, values in found.items()}, "deviations": deviations}


@torch.no_grad()
def attention_weights(model: PreTrainedModel, windows: torch.Tensor) -> np.ndarray:
    """Read what every head of a model with eager attention looks at. A memory is empty at the start of each window.

    Args:
        model: one stack with self-attention, in evaluation mode.
        windows: token ids, (windows, tokens).

    Returns:
        Attention weights, (self-attention sublayers, windows, heads, tokens, keys).

    Raises:
        ValueError: an encoder-decoder, a model without self-attention or that attends to more than the window, tokens
            that do not fit the model, or weights that are not finite.
    """
    name = model.name_or_path
    if model.config.is_encoder_decoder:
        raise ValueError(f"{name} is an encoder-decoder; give models of one stack, such as language models")
    # texts are read one at a time, since weights take far more room than tokens
    outputs: list[Any] = [model(input_ids=window[None], output_attentions=True) for window in windows]
    if not outputs[0].get("attentions"):
        raise ValueError(f"{name} has no self-attention whose weights can be read; give models with self-attention")
    weights = torch.stack([torch.cat(read).float() for read in zip(*(o.attentions for o in outputs), strict=True)])
    if weights.shape[-1] != windows.shape[1]:
        seen = f"{name} attends to {weights.shape[-1]} places of a window of {windows.shape[1]} tokens"
        raise ValueError(f"{seen}, some of them before the text; give models that attend to tokens only")
    if not weights.isfinite().all():
        raise ValueError(f"{name} has attention weights that are not finite; give a model whose training went well")
    return weights.numpy()


def read_windows(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, number: int, length: int) -> torch.Tensor:
    """Take the first full windows of documents, each inside one of them and with the tokenizer's special tokens.

    Returns:
        Token ids, (number, length).

    Raises:
        ValueError: a slow tokenizer, windows that special tokens fill, or a text with fewer windows.
    """
    if not tokenizer.is_fast:
        raise ValueError(f"{tokenizer.name_or_path} has a slow tokenizer; give a model with a tokenizer.json")
    if length <= (special := tokenizer.num_special_tokens_to_add()):
        raise ValueError(f"windows of {length} tokens are too short for {special} special tokens; give longer ones")
    cut = {"truncation": True, "max_length": length, "return_overflowing_tokens": True}
    pieces = (ids for text in texts for ids in tokenizer(text, **cut).input_ids)
    windows = [*islice((ids for ids in pieces if len(ids) == length), number)]
    if len(windows) < number:
        have = f"the text has {len(windows)} full windows of {length} tokens, and {number} are asked for"
        raise ValueError(f"{have}; give a longer text, or ask for fewer or shorter windows")
    return torch.tensor(windows)
