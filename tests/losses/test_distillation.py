from __future__ import annotations

import math

import pytest
import torch

from calligram.losses.contrastive import kl_divergence, symmetric_kl_divergence


def literal(scores, teacher, temperature, teacher_temperature):
    """Row by row and candidate by candidate: sum p log(p / q)."""
    total = 0.0
    for row, wanted in zip(scores.tolist(), teacher.tolist(), strict=True):
        p, q = [math.exp(s / teacher_temperature) for s in wanted], [math.exp(s / temperature) for s in row]
        p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
        total += sum(one * math.log(one / two) for one, two in zip(p, q, strict=True))
    return total / len(scores)


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_mean_divergence_of_rows_and_of_columns(seed):
    generator = torch.Generator().manual_seed(seed)
    scores, teacher = torch.rand(2, 4, 6, generator=generator, dtype=torch.float64)
    settings = {"temperature": 0.2, "teacher_temperature": 0.1}
    rows, columns = literal(scores, teacher, 0.2, 0.1), literal(scores.T, teacher.T, 0.2, 0.1)
    assert kl_divergence(scores, teacher, **settings).item() == pytest.approx(rows, rel=1e-5)
    assert symmetric_kl_divergence(scores, teacher, **settings).item() == pytest.approx((rows + columns) / 2, rel=1e-5)


def test_by_hand():
    """The teacher is sure of neither, the student gives odds of 3 to 1: (log 2/3 + log 2) / 2 = 0.1438."""
    scores, teacher = torch.tensor([[math.log(3.0), 0.0]]), torch.tensor([[5.0, 5.0]])
    expected = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert kl_divergence(scores, teacher, temperature=1.0, teacher_temperature=1.0).item() == pytest.approx(expected)
    assert expected == pytest.approx(0.1438, abs=1e-4)


def test_the_same_order_with_the_same_certainty_is_nothing_and_the_teacher_gets_no_gradient():
    scores = torch.rand(3, 5, requires_grad=True)
    teacher = (2 * scores.detach() + 1).requires_grad_()
    loss = symmetric_kl_divergence(scores, teacher, temperature=0.1, teacher_temperature=0.2)
    assert loss.item() == pytest.approx(0, abs=1e-6)
    symmetric_kl_divergence(scores, teacher.flip(0), temperature=0.1, teacher_temperature=0.2).backward()
    assert teacher.grad is None
    assert scores.grad.abs().sum() > 0


def test_scores_of_other_pairs_are_refused():
    with pytest.raises(ValueError, match=r"scores are \(2, 3\) but the teacher's \(3, 2\)"):
        kl_divergence(torch.rand(2, 3), torch.rand(3, 2), temperature=1.0, teacher_temperature=1.0)
