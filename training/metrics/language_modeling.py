"""What causal language models are scored by: loss, perplexity, and bits per byte and per character."""

import math
from collections.abc import Callable

import numpy as np
from torch import Tensor
from torch.nn import functional as F
from transformers import EvalPrediction

from sublayers.modeling.losses import IGNORED
from sublayers.training.data.corpus import Text


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the negative log-likelihood of every label from the logits one position before it.

    Args:
        logits: (batch, length, vocabulary).
        labels: token numbers, or -100 for those not scored, (batch, length).

    Returns:
        Nats, 0 where nothing is scored, (batch, length).
    """
    losses = F.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="none"
    )
    return F.pad(losses.view(len(labels), -1), (1, 0))


def language_modeling_metrics(text: Text) -> Callable[[EvalPrediction], dict[str, float]]:
    """Make the Trainer's `compute_metrics` for an evaluation text from the results of `token_losses`.

    Its metrics are the loss in nats per token, the perplexity, and bits per byte and per character: all bits, those
    for the end tokens between documents too, over the UTF-8 bytes and characters of the text.
    """
    pieces = list(text.pieces())
    characters = sum(map(len, pieces))
    num_bytes = sum(len(piece.encode()) for piece in pieces)

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
        scored = np.asarray(prediction.label_ids) != IGNORED
        nats = float(np.asarray(prediction.predictions)[scored].sum(dtype=np.float64))
        loss = nats / int(scored.sum())
        return {
            # takes the place of the Trainer's, which weighs windows equally however many targets they have
            "loss": loss,
            # more than 709 would overflow
            "perplexity": math.exp(min(loss, 709)),
            "bits_per_byte": nats / math.log(2) / num_bytes,
            "bits_per_character": nats / math.log(2) / characters,
        }

    return compute_metrics
