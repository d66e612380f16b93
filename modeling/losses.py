"""Losses that stay exact under gradient accumulation."""

import torch
from torch import nn


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
    reduction = "mean" if num_items_in_batch is None else "sum"
    if config.problem_type == "single_label_classification":
        loss = nn.functional.cross_entropy(logits, labels.view(-1), reduction=reduction)
    elif config.problem_type == "multi_label_classification":
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction=reduction)
    else:
        loss = nn.functional.mse_loss(logits, labels.to(logits.dtype).view_as(logits), reduction=reduction)
    return loss if num_items_in_batch is None else loss / num_items_in_batch
