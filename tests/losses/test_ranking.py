from __future__ import annotations

import pytest
import torch

from calligram.losses.ranking import bidirectional_ranking_loss, ranking_loss


def random_scores_and_target(images: int, texts: int, seed: int, dtype: torch.dtype = torch.float64):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(images, texts, generator=generator, dtype=dtype)
    target = torch.randint(-1, 2, (images, texts), generator=generator)
    target[0] = -1  # an anchor without a positive
    target[1] = 1  # an anchor without a negative
    return scores, target


def literal(scores, target, margin, top_k=None):
    """The papers' loops: every anchor, every positive, every (or each of the hardest) negative."""
    total = 0.0
    for a in range(scores.shape[0]):
        negatives = [float(scores[a, n]) for n in range(scores.shape[1]) if target[a, n] == -1]
        if top_k is not None:
            negatives = sorted(negatives, reverse=True)[:top_k]
        for p in range(scores.shape[1]):
            if target[a, p] == 1:
                total += sum(max(0.0, margin - float(scores[a, p]) + n) for n in negatives)
    return total


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("top_k", [None, 1, 3, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ranking_loss_sums_the_triplets_of_the_papers(seed, top_k, dtype):
    scores, target = random_scores_and_target(6, 9, seed, dtype)
    assert ranking_loss(scores, target, 0.2, top_k).item() == pytest.approx(
        literal(scores, target, 0.2, top_k), rel=1e-5
    )


def test_ranking_loss_of_a_worked_example():
    """Margin .2. Anchor 0: positive .5, negatives .6, .2: .3 + 0. Anchor 1: positive .9, negatives .8, .1: .1 + 0."""
    scores = torch.tensor([[0.5, 0.6, 0.2], [0.8, 0.9, 0.1]])
    target = torch.tensor([[1, -1, -1], [-1, 1, -1]])
    assert ranking_loss(scores, target, 0.2).item() == pytest.approx(0.4)
    assert ranking_loss(scores, target, 0.2, top_k=1).item() == pytest.approx(0.4)
    assert ranking_loss(scores, target, 0.5, top_k=1).item() == pytest.approx(0.6 + 0.4)


def test_of_tied_hardest_negatives_one_counts():
    scores = torch.tensor([[0.5, 0.5, 0.5]])
    target = torch.tensor([[1, -1, -1]])
    assert ranking_loss(scores, target, 0.2, top_k=1).item() == pytest.approx(0.2)
    assert ranking_loss(scores, target, 0.2).item() == pytest.approx(0.4)


@pytest.mark.parametrize("top_k", [None, 1])
def test_rows_without_positives_or_negatives_give_zero_and_finite_gradients(top_k):
    scores = torch.rand(2, 3, requires_grad=True)
    target = torch.tensor([[1, 1, 1], [-1, -1, 0]])
    loss = ranking_loss(scores, target, 0.2, top_k)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(scores.grad, torch.zeros(2, 3))


def test_an_ignored_pair_does_not_change_the_loss():
    scores, target = random_scores_and_target(5, 7, 3)
    changed = scores.clone()
    changed[target == 0] += 10
    assert ranking_loss(scores, target, 0.2, 1).item() == pytest.approx(ranking_loss(changed, target, 0.2, 1).item())


def test_each_direction_may_have_its_own_negatives():
    scores, target = random_scores_and_target(5, 7, 4)
    _, other = random_scores_and_target(7, 5, 5)
    expected = 2 * literal(scores, target, 0.1) + 0.5 * literal(scores.T, other, 0.1)
    assert bidirectional_ranking_loss(scores, target, other, margin=0.1, weights=(2, 0.5)).item() == pytest.approx(
        expected
    )
    symmetric = literal(scores, target, 0.1, 1) + literal(scores.T, target.T, 0.1, 1)
    assert bidirectional_ranking_loss(scores, target, margin=0.1, top_k=1).item() == pytest.approx(symmetric)


def test_wrong_arguments_are_refused_with_the_reason():
    with pytest.raises(ValueError, match="top_k must be at least 1 or None, got 0"):
        ranking_loss(torch.zeros(1, 1), torch.zeros(1, 1), 0.1, 0)
    with pytest.raises(ValueError, match=r"scores have shape \(1, 2\) and target \(2, 1\)"):
        ranking_loss(torch.zeros(1, 2), torch.zeros(2, 1), 0.1)
