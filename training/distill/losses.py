"""What a student is blamed for."""

import torch
from torch.nn.functional import kl_div, mse_loss, normalize

# of the two terms of `embedding_loss`
COSINE_WEIGHT = 1.0
SIMILARITY_WEIGHT = 1.0


def embedding_loss(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Compare embeddings (batch, hidden) of the same texts, whatever their lengths.

    The mean of 1 - cosine of both, and the mean squared difference of the matrices of cosines that each has within the
    batch; both terms count once. Of embeddings of another width there is only the latter.
    """
    student, teacher = normalize(student, dim=-1), normalize(teacher, dim=-1)
    loss = SIMILARITY_WEIGHT * mse_loss(student @ student.T, teacher @ teacher.T)
    if student.shape == teacher.shape:
        loss = loss + COSINE_WEIGHT * (1 - (student * teacher).sum(-1)).mean()
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
