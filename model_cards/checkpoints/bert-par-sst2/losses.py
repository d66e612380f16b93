"""Losses that stay exact under gradient accumulation."""

import torch
from torch import nn

# torch and transformers ignore labels with this number
IGNORED = -100


def check_labels(labels: torch.Tensor, logits: torch.Tensor) -> None:
    """Check that there is a label for everything that is scored: (items, ...), (items, ...).

    Raises:
        ValueError: there are more or fewer.
    """
    if labels.shape[0] != logits.shape[0]:
        raise ValueError(f"{labels.shape[0]} labels do not fit {logits.shape[0]} scored rows; give one for each")


def mean_cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Mean cross-entropy over the labels that are not -100: (items, classes), (items,) -> (); 0 where there are none.

    With `num_items_in_batch`, this batch's share of the mean over all batches whose gradients are accumulated. Label
    smoothing spreads its share of each label's weight over all classes, the right one included.
    """
    check_labels(labels, logits)
    total = nn.functional.cross_entropy(
        logits, labels, ignore_index=IGNORED, reduction="sum", label_smoothing=label_smoothing
    )
    if num_items_in_batch is None:
        num_items_in_batch = (labels != IGNORED).sum().clamp(min=1)
    return total / num_items_in_batch


def weighted_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, label_smoothing: float, weighted_smoothing: bool
) -> torch.Tensor:
    """Sum of the cross-entropy that several models have on the same labels, with a weight for each, -100 left out.

    (models, items, classes), (items,), (models, items) -> (). The smoothing may be left without weights.
    """

    def losses(smoothing: float) -> torch.Tensor:
        flat = nn.functional.cross_entropy(
            logits.flatten(0, 1),
            labels.repeat(logits.shape[0]),
            ignore_index=IGNORED,
            reduction="none",
            label_smoothing=smoothing,
        )
        return flat.view_as(weights)

    smoothed = losses(label_smoothing)
    if weighted_smoothing or not label_smoothing:
        return (weights * smoothed).sum()
    return smoothed.sum() + (1 - label_smoothing) * ((weights - 1) * losses(0.0)).sum()


def classification_loss(
    logits: torch.Tensor, labels: torch.Tensor, config, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """Loss of one label, several labels or regression, by `config.problem_type`: (batch, labels) -> ().

    The mean over the labels of this batch or, with `num_items_in_batch`, their share of the mean over all batches
    whose gradients are accumulated. An unset problem type is read off the labels and kept in the config, since
    pipelines choose their output function by it.
    """
    if config.problem_type is None:
        integers = labels.dtype in (torch.int, torch.long)
        kinds = {True: "single_label_classification", False: "multi_label_classification"}
        config.problem_type = "regression" if config.num_labels == 1 else kinds[integers]
    if config.problem_type == "single_label_classification":
        return mean_cross_entropy(logits, labels.view(-1), num_items_in_batch)
    check_labels(labels, logits)
    labels = labels.to(logits.dtype).view_as(logits)
    if config.problem_type == "multi_label_classification":
        total = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    else:
        total = nn.functional.mse_loss(logits, labels, reduction="sum")
    return total / (labels.numel() if num_items_in_batch is None else num_items_in_batch)
