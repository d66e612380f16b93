"""What causal and masked language models are scored by: loss, perplexity, bits per character, masked accuracy."""

import math
from collections.abc import Callable
from typing import Any

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
    for the end tokens between documents too, over the UTF-8 bytes and characters of the text. `recall_loss` is the loss
    of the tokens that `recalled` finds, if there are any.
    """
    pieces = list(text.pieces())
    characters = sum(map(len, pieces))
    num_bytes = sum(len(piece.encode()) for piece in pieces)

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
        labels, losses = np.asarray(prediction.label_ids), np.asarray(prediction.predictions)
        scored, again = labels != IGNORED, recalled(labels)
        nats = float(losses[scored].sum(dtype=np.float64))
        loss = nats / int(scored.sum())
        metrics = {
            # takes the place of the Trainer's, which weighs windows equally however many targets they have
            "loss": loss,
            # more than 709 would overflow
            "perplexity": math.exp(min(loss, 709)),
            "bits_per_byte": nats / math.log(2) / num_bytes,
            "bits_per_character": nats / math.log(2) / characters,
        }
        return metrics | ({"recall_loss": float(losses[again].mean(dtype=np.float64))} if again.any() else {})

    return compute_metrics


def recalled(labels: np.ndarray) -> np.ndarray:
    """Find the tokens that a model can recall from its window better than it can know them.

    Each is the second of two neighbours that stand side by side earlier in the same window, and in no other window of
    the text, as the parts of a rare name do. Associative recall in real text: Arora et al. (2023, "Zoology", section 3)
    leave out pairs that are frequent in the training text, where this leaves out those of several windows.

    Args:
        labels: token numbers, or -100 for those not scored, (windows, length).

    Returns:
        Whether each token is one, (windows, length).
    """
    rows, columns = np.nonzero((labels[:, :-1] != IGNORED) & (labels[:, 1:] != IGNORED))
    pairs = labels[rows, columns].astype(np.int64) << 32 | labels[rows, columns + 1]
    _, firsts, kinds = np.unique(pairs, return_index=True, return_inverse=True)
    is_elsewhere = np.zeros(len(firsts), bool)
    is_elsewhere[kinds[rows != rows[firsts][kinds]]] = True
    again = (np.arange(len(pairs)) != firsts[kinds]) & ~is_elsewhere[kinds]
    found = np.zeros(labels.shape, bool)
    found[rows[again], columns[again] + 1] = True
    return found


def masked_scores(logits: Any, labels: Any) -> tuple[Tensor, ...]:
    """Score predictions against their labels, so that no logits need to be kept.

    Args:
        logits: (batch, length, vocabulary); with next-sentence prediction a pair of these and (batch, 2).
        labels: token numbers, or -100 where nothing is masked, (batch, length); with next-sentence prediction a pair
            of these and (batch,).

    Returns:
        For tokens, and then for next sentences if they are predicted: nats and whether the prediction is right, each
        of the shape of the labels and 0 where nothing is scored.
    """
    if isinstance(labels, tuple):
        return tuple(score for pair in zip(logits, labels, strict=True) for score in _scores(*pair))
    return _scores(logits, labels)


def masked_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """Compute the Trainer's metrics from the results of `masked_scores`.

    They are the loss in nats per masked token, its perplexity and the share of masked tokens predicted; with
    next-sentence prediction also the nats per pair and the share of pairs predicted rightly, which `loss` leaves out.
    """
    with_pairs = isinstance(prediction.label_ids, tuple)
    masked = np.asarray(prediction.label_ids[0] if with_pairs else prediction.label_ids) != IGNORED
    nats, hits = (float(scores[masked].mean(dtype=np.float64)) for scores in prediction.predictions[:2])
    # takes the place of the Trainer's, a mean over batches; more than 709 would overflow
    metrics = {"loss": nats, "perplexity": math.exp(min(nats, 709)), "masked_accuracy": hits}
    if with_pairs:
        nats, hits = (float(scores.mean(dtype=np.float64)) for scores in prediction.predictions[2:])
        metrics |= {"next_sentence_loss": nats, "next_sentence_accuracy": hits}
    return metrics


def _scores(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    scored = labels != IGNORED
    predicted, wanted = logits[scored].float(), labels[scored]
    nats, hits = predicted.new_zeros(2, *labels.shape)
    nats[scored] = F.cross_entropy(predicted, wanted, reduction="none")
    hits[scored] = (predicted.argmax(-1) == wanted).float()
    return nats, hits
