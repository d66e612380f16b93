import math

import pytest
import torch

from sublayers.training.distill.losses import embedding_loss, logit_loss, relation_loss


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


def naive_relations(states, heads):
    """The relations of each head and token of one text, (length, hidden), as lists of probabilities."""
    found = []
    for head in states.chunk(heads, dim=-1):
        for token in head:
            powers = [
                math.exp(sum(a * b for a, b in zip(token, other, strict=True)) / math.sqrt(len(token)))
                for other in head
            ]
            found.append([power / sum(powers) for power in powers])
    return found


def naive_relation_loss(students, teachers, heads):
    """The loss of texts, each (length, 3 * hidden), token by token."""
    total, tokens = 0.0, 0
    for student, teacher in zip(students, teachers, strict=True):
        tokens += len(student)
        for found, wanted in zip(student.chunk(3, -1), teacher.chunk(3, -1), strict=True):
            for q, p in zip(naive_relations(found, heads), naive_relations(wanted, heads), strict=True):
                total += sum(b * math.log(b / a) for a, b in zip(q, p, strict=True))
    return total / tokens / heads


def test_relations_are_compared_head_by_head_without_padding():
    lengths, mask = (4, 2), torch.tensor([[1, 1, 1, 1, 0], [0, 1, 1, 0, 0]]).bool()
    # whatever stands at padding
    student, teacher = 9 * torch.randn(2, 5, 3 * 4), 9 * torch.randn(2, 5, 3 * 6)
    student[mask], teacher[mask] = torch.randn(6, 3 * 4), torch.randn(6, 3 * 6)
    texts = [states[mask].split(lengths) for states in (student, teacher)]
    for heads in (1, 2):
        found = relation_loss(student, teacher, mask, heads)
        assert found.item() == pytest.approx(naive_relation_loss(*texts, heads), rel=1e-4)
        assert relation_loss(teacher, teacher, mask, heads).item() == pytest.approx(0, abs=1e-6)
    student.requires_grad_()
    relation_loss(student, teacher, mask, 2).backward()
    assert student.grad.isfinite().all()
    assert not student.grad[~mask].any()
