from __future__ import annotations

import math

import pytest
import torch

from calligram.losses.contrastive import logistic_loss


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logistic_is_the_sum_of_two_branch_eq_7(seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(5, 7, generator=generator, dtype=dtype)
    target = torch.randint(-1, 2, (5, 7), generator=generator)
    target[0] = 0  # a row that is ignored throughout
    expected = 0.0
    for i in range(5):
        for j in range(7):
            z, p = int(target[i, j]), float(scores[i, j])
            if z:
                expected += math.log(1 + math.exp(-z * p))
    assert logistic_loss(scores, target).item() == pytest.approx(expected, rel=1e-5)


def test_logistic_by_hand():
    """A match scored 0 costs log 2; a negative scored log 3 costs log(1 + 3) = log 4; an ignored pair nothing."""
    scores = torch.tensor([0.0, math.log(3), 100.0])
    assert logistic_loss(scores, torch.tensor([1, -1, 0])).item() == pytest.approx(math.log(8))


def test_large_scores_stay_finite_and_sure_pairs_cost_nothing():
    scores = torch.tensor([1e4, -1e4, -1e4], requires_grad=True)
    loss = logistic_loss(scores, torch.tensor([1, -1, 1]))
    loss.backward()
    assert loss.item() == pytest.approx(1e4)
    assert scores.grad is not None
    assert scores.grad.tolist() == pytest.approx([0, 0, -1])


def test_nothing_to_count_is_zero_with_gradients():
    scores = torch.zeros(3, requires_grad=True)
    logistic_loss(scores, torch.zeros(3, dtype=torch.int8)).backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == [0, 0, 0]


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"scores are \(3,\) but target is \(2,\)"):
        logistic_loss(torch.zeros(3), torch.zeros(2))
