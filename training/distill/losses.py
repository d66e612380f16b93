"""The losses of a student, compared with its teacher."""

import torch
from torch.nn.functional import kl_div, mse_loss, normalize


def embedding_loss(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Compare embeddings (batch, hidden) of the same texts, whatever their lengths.

    The mean of 1 - cosine of both, and the mean squared difference of the matrices of cosines that each has within the
    batch; both terms count once. Of embeddings of another width there is only the latter.
    """
    student, teacher = normalize(student, dim=-1), normalize(teacher, dim=-1)
    loss = mse_loss(student @ student.T, teacher @ teacher.T)
    if student.shape == teacher.shape:
        loss = loss + (1 - (student * teacher).sum(-1)).mean()
    return loss


def logit_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float, exclusive: bool) -> torch.Tensor:
    """Compare logits (batch, labels): of labels that exclude each other by probabilities, else as numbers.

    Hinton et al. (2015), "Distilling the Knowledge in a Neural Network", section 2: the divergence of the student's
    probabilities at a temperature from the teacher's, times its square. Numbers have a mean squared difference.
    """
    if not exclusive:
        return mse_loss(student, teacher)
    found, wanted = (logits.log_softmax(-1) for logits in (student / temperature, teacher / temperature))
    return temperature**2 * kl_div(found, wanted, reduction="batchmean", log_target=True)


def relation_loss(student: torch.Tensor, teacher: torch.Tensor, mask: torch.Tensor, heads: int) -> torch.Tensor:
    """Compare how tokens relate to each other in queries, in keys and in values, of whatever widths.

    Wang et al. (2021), "MiniLMv2: Multi-Head Self-Attention Relation Distillation", section 3: queries, keys and values
    are each cut into relation heads, in which the relations of a token are the softmax of its scaled products with all.
    The loss is the divergence of the student's relations from the teacher's, mean over tokens and heads, of the three
    together.

    Args:
        student: its queries, keys and values side by side, (batch, length, 3 * hidden).
        teacher: the same of the teacher.
        mask: where there are tokens, (batch, length).
        heads: a divisor of both hidden sizes.
    """
    # masked scores are finite, since the difference of two infinities is NaN
    hidden = torch.zeros_like(mask, dtype=student.dtype).masked_fill(~mask, torch.finfo(student.dtype).min)
    hidden = hidden.repeat_interleave(heads, 0)[:, None]
    losses = []
    for pair in zip(student.chunk(3, -1), teacher.chunk(3, -1), strict=True):
        found, wanted = (_log_relations(states, hidden, heads) for states in pair)
        divergence = kl_div(found, wanted, reduction="none", log_target=True).sum(-1)
        losses.append(divergence.transpose(1, 2)[mask].mean())
    return torch.stack(losses).sum()


def _log_relations(states: torch.Tensor, hidden: torch.Tensor, heads: int) -> torch.Tensor:
    states = states.unflatten(-1, (heads, -1)).transpose(1, 2).flatten(0, 1)
    products = torch.baddbmm(hidden, states, states.transpose(1, 2), alpha=states.shape[-1] ** -0.5)
    return products.log_softmax(-1).unflatten(0, (-1, heads))
