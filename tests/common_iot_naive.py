"""Equations 1 to 7 of Zhu et al. (2021), written out one sentence and one pair of orders at a time."""

import math
from collections.abc import Callable

import torch
from common_seq2seq_training import naive_losses


class Noise:
    """Recorded Gumbel noise in the place of `gumbel_softmax`: (calls, sentences, orders)."""

    def __init__(self, scale: float = 1.0):
        self.values = scale * -(-torch.rand(99, 8, 8, generator=torch.Generator().manual_seed(0)).log()).log()
        self.calls = 0

    def __call__(self, logits, tau, dim):
        assert dim == -1
        noise = self.values[self.calls][: logits.shape[0], : logits.shape[1]]
        self.calls += 1
        return ((logits + noise) / tau).softmax(-1)


def shares(scores: torch.Tensor) -> torch.Tensor:
    return scores.exp() / scores.exp().sum()


def clamped(probabilities: torch.Tensor, config) -> torch.Tensor:
    least = config.min_order_probability
    most = 1 - (len(probabilities) - 1) * least
    return torch.stack([p if least < p < most else p * 0 + (least if p <= least else most) for p in probabilities])


def divergence(probabilities: torch.Tensor) -> torch.Tensor:
    """Of the uniform distribution from these."""
    uniform = 1 / len(probabilities)
    return sum(uniform * (math.log(uniform) - p.log()) for p in probabilities)


def confidence(passes: list[torch.Tensor], noises: list[torch.Tensor], config, temperature: float) -> torch.Tensor:
    """Equations 1 and 2 for a sentence: of the mean of some passes or, with a sample in each, a mean of samples."""
    if config.clamp_gumbel:
        passes = [clamped(p, config) for p in passes]
    if not config.gumbel_per_pass:
        passes, noises = [sum(passes) / len(passes)], noises[:1]
    drawn = [shares((p.log() + g) / temperature) for p, g in zip(passes, noises, strict=True)]
    return sum(drawn) / len(drawn)


def naive_terms(model, rows: list[dict[str, torch.Tensor]], noise: Callable[[int, int], torch.Tensor] | None = None):
    """Cross-entropy as a sum over all labels, diversity and sharpness as means over all sentences."""
    config, weights = model.config, dict(model.named_parameters())
    num_encoders, num_decoders = len(config.encoder_orders), len(config.decoder_orders)
    predictors = [weights.get(f"model.encoder.{stack}_order_predictor.weight") for stack in ("encoder", "decoder")]
    paired = config.order_paths == "paired"
    # decoder orders and the encoder order of each, as often as the encoder's output makes a distribution of its own
    groups = [[min(n, num_encoders - 1) for n in range(num_decoders)]] if paired else []
    groups = groups or [[m] * num_decoders for m in range(num_encoders)]
    calls = num_decoders if config.gumbel_per_pass else 1
    cross_entropy, of_encoders, of_decoders = 0, [], []
    for i, row in enumerate(rows):
        source = row["input_ids"][row["attention_mask"].bool()][None]
        tokens = model.get_input_embeddings().weight[source[0]] * model.model.encoder.embed_scale
        gamma, passes = [1.0] * num_encoders, []

        def noises(first: int, number: int, orders: int, i=i) -> list[torch.Tensor]:
            return [
                torch.zeros(orders) if noise is None else noise(c, i)[:orders] for c in range(first, first + number)
            ]

        if predictors[0] is not None:
            of_encoders.append([shares(predictors[0] @ (sum(tokens) / len(tokens)))])
            first = calls * len(groups) if predictors[1] is not None else 0
            gamma = confidence(of_encoders[-1], noises(first, 1, num_encoders), config, model.temperature)
        for g, encoder_orders in enumerate(groups):
            lambdas, group = [1.0] * num_decoders, []
            for m in encoder_orders if predictors[1] is not None else ():
                states = model.get_encoder()(source, forced_encoder_order=m).last_hidden_state[0]
                group.append(shares(predictors[1] @ (sum(states) / len(states))))
            if group:
                drawn = noises(calls * g, calls, num_decoders)
                lambdas = confidence(group, drawn, config, model.temperature)
            passes += group
            for n, m in enumerate(encoder_orders):
                weight = lambdas[n] if paired else gamma[m] * lambdas[n]
                forced = {"forced_encoder_order": m, "forced_decoder_order": n}
                smoothing = config.label_smoothing
                cross_entropy += weight * sum(naive_losses(model, [row], smoothing, **forced))
                if not config.weighted_smoothing:
                    cross_entropy += (1 - weight) * smoothing * sum(naive_losses(model, [row], 1.0, **forced))
        of_decoders += [passes] if passes else []
    diversity = sharpness = 0
    for sentences in (of_encoders, of_decoders):
        if sentences:
            means = [sum(passes) / len(passes) for passes in sentences]
            diversity += divergence(sum(means) / len(means))
            clamps = [sum(clamped(p, config) for p in passes) / len(passes) for passes in sentences]
            sharpness -= sum(divergence(p) for p in clamps) / len(clamps)
    return cross_entropy, diversity, sharpness
