from __future__ import annotations

import math

import pytest
import torch

from calligram.losses.adversarial import (
    DOMAIN_PAIR_KINDS,
    DOMAIN_PAIRS,
    DOMAINS,
    domain_error,
    domain_loss,
    reversal_strength,
    reverse_gradient,
)


@pytest.mark.parametrize("strength", [0.0, 0.4, 1.0])
def test_reversal_changes_the_sign_and_scale_of_gradients_and_nothing_else(strength):
    torch.manual_seed(0)
    vectors, weights = torch.randn(5, 3, requires_grad=True), torch.randn(3, requires_grad=True)

    def gradients(seen):
        loss = (torch.tanh(seen) @ weights).square().sum()
        return loss, *torch.autograd.grad(loss, [vectors, weights])

    plain, reversed_ = gradients(vectors), gradients(reverse_gradient(vectors, strength))
    assert torch.equal(reversed_[0], plain[0])
    torch.testing.assert_close(reversed_[1], -strength * plain[1])
    torch.testing.assert_close(reversed_[2], plain[2])  # layers after the reversal get the usual gradients


def test_reversal_strength_is_gamma_of_the_paper():
    for progress in (0.0, 0.1, 0.37, 1.0):
        assert reversal_strength(progress) == pytest.approx(2 / (1 + math.exp(-10 * progress)) - 1)
    assert reversal_strength(0.0) == 0
    assert 0.999 < reversal_strength(1.0) < 1
    assert reversal_strength(0.5, steepness=2) == pytest.approx(2 / (1 + math.exp(-1)) - 1)


def literal_eq_4(first, second):
    """The paper's l_d, one item after the other."""
    total = 0.0
    for logit in first.tolist():
        total += math.log(1 / (1 + math.exp(-logit))) / len(first)
    for logit in second.tolist():
        total += math.log(1 - 1 / (1 + math.exp(-logit))) / len(second)
    return total


@pytest.mark.parametrize(("one", "two"), [(4, 4), (3, 7), (1, 2)])
def test_domain_loss_is_minus_a3vse_eq_4(one, two):
    torch.manual_seed(1)
    first, second = torch.randn(one, dtype=torch.float64), torch.randn(two, dtype=torch.float64)
    assert float(domain_loss(first, second)) == pytest.approx(-literal_eq_4(first, second), rel=1e-5)


def test_domain_loss_of_worked_examples_and_of_large_logits():
    """Logits of 0 mean a probability of one half: a loss of log 2 for each domain."""
    assert float(domain_loss(torch.zeros(3), torch.zeros(2))) == pytest.approx(2 * math.log(2))
    assert float(domain_loss(torch.tensor([200.0]), torch.tensor([-200.0]))) == 0
    assert float(domain_loss(torch.tensor([-200.0]), torch.tensor([200.0]))) == pytest.approx(400)


def test_one_step_increases_l_d_for_the_discriminator_and_decreases_it_for_the_encoder():
    """Eq. 10: a step increases l_d for the discriminator and decreases it for the encoder."""
    first, second = torch.full((4,), 0.5), torch.full((4,), -0.3)
    weight, shift = torch.tensor(0.2, requires_grad=True), torch.tensor(0.1, requires_grad=True)

    def paper(weight, shift):
        return -domain_loss(weight * (first + shift), weight * (second - shift))

    loss = domain_loss(weight * reverse_gradient(first + shift, 1.0), weight * reverse_gradient(second - shift, 1.0))
    loss.backward()
    with torch.no_grad():
        now = paper(weight, shift)
        assert paper(weight - 0.1 * weight.grad, shift) > now
        assert paper(weight, shift - 0.1 * shift.grad) < now


def test_there_are_six_domain_pairs_two_of_each_kind():
    assert len(DOMAIN_PAIRS) == len(set(DOMAIN_PAIRS)) == 6
    assert all(one != two and {one, two} <= set(DOMAINS) for one, two in DOMAIN_PAIRS)
    assert set(DOMAIN_PAIR_KINDS) == set(DOMAIN_PAIRS)
    of_kind = {
        kind: {pair for pair in DOMAIN_PAIRS if DOMAIN_PAIR_KINDS[pair] == kind} for kind in ("intra", "cross", "trans")
    }
    assert of_kind["intra"] == {("image", "pseudo_image"), ("text", "pseudo_text")}
    assert of_kind["cross"] == {("image", "text"), ("pseudo_image", "pseudo_text")}
    assert of_kind["trans"] == {("image", "pseudo_text"), ("pseudo_image", "text")}


def test_domain_error_is_the_mean_error_of_both_domains():
    """One of two and one of four: (0.5 + 0.25) / 2."""
    found = domain_error(torch.tensor([1.0, -1.0]), torch.tensor([-1.0, -2.0, 3.0, -1.0]))
    assert float(found) == pytest.approx(0.375)
