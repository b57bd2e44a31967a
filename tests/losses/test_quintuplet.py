from __future__ import annotations

import pytest
import torch

from calligram.losses.quintuplet import PairScores, adaptive_quintuplet, offline_quintuplet, offline_triplet

MARGINS = (0.2, 0.05)


def drawn(pairs=9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((pairs,), (pairs, 2), (pairs, 2), (pairs, 2))
    return PairScores(*(torch.rand(s, generator=generator, dtype=torch.float64) for s in shapes))


def plus(x):
    return max(x, 0.0)


def literal(scores, equation, alpha=0.3, beta=1.5, power=1, against="offline"):
    """Eqs. 3, 4 and 5 term by term."""
    total = 0.0
    g1, g2 = MARGINS
    for n in range(len(scores.positive)):
        s = float(scores.positive[n])
        for way in range(2):
            on, off, apart = (float(part[n, way]) for part in scores[1:])
            weight = beta - ((off if against == "offline" else s) - on) / alpha if equation == 5 else 1.0
            total += weight * plus(g1 - s + on) ** power + plus(g2 - s + off) ** power
            total += plus(g2 - s + apart) ** power if equation >= 4 else 0.0
    return total


@pytest.mark.parametrize("squared", [False, True])
def test_offline_triplet_is_aoq_eq_3(squared):
    found = offline_triplet(drawn(), MARGINS, squared=squared)
    assert float(sum(found.values())) == pytest.approx(literal(drawn(), 3, power=1 + squared))


@pytest.mark.parametrize("squared", [False, True])
def test_offline_quintuplet_is_aoq_eq_4(squared):
    found = offline_quintuplet(drawn(), MARGINS, squared=squared)
    assert float(sum(found.values())) == pytest.approx(literal(drawn(), 4, power=1 + squared))
    assert set(offline_quintuplet(drawn(), MARGINS, online=False)) == {"offline", "derived"}


@pytest.mark.parametrize("against", ["offline", "positive"])
@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 1.5), (0.2, 1.0)])
def test_adaptive_quintuplet_is_aoq_eq_5(alpha, beta, against):
    found = adaptive_quintuplet(drawn(), MARGINS, alpha=alpha, beta=beta, against=against)
    assert float(sum(found.values())) == pytest.approx(literal(drawn(), 5, alpha, beta, against=against))


def test_adaptive_quintuplet_of_a_worked_example():
    one = PairScores(*(torch.tensor(v) for v in (0.5, [0.4, 0.1], [0.6, 0.45], [0.3, 0.55])))
    scores = PairScores(one.positive.view(1), *(part.view(1, 2) for part in one[1:]))
    found = adaptive_quintuplet(scores)
    # Weight 1.5 - (0.6 - 0.4) / 0.3 of the hinge 0.2 - 0.5 + 0.4; the second online negative satisfies the margin.
    assert float(found["online"]) == pytest.approx((1.5 - 2 / 3) * 0.1)
    assert float(found["offline"]) == pytest.approx(0.1)
    assert float(found["derived"]) == pytest.approx(0.05)


def test_gradients_are_aoq_eq_6():
    """The first line of Eq. 5, derived by its three scores as the paper writes them."""
    for seed in range(20):
        scores = PairScores(*(part.requires_grad_() for part in drawn(1, seed)))
        (alpha, beta), (g1, g2) = (0.3, 1.5), MARGINS
        sum(adaptive_quintuplet(scores, MARGINS, alpha=alpha, beta=beta).values()).backward()
        with torch.no_grad():
            s, on, off, apart = scores.positive[0], scores.online[0], scores.offline[0], scores.derived[0]
            i_on, i_off, i_apart = ((m - s + x > 0).double() for m, x in ((g1, on), (g2, off), (g2, apart)))
            by_positive = ((off - on) / alpha - beta) * i_on - i_off - i_apart
            by_offline = ((s - on) / alpha - g1 / alpha) * i_on + i_off
            by_online = ((2 * on - s - off) / alpha + beta + g1 / alpha) * i_on
        torch.testing.assert_close(scores.positive.grad[0], by_positive.sum())
        torch.testing.assert_close(scores.offline.grad[0], by_offline)
        torch.testing.assert_close(scores.online.grad[0], by_online)


def test_missing_negatives_add_zero_and_no_nan():
    scores = drawn(3)
    for part in scores[1:]:
        part[0] = -torch.inf
    scores.online[1] = -torch.inf
    scores.offline[2] = -torch.inf
    scores = PairScores(*(part.requires_grad_() for part in scores))
    for loss in (offline_triplet, offline_quintuplet, adaptive_quintuplet):
        total = sum(loss(scores, MARGINS).values())
        for grad in torch.autograd.grad(total, scores.positive):
            assert torch.isfinite(grad).all()
        assert torch.isfinite(total)
    last = adaptive_quintuplet(PairScores(*(part[2:] for part in scores)), MARGINS)["online"]
    hinges = (0.2 - scores.positive[2] + scores.online[2]).clamp(min=0).sum()
    torch.testing.assert_close(last, 1.5 * hinges)  # without an offline negative the weight is beta
