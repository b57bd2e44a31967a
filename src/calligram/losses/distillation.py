"""How far a matcher's scores of a batch are from those of another that it follows."""

from __future__ import annotations

from torch import Tensor


def divergence(scores: Tensor, teacher: Tensor, *, temperature: Tensor | float, of_teacher: float) -> Tensor:
    """Mean over rows of KL(softmax(teacher / of_teacher) || softmax(scores / temperature)).

    Zero where both order a row's candidates alike and are as sure of it. No gradient goes to the teacher.

    Args:
        scores: (A, C), higher is better; ``teacher`` likewise, on a scale of its own.

    See also: ``symmetric_divergence``.
    """
    if scores.shape != teacher.shape:
        raise ValueError(f"scores are {tuple(scores.shape)} but the teacher's {tuple(teacher.shape)}")
    wanted = (teacher.detach().float() / of_teacher).log_softmax(1)
    found = (scores.float() / temperature).log_softmax(1)
    return (wanted.exp() * (wanted - found)).sum(1).mean()


def symmetric_divergence(scores: Tensor, teacher: Tensor, *, temperature: Tensor | float, of_teacher: float) -> Tensor:
    """Mean of ``divergence`` with images as rows and with texts as rows."""
    by_image = divergence(scores, teacher, temperature=temperature, of_teacher=of_teacher)
    by_text = divergence(scores.T, teacher.T, temperature=temperature, of_teacher=of_teacher)
    return (by_image + by_text) / 2
