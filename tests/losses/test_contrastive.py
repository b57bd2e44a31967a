from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from calligram.losses.contrastive import info_nce, symmetric_info_nce


def literal(scores, target, temperature):
    losses = []
    for a in range(scores.shape[0]):
        kept = [c for c in range(scores.shape[1]) if target[a, c] != 0]
        positives = [c for c in kept if target[a, c] == 1]
        if not positives:
            continue
        total = sum(math.exp(float(scores[a, c]) / temperature) for c in kept)
        losses.append(
            -sum(math.log(math.exp(float(scores[a, p]) / temperature) / total) for p in positives) / len(positives)
        )
    return sum(losses) / len(losses)


@pytest.mark.parametrize("seed", range(5))
def test_info_nce_with_many_positives_and_ignored_pairs(seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(6, 8, generator=generator, dtype=torch.float64)
    target = torch.randint(-1, 2, (6, 8), generator=generator)
    target[0], target[1] = -1, 0
    assert info_nce(scores, target, 0.1).item() == pytest.approx(literal(scores, target, 0.1))


def test_one_to_one_is_the_usual_cross_entropy_both_ways():
    scores = torch.rand(5, 5, dtype=torch.float64)
    target = 2 * torch.eye(5, dtype=torch.int64) - 1
    right = torch.arange(5)
    expected = (F.cross_entropy(scores / 0.07, right) + F.cross_entropy(scores.T / 0.07, right)) / 2
    assert symmetric_info_nce(scores, target, temperature=0.07).item() == pytest.approx(expected.item())


def test_no_positive_at_all_gives_zero_with_a_gradient():
    scores = torch.rand(2, 2, requires_grad=True)
    loss = info_nce(scores, torch.full((2, 2), -1), 0.1)
    loss.backward()
    assert loss.item() == 0
    assert torch.isfinite(scores.grad).all()


def test_gradients_are_finite_where_rows_are_ignored():
    scores = torch.rand(3, 3, requires_grad=True)
    target = torch.tensor([[1, -1, 0], [0, 0, 0], [-1, -1, 1]])
    info_nce(scores, target, 0.05).backward()
    assert torch.isfinite(scores.grad).all()
