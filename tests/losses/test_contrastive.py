from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from calligram.losses.contrastive import (
    info_nce,
    kl_divergence,
    logistic_loss,
    symmetric_info_nce,
    symmetric_kl_divergence,
)


def expected_info_nce(scores, target, temperature):
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
def test_info_nce_with_several_positives_and_ignored_pairs(seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(6, 8, generator=generator, dtype=torch.float64)
    target = torch.randint(-1, 2, (6, 8), generator=generator)
    target[0], target[1] = -1, 0
    assert info_nce(scores, target, 0.1).item() == pytest.approx(expected_info_nce(scores, target, 0.1))


def test_symmetric_info_nce_of_one_to_one_pairs_is_the_mean_cross_entropy_of_both_directions():
    scores = torch.rand(5, 5, dtype=torch.float64)
    target = 2 * torch.eye(5, dtype=torch.int64) - 1
    right = torch.arange(5)
    expected = (F.cross_entropy(scores / 0.07, right) + F.cross_entropy(scores.T / 0.07, right)) / 2
    assert symmetric_info_nce(scores, target, temperature=0.07).item() == pytest.approx(expected.item())


def test_info_nce_without_positives_is_zero_and_has_finite_gradients():
    scores = torch.rand(2, 2, requires_grad=True)
    loss = info_nce(scores, torch.full((2, 2), -1), 0.1)
    loss.backward()
    assert loss.item() == 0
    assert torch.isfinite(scores.grad).all()


def test_info_nce_has_finite_gradients_where_rows_are_ignored():
    scores = torch.rand(3, 3, requires_grad=True)
    target = torch.tensor([[1, -1, 0], [0, 0, 0], [-1, -1, 1]])
    info_nce(scores, target, 0.05).backward()
    assert torch.isfinite(scores.grad).all()


def expected_divergence(scores, teacher, temperature, teacher_temperature):
    """Row by row and candidate by candidate: sum p log(p / q)."""
    total = 0.0
    for row, wanted in zip(scores.tolist(), teacher.tolist(), strict=True):
        p, q = [math.exp(s / teacher_temperature) for s in wanted], [math.exp(s / temperature) for s in row]
        p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
        total += sum(one * math.log(one / two) for one, two in zip(p, q, strict=True))
    return total / len(scores)


@pytest.mark.parametrize("seed", range(3))
def test_symmetric_kl_divergence_is_the_mean_over_rows_and_columns(seed):
    generator = torch.Generator().manual_seed(seed)
    scores, teacher = torch.rand(2, 4, 6, generator=generator, dtype=torch.float64)
    settings = {"temperature": 0.2, "teacher_temperature": 0.1}
    rows, columns = expected_divergence(scores, teacher, 0.2, 0.1), expected_divergence(scores.T, teacher.T, 0.2, 0.1)
    assert kl_divergence(scores, teacher, **settings).item() == pytest.approx(rows, rel=1e-5)
    assert symmetric_kl_divergence(scores, teacher, **settings).item() == pytest.approx((rows + columns) / 2, rel=1e-5)


def test_kl_divergence_of_a_worked_example():
    """The teacher gives odds of 1 to 1, the student of 3 to 1: (log 2/3 + log 2) / 2 = 0.1438."""
    scores, teacher = torch.tensor([[math.log(3.0), 0.0]]), torch.tensor([[5.0, 5.0]])
    expected = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert kl_divergence(scores, teacher, temperature=1.0, teacher_temperature=1.0).item() == pytest.approx(expected)
    assert expected == pytest.approx(0.1438, abs=1e-4)


def test_kl_divergence_of_equal_distributions_is_zero_and_the_teacher_gets_no_gradient():
    scores = torch.rand(3, 5, requires_grad=True)
    teacher = (2 * scores.detach() + 1).requires_grad_()
    loss = symmetric_kl_divergence(scores, teacher, temperature=0.1, teacher_temperature=0.2)
    assert loss.item() == pytest.approx(0, abs=1e-6)
    symmetric_kl_divergence(scores, teacher.flip(0), temperature=0.1, teacher_temperature=0.2).backward()
    assert teacher.grad is None
    assert scores.grad.abs().sum() > 0


def test_rows_and_columns_that_do_not_count_are_as_if_they_were_not_there():
    torch.manual_seed(0)
    scores, teacher = torch.rand(5, 7), torch.rand(5, 7)
    rows, columns = torch.arange(5) != 2, ~torch.isin(torch.arange(7), torch.tensor([0, 6]))
    settings = {"temperature": torch.tensor(0.07, requires_grad=True), "teacher_temperature": 0.05}
    found, expected = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    loss = symmetric_kl_divergence(found, teacher, **settings, counted=(rows, columns))
    without = symmetric_kl_divergence(expected[rows][:, columns], teacher[rows][:, columns], **settings)
    torch.testing.assert_close(loss, without)
    of_loss, of_without = (
        torch.autograd.grad(x, [y, settings["temperature"]]) for x, y in ((loss, found), (without, expected))
    )
    torch.testing.assert_close(of_loss, of_without)
    nothing = symmetric_kl_divergence(found, teacher, **settings, counted=(rows & False, columns & False))
    assert nothing == 0
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(nothing, [found]))


def test_kl_divergence_refuses_scores_of_another_shape():
    with pytest.raises(ValueError, match=r"scores have shape \(2, 3\) and the teacher's scores \(3, 2\)"):
        kl_divergence(torch.rand(2, 3), torch.rand(3, 2), temperature=1.0, teacher_temperature=1.0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logistic_loss_is_the_sum_of_two_branch_eq_7(seed, dtype):
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


def test_logistic_loss_of_a_worked_example():
    """A match scored 0 costs log 2; a negative scored log 3 costs log(1 + 3) = log 4; an ignored pair nothing."""
    scores = torch.tensor([0.0, math.log(3), 100.0])
    assert logistic_loss(scores, torch.tensor([1, -1, 0])).item() == pytest.approx(math.log(8))


def test_logistic_loss_of_large_scores_is_finite_and_zero_for_confident_pairs():
    scores = torch.tensor([1e4, -1e4, -1e4], requires_grad=True)
    loss = logistic_loss(scores, torch.tensor([1, -1, 1]))
    loss.backward()
    assert loss.item() == pytest.approx(1e4)
    assert scores.grad is not None
    assert scores.grad.tolist() == pytest.approx([0, 0, -1])


def test_logistic_loss_without_pairs_is_zero_and_has_gradients():
    scores = torch.zeros(3, requires_grad=True)
    logistic_loss(scores, torch.zeros(3, dtype=torch.int8)).backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == [0, 0, 0]


def test_logistic_loss_refuses_a_target_of_another_shape():
    with pytest.raises(ValueError, match=r"scores have shape \(3,\) and target \(2,\)"):
        logistic_loss(torch.zeros(3), torch.zeros(2))
