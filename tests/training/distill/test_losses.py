import math

import pytest
import torch

from sublayers.training.distill.losses import embedding_loss, logit_loss


def test_embeddings_are_compared_by_their_cosines_and_by_those_within_the_batch():
    student, teacher = torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    # cosines of both: 1 and sqrt(1/2); within the batch, the student's are 0 and the teacher's sqrt(1/2)
    expected = (0 + 1 - math.sqrt(0.5)) / 2 + 2 * 0.5 / 4
    assert embedding_loss(student, teacher).item() == pytest.approx(expected)
    assert embedding_loss(teacher, 5 * teacher).item() == pytest.approx(0, abs=1e-6)


def test_embeddings_of_another_width_are_compared_within_the_batch_only():
    student, teacher = torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    assert embedding_loss(student, teacher).item() == pytest.approx(2 * 0.5 / 4)


def test_classes_are_compared_by_their_probabilities():
    student, teacher = [[0.0, 2.0], [1.0, 1.0]], [[4.0, 0.0], [0.0, 2.0]]

    def softmax(row, temperature):
        powers = [math.exp(logit / temperature) for logit in row]
        return [power / sum(powers) for power in powers]

    for temperature in (1.0, 2.0):
        rows = [[softmax(row, temperature) for row in pair] for pair in zip(teacher, student, strict=True)]
        sums = [sum(p * math.log(p / q) for p, q in zip(*row, strict=True)) for row in rows]
        found = logit_loss(torch.tensor(student), torch.tensor(teacher), temperature, exclusive=True)
        assert found.item() == pytest.approx(temperature**2 * sum(sums) / 2, rel=1e-5)


def test_numbers_are_compared_as_numbers():
    found = logit_loss(torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0], [0.0]]), 2.0, exclusive=False)
    assert found.item() == pytest.approx((1 + 9) / 2)
