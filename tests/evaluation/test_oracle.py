from __future__ import annotations

import numpy as np
import pytest

from calligram.data.matches import Matches
from calligram.evaluation.oracle import oracle_ranks
from calligram.evaluation.recall import relevant_ranks, retrieval_metrics


def test_the_oracle_is_the_mean_over_random_orders_of_what_is_true():
    rng = np.random.default_rng(0)
    true = rng.random((30, 40)) < 0.2
    own = true & (rng.random(true.shape) < 0.4)
    own_matches, true_matches = (Matches(*np.nonzero(m), m.shape) for m in (own, true))
    draws = [retrieval_metrics(relevant_ranks(true + rng.random(true.shape) / 2, own_matches)) for _ in range(600)]
    expected = oracle_ranks(own_matches, true_matches)
    for metric in ("r1", "r5", "r10", "map", "map_r", "r_precision"):
        assert getattr(expected, metric) == pytest.approx(np.mean([getattr(d, metric) for d in draws]), abs=0.7)
    assert expected.meanr == pytest.approx(np.mean([d.meanr for d in draws]), abs=0.05)


def test_by_hand():
    """One own image among four true ones: found first in a quarter of the orders."""
    found = oracle_ranks(Matches([0], [2], (1, 9)), Matches([0] * 4, [1, 2, 5, 7], (1, 9)))
    assert (found.r1, found.r5, found.meanr) == (25, 100, 2.5)
